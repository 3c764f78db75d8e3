// Max and average pooling.
#include <cstdint>
#include <tuple>

#include "lib/backend/average_pool.h"
#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct MaxPool2dGradient {
  static constexpr const char* kName = "max_pool2d";
  void backward(const Gradients& g) const {
    Tensor dy = g.outputs[0];
    dy.set_stamp(index.stamp());
    backend(dy).max_pool2d_backward(dy, index, g.place(0, shape, dy.device(), index.layout()), window);
  }
  auto saved() const { return std::tie(index); }
  SavedTensor index;
  Shape shape;
  Window2d window;
};

struct AvgPool2dGradient {
  static constexpr const char* kName = "avg_pool2d";
  void backward(const Gradients& g) const {
    Tensor dy = g.outputs[0];
    dy.set_stamp(stamp);
    backend(dy).avg_pool2d_backward(dy, g.place(0, shape, dy.device(), dy.layout()), pool);
  }
  AveragePool pool;
  Shape shape;
  Rows stamp;
};

void require_windows(const char* op, const Variable& x, const Window2d& window, std::int64_t most_pixels) {
  require_rank(op, x, 4, "(N, C, H, W)");
  require<ShapeError>(window.kernel_h > 0 && window.kernel_w > 0 && window.stride_h > 0 && window.stride_w > 0 &&
                          window.kernel_h <= most_pixels / window.kernel_w && 2 * window.pad_h <= window.kernel_h &&
                          2 * window.pad_w <= window.kernel_w && window.pad_h >= 0 && window.pad_w >= 0 &&
                          window.fits(x.shape()[2], x.shape()[3]),
                      op, ": a window of ", window.kernel_h, "x", window.kernel_w, ", padding ", window.pad_h, "x",
                      window.pad_w, " does not suit input ", x.shape());
}

Variable average(const Variable& x, const AveragePool& pool) {
  const Tensor y = result_of(x, {x.shape()[0], x.shape()[1], pool.h.out, pool.w.out}, x.value().layout());
  backend(y).avg_pool2d_forward(x.value(), y, pool);
  return record(y, {&x}, [&] { return AvgPool2dGradient{pool, x.shape(), x.value().stamp()}; });
}

}  // namespace

Variable max_pool2d(const Variable& x, const Window2d& window) {
  constexpr std::int64_t kMostPixels = 254;
  require_windows("max_pool2d", x, window, kMostPixels);
  const Layout layout = x.value().layout();
  const Shape shape = {x.shape()[0], x.shape()[1], window.out_h(x.shape()[2]), window.out_w(x.shape()[3])};
  const Tensor y = result_of(x, shape, layout);
  Tensor index = empty(shape, DType::u8, x.device(), layout);
  index.set_stamp(x.value().stamp());
  backend(y).max_pool2d_forward(x.value(), y, index, window);
  return record(y, {&x}, [&] { return MaxPool2dGradient{{index, "index of the maxima"}, x.shape(), window}; });
}

Variable avg_pool2d(const Variable& x, const Window2d& window, bool count_include_pad) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 24;  // whole numbers of floats
  require_windows("avg_pool2d", x, window, kMostPixels);
  const std::int64_t height = x.shape()[2], width = x.shape()[3];
  return average(
      x, {.h = {height, window.out_h(height), window.kernel_h, window.stride_h, window.pad_h, count_include_pad},
          .w = {width, window.out_w(width), window.kernel_w, window.stride_w, window.pad_w, count_include_pad}});
}

Variable adaptive_avg_pool2d(const Variable& x, std::int64_t height, std::int64_t width) {
  constexpr const char* kOp = "adaptive_avg_pool2d";
  require_rank(kOp, x, 4, "(N, C, H, W)");
  require<ShapeError>(height > 0 && width > 0 && x.shape()[2] > 0 && x.shape()[3] > 0, kOp, ": ", height, "x", width,
                      " outputs for input ", x.shape(), ", expected 1 or more pixels of both");
  if (x.shape()[2] == height && x.shape()[3] == width) return x;
  return average(x, {.h = {.size = x.shape()[2], .out = height}, .w = {.size = x.shape()[3], .out = width}});
}

}  // namespace duet::ops
