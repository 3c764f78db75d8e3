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

  void copy_2d(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
               std::size_t width, std::size_t rows, Device device) override;
  void to_plain(const Tensor& x, const Tensor& y) override;
  void from_plain(const Tensor& x, const Tensor& y) override;

  Layout conv2d_layout(const Shape& x, const Shape& w) const override;
  void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                      const Window2d& window) override;
  void conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) override;
  void conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                               const Window2d& window) override;
  void max_pool2d_forward(const Tensor& x, const Tensor& y, const Tensor& index, const Window2d& window) override;
  void max_pool2d_backward(const Tensor& dy, const Tensor& index, const Tensor& dx, const Window2d& window) override;
  void avg_pool2d_forward(const Tensor& x, const Tensor& y, const AveragePool& pool) override;
  void avg_pool2d_backward(const Tensor& dy, const Tensor& dx, const AveragePool& pool) override;
  void conv_pool_relu_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y, const Tensor& index,
                              const ConvPoolRelu& op) override;
  void conv_pool_relu_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                               const Tensor& dx, const Tensor& dw, const Tensor& db, const ConvPoolRelu& op) override;

  void linear_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) override;
  void linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dx, const Tensor& dw,
                       const Tensor& db) override;
  void matmul(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed, const Tensor& y) override;
  void linear_relu_dropout_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                   const DropoutKey& dropout) override;
  void linear_relu_dropout_backward(const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& w,
                                    const Tensor& dx, const Tensor& dw, const Tensor& db,
                                    const DropoutKey& dropout) override;
  void linear_log_softmax_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) override;

  void relu_forward(const Tensor& x, const Tensor& y) override;
  void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) override;
  void dropout_mask(const Tensor& mask, const DropoutKey& key) override;
  void dropout_apply(const Tensor& x, const Tensor& mask, float scale, const Tensor& y) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override;
  void pointwise(Pointwise f, const Shape& shape, const PointwiseInputs& inputs, const Strided& y) override;
  void sum(const Tensor& x, bool over_rows, const Tensor& y) override;
  void gather_rows(const Tensor& table, const Tensor& indices, const Tensor& y) override;
  void sum_gathered_rows(const Tensor& dy, const Tensor& indices, const Tensor& dtable) override;
  void scale(const Tensor& x, float factor) override;
  void fill(const Tensor& x, float value) override;
  void increment(const Tensor& counter) override;

  void batch_norm2d_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                            const Tensor& running_mean, const Tensor& running_var, const Tensor& mean,
                            const Tensor& inverse_std, const Tensor& y, const BatchNorm2dOptions& options) override;
  void batch_norm2d_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& weight,
                             const Tensor& bias, const Tensor& mean, const Tensor& inverse_std, const Tensor& dx,
                             const Tensor& dresidual, const Tensor& dweight, const Tensor& dbias,
                             const BatchNorm2dOptions& options) override;

  void log_softmax_forward(const Tensor& x, const Tensor& y) override;
  void log_softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) override;
  void softmax_forward(const Tensor& x, const Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) override;
  void nll_loss_forward(const Tensor& x, const Tensor& labels, float factor, const Tensor& loss) override;
  void nll_loss_backward(const Tensor& dloss, const Tensor& labels, float factor, const Tensor& dx) override;
  void log_softmax_nll_forward(const Tensor& y, const Tensor& labels, float factor, const Tensor& loss,
                               float gradient_factor, const Tensor& dx) override;
  void log_softmax_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float factor,
                                const Tensor& dx) override;
  void smoothed_nll_forward(const Tensor& y, const Tensor& labels, float smoothing, float factor,
                            const Tensor& loss) override;
  void smoothed_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float smoothing, float factor,
                             const Tensor& dx) override;
  void mse_loss_forward(const Tensor& x, const Tensor& target, float factor, const Tensor& loss) override;
  void mse_loss_backward(const Tensor& dloss, const Tensor& x, const Tensor& target, float factor,
                         const Tensor& dx) override;
  std::int64_t count_in_top(const Tensor& x, const Tensor& labels, std::int64_t k) override;

  void sgd_step(const Tensor& value, const Tensor& gradient, const Tensor& momentum, const SGDRule& rule, int share,
                int shares) override;
  void adam_step(const Tensor& value, const Tensor& gradient, const Tensor& first, const Tensor& second,
                 const AdamRule& rule, int share, int shares) override;
  void sum_devices(std::span<const Tensor> parts, const Tensor& destination, bool accumulate, int share,
                   int shares) override;
  void all_reduce_devices(std::span<const Tensor> parts, std::span<const Tensor> destinations) override;
  double sum_of_squares(const Tensor& x) override;
  void gather_images(const Tensor& rows, const Tensor& labels, const Tensor& indices, float mean, float deviation,
                     const Tensor& y, const Tensor& picked) override;

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
