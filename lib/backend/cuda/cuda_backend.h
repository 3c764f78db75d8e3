// The GPUs as a backend: cuDNN for convolutions, cuBLAS for linear, own kernels for the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>

#include "lib/backend/backend.h"
#include "lib/backend/cuda/cuda_device.h"
#include "lib/backend/cuda/device_table.h"

namespace duet::cuda {

/// An argument of an operator, with its name in the contract.
struct Operand {
  const char* name;
  const Tensor& tensor;
};
/// Throws DeviceError "linear_forward: x is on cuda:0, w on cuda:1" unless all defined operands lie on one device.
void same_device(const char* op, std::initializer_list<Operand> operands);
/// Throws ShapeError when `size` is past what an int holds.
inline int to_int(std::int64_t size, const char* what) {
  require<ShapeError>(size <= std::numeric_limits<int>::max(), "cuda: ", current_operator(), ": ", what, " is ", size,
                      ", expected at most ", std::numeric_limits<int>::max());
  return static_cast<int>(size);
}
inline float* data_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.data<float>() : nullptr; }

/// All GPUs visible to this process. A GPU's context is created on its first use.
class CudaBackend final : public Backend {
 public:
  /// Throws DeviceError with the reason when no GPU can be used.
  CudaBackend();
  ~CudaBackend() override;

  int device_count() const override { return gpus_; }
  std::string describe(Device device) const override;
  std::string libraries() const override;
  void bind_thread(Device device) override;
  void set_threads_per_device(int threads) override;
  int threads_per_device() const override { return 1; }
  Allocator& allocator(Device device) override;
  void synchronize(Device device) override;
  bool shares_memory() const override { return false; }
  void* stream(Device device) override;
  void order(Device device, void* first, void* second) override;
  StepRecorder* recorder(Device device) override;
  /// Throws DeviceError when the environment keeps NVIDIA's libraries from computing so.
  void set_precision(Precision precision) override;
  Precision precision() const override { return settings_.precision; }
  bool has_used_precision() const override { return true; }
  void set_deterministic(bool deterministic) override { settings_.deterministic = deterministic; }
  DeviceUse use(Device device) override;
  bool copies_directly(Device from, Device to) override;

#include "lib/backend/kernel_overrides.inc"

  /// The device, made if this is its first use, and current on the calling thread. `op` is for messages. Throws
  /// DeviceError for a device that does not exist.
  CudaDevice& on(Device device, const char* op = __builtin_FUNCTION());
  CudaDevice& on(const Tensor& tensor, const char* op = __builtin_FUNCTION()) { return on(tensor.device(), op); }

 private:
  int gpus_ = 0;
  Settings settings_;
  DeviceTable devices_;
};

}  // namespace duet::cuda
