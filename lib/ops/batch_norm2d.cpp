// Batch norm.
#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct BatchNorm2dGradient {
  static constexpr const char* kName = "batch_norm2d";
  void backward(const Gradients& g) const {
    const Tensor dx = g.wanted(0) ? g.place(0, x.shape(), x.device()) : Tensor();
    backend(x).batch_norm2d_backward(x, g.outputs[0], weight, mean, inverse_std, dx,
                                     g.place(1, weight.shape(), x.device()), g.place(2, weight.shape(), x.device()),
                                     training, others);
  }
  Tensor x, weight, mean, inverse_std;
  bool training = true;
  BatchSums* others = nullptr;
};

}  // namespace

Variable batch_norm2d(const Variable& input, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                      const Tensor& running_var, const BatchNorm2dOptions& options) {
  require_one_device("batch_norm2d", {&input, &weight, &bias});
  require_rank("batch_norm2d", input, 4, "(N, C, H, W)");
  const Shape channels = {input.shape()[1]};
  for (const Shape& shape : {weight.shape(), bias.shape(), running_mean.shape(), running_var.shape()})
    require<ShapeError>(shape == channels, "batch_norm2d: per-channel tensor ", shape, " for input ", input.shape());
  require<ShapeError>(!options.training || options.others != nullptr || input.shape().count() > channels[0],
                      "batch_norm2d: expected more than 1 value per channel when training, got input ", input.shape());
  const Variable x = to_plain(input);
  const Tensor y = result_of(x, x.shape());
  const Tensor mean = empty(channels, DType::f32, x.device()), inverse_std = empty(channels, DType::f32, x.device());
  backend(y).batch_norm2d_forward(x.value(), weight.value(), bias.value(), running_mean, running_var, mean, inverse_std,
                                  y, options.training, options.momentum, options.eps, options.others);
  return record(y, {&x, &weight, &bias}, [&] {
    return BatchNorm2dGradient{x.value(), weight.value(), mean, inverse_std, options.training, options.others};
  });
}

}  // namespace duet::ops
