#include "lib/backend/cuda/nccl_clique.h"

#include <dlfcn.h>

#include <algorithm>
#include <type_traits>

namespace duet::cuda {
namespace {

void check(const NcclCalls& nccl, ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw DeviceError(concat("cuda: ", what, ": NCCL: ", nccl.error_string(result), " (", nccl.last_error(nullptr), ")"));
}

/// Empty functions where there is no NCCL.
NcclCalls find_calls() {
  NcclCalls calls;
  void* library = RTLD_DEFAULT;  // may be loaded already
  if (::dlsym(library, "ncclGetVersion") == nullptr) library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr && ::dlsym(RTLD_DEFAULT, "ncclGetVersion") == nullptr) return calls;
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
  };
  find(calls.get_version, "ncclGetVersion");
  find(calls.comm_init_all, "ncclCommInitAll");
  find(calls.all_reduce, "ncclAllReduce");
  find(calls.group_start, "ncclGroupStart");
  find(calls.group_end, "ncclGroupEnd");
  find(calls.error_string, "ncclGetErrorString");
  find(calls.last_error, "ncclGetLastError");
  return calls;
}

const NcclCalls& calls() {
  static const NcclCalls found = find_calls();
  return found;
}

}  // namespace

std::string nccl_version() {
  int version = 0;
  if (calls().get_version == nullptr || calls().get_version(&version) != ncclSuccess) return "";
  return concat(", NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

const NcclCalls& NcclCalls::load() {
  const NcclCalls& found = calls();
  require<DeviceError>(found.get_version != nullptr, "NCCL is not installed: libnccl.so.2 was not found");
  int version = 0;
  check(found, found.get_version(&version), "ncclGetVersion");
  require<DeviceError>(version / 10000 == NCCL_MAJOR && found.last_error != nullptr, "NCCL ", version,
                       " was found, but duet was built for NCCL ", NCCL_MAJOR);
  return found;
}

NcclClique::NcclClique(std::span<CudaDevice* const> devices)
    : nccl_(NcclCalls::load()), devices_(devices.begin(), devices.end()), communicators_(devices.size()) {
  std::vector<int> gpus;
  for (const CudaDevice* const device : devices_) {
    require<DeviceError>(std::find(gpus.begin(), gpus.end(), device->physical()) == gpus.end(), "NCCL takes ",
                         device->device(), " only with a GPU of its own; logical devices add up by tree");
    gpus.push_back(device->physical());
  }
  check(nccl_, nccl_.comm_init_all(communicators_.data(), static_cast<int>(gpus.size()), gpus.data()),
        "ncclCommInitAll");
}

void NcclClique::all_reduce(std::span<const Tensor> parts, std::span<const Tensor> destinations) {
  for (const CudaDevice* const device : devices_) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cuda::check(cudaStreamIsCapturing(device->stream(), &capture), "cudaStreamIsCapturing");
    require<UsageError>(capture == cudaStreamCaptureStatusNone, "all_reduce_devices: NCCL is not for CUDA graphs");
  }
  for (std::size_t i = 0; i < parts.size(); ++i)
    require<ShapeError>(parts[i].dtype() == DType::f32 && destinations[i].dtype() == DType::f32,
                        "all_reduce_devices: got ", parts[i].dtype(), " for ", destinations[i].dtype(),
                        ", expected f32");
  check(nccl_, nccl_.group_start(), "ncclGroupStart");
  ncclResult_t status = ncclSuccess;
  for (std::size_t i = 0; i < devices_.size() && status == ncclSuccess; ++i) {
    devices_[i]->activate();
    status = nccl_.all_reduce(parts[i].raw(), destinations[i].raw(), static_cast<std::size_t>(parts[i].count()),
                              ncclFloat32, ncclSum, communicators_[i], devices_[i]->stream());
  }
  const ncclResult_t ended = nccl_.group_end();  // also after an error, which it ends
  check(nccl_, status, "ncclAllReduce");
  check(nccl_, ended, "ncclGroupEnd");
}

}  // namespace duet::cuda
