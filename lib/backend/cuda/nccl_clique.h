// NCCL among GPUs that one process drives: see DeviceSum in lib/backend/backend.h.
#pragma once

#include <nccl.h>

#include <span>
#include <string>
#include <vector>

#include "lib/backend/cuda/cuda_device.h"

namespace duet::cuda {

/// The functions of NCCL that duet calls. It is loaded on first use: hundreds of megabytes that few programs need.
struct NcclCalls {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclCommInitAll) comm_init_all = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;

  /// Throws DeviceError when it is not installed, or is of another major version than duet was built for.
  static const NcclCalls& load();
};

/// ", NCCL 2.28.9", or empty where it is not installed. Only NCCL itself reports its version, so all of it is loaded;
/// duet info and the reports call this, training does not.
std::string nccl_version();

/// One communicator per device, made together. Like the devices, never destroyed. Used by one thread at a time.
class NcclClique {
 public:
  /// Throws DeviceError unless every device has a GPU of its own, and what load() and NCCL throw.
  explicit NcclClique(std::span<CudaDevice* const> devices);

  const std::vector<CudaDevice*>& devices() const { return devices_; }
  /// Every destination = the sum of the parts, each on its device's stream. Throws UsageError while one is recorded.
  void all_reduce(std::span<const Tensor> parts, std::span<const Tensor> destinations);

 private:
  const NcclCalls& nccl_;
  std::vector<CudaDevice*> devices_;
  std::vector<ncclComm_t> communicators_;
};

}  // namespace duet::cuda
