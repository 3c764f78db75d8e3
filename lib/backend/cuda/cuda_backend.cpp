#include "lib/backend/cuda/cuda_backend.h"

#include <dlfcn.h>
#include <nccl.h>

#include <array>
#include <memory>
#include <string>

#include "lib/backend/cuda/cuda_recorder.h"
#include "lib/backend/cuda/memory.h"

namespace duet::cuda {
namespace {

/// A version number as CUDA counts: 13020 is 13.2.
std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

/// ", NCCL 2.28.9", or empty if NCCL isn't installed. Only NCCL itself reports its version, so all of it is loaded;
/// duet info and the reports ask for it, training doesn't.
std::string nccl_version() {
  const char* const name = "ncclGetVersion";
  void* found = ::dlsym(RTLD_DEFAULT, name);  // DDP's module may have loaded it
  void* const library = found == nullptr ? ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL) : nullptr;
  if (library != nullptr) found = ::dlsym(library, name);
  int version = 0;
  if (found == nullptr || reinterpret_cast<decltype(&ncclGetVersion)>(found)(&version) != ncclSuccess) return "";
  return concat(", NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

/// The number of GPUs; throws the reason when there is none. Touches no GPU.
int count_gpus() {
  int gpus = 0;
  const cudaError_t status = cudaGetDeviceCount(&gpus);
  if (status != cudaSuccess) cudaGetLastError();
  const int driver = driver_version();
  require<DeviceError>(driver > 0, "no NVIDIA driver is loaded");
  require<DeviceError>(status != cudaErrorInsufficientDriver, "the driver is too old: it serves CUDA ",
                       version_text(driver), ", duet was built for CUDA ", version_text(CUDART_VERSION));
  require<DeviceError>(status != cudaErrorNoDevice, "the driver finds no GPU");
  check(status, "cudaGetDeviceCount");
  return gpus;
}

cudaDeviceProp properties_of(int gpu) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return properties;
}

}  // namespace

void same_device(const char* op, std::initializer_list<Operand> operands) {
  const Operand* first = nullptr;
  for (const Operand& operand : operands) {
    if (!operand.tensor.defined()) continue;
    if (first == nullptr) first = &operand;
    require<DeviceError>(operand.tensor.device() == first->tensor.device(), op, ": ", first->name, " is on ",
                         first->tensor.device(), ", ", operand.name, " on ", operand.tensor.device());
  }
}

void CudaBackend::set_precision(Precision precision) {
  require_no_override(precision);
  settings_.precision = precision;
}

CudaBackend::CudaBackend()
    : gpus_(count_gpus()), devices_(gpus_, [this](Device device) {
        auto* const made = new CudaDevice(settings_, device);
        made->equip(std::make_shared<DeviceMemory>(devices_, *made),
                    std::make_shared<CudaRecorder>(*this, devices_, *made));
        return made;
      }) {}

CudaBackend::~CudaBackend() = default;

std::string CudaBackend::describe(Device device) const {
  require<DeviceError>(device.kind == DeviceKind::cuda && device.index >= 0 && device.index < gpus_,
                       "there is no device ", device, ", only ", gpus_, gpus_ == 1 ? " GPU" : " GPUs");
  const cudaDeviceProp gpu = properties_of(device.index);
  const std::string text = concat(gpu.name, ", sm_", gpu.major, gpu.minor, ", ", gpu.totalGlobalMem >> 20, " MiB");
  return device.logical < 0 ? text : concat("logical device ", device.logical, " on ", text);
}

std::string CudaBackend::libraries() const {
  int runtime = 0, major = 0, minor = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  check(cublasGetProperty(MAJOR_VERSION, &major), "cublasGetProperty");
  check(cublasGetProperty(MINOR_VERSION, &minor), "cublasGetProperty");
  const std::size_t cudnn = cudnnGetVersion();
  return concat("CUDA ", version_text(runtime), " (driver ", version_text(driver_version()), "), cuDNN ", cudnn / 10000,
                ".", cudnn / 100 % 100, ".", cudnn % 100, ", cuBLAS ", major, ".", minor, nccl_version());
}

void CudaBackend::bind_thread(Device device) { on(device); }

void CudaBackend::set_threads_per_device(int threads) {
  require<UsageError>(threads == 1, "a GPU is driven by one thread, got ", threads);
}

Allocator& CudaBackend::allocator(Device device) { return devices_.find(device).memory(); }

void CudaBackend::synchronize(Device device) { devices_.find(device).synchronize(); }

void* CudaBackend::stream(Device device) { return devices_.find(device).stream(); }

void CudaBackend::order(Device device, void* first, void* second) {
  CudaDevice& found = on(device);
  const std::array streams = {static_cast<cudaStream_t>(first), static_cast<cudaStream_t>(second)};
  for (const cudaStream_t stream : streams)
    require<UsageError>(!is_capturing(stream), "a stream of ", device,
                        " records a CUDA graph, of which work on other streams cannot be part");
  found.order(streams[0], streams[1]);
}

StepRecorder* CudaBackend::recorder(Device device) { return &devices_.find(device).recorder(); }

CudaDevice& CudaBackend::on(Device device, const char* op) {
  set_current_operator(op);
  CudaDevice& found = devices_.find(device);
  found.activate();
  return found;
}

void CudaBackend::copy_2d(void* destination, std::size_t destination_pitch, const void* source,
                          std::size_t source_pitch, std::size_t width, std::size_t rows, Device device) {
  check(cudaMemcpy2DAsync(destination, destination_pitch, source, source_pitch, width, rows, cudaMemcpyDeviceToDevice,
                          on(device).stream()),
        "copy_2d");
}

void CudaBackend::to_plain(const Tensor& x, const Tensor& y) { duet::copy(x, y); }

void CudaBackend::from_plain(const Tensor& x, const Tensor& y) { duet::copy(x, y); }

DeviceUse CudaBackend::use(Device device) {
  const CudaDevice& found = on(device);
  const DeviceMemory::Use held = found.memory().use();
  DeviceUse use{.total = 0, .free = 0, .held = held.held, .used = held.used, .peak = held.peak, .moved = found.moved()};
  check(cudaMemGetInfo(&use.free, &use.total), "cudaMemGetInfo");
  return use;
}

bool CudaBackend::copies_directly(Device from, Device to) {
  if (from.index == to.index) return true;
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, to.index, from.index), "cudaDeviceCanAccessPeer");
  return possible != 0;
}

}  // namespace duet::cuda

// The module's one door: see lib/backend/backend.h.
extern "C" __attribute__((visibility("default"))) duet::Backend* duet_cuda_backend() {
  // Never destroyed: the driver may be gone before statics are.
  static auto* const backend = new duet::cuda::CudaBackend();
  return backend;
}
