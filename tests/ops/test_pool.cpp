// Average pooling against the reference and PyTorch's numbers, over random shapes and all layouts; what it refuses.
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

std::vector<float> values_of(const Tensor& tensor) {
  const auto values = tensor.span<float>();
  return {values.begin(), values.end()};
}

Tensor counted(const Shape& shape) {
  Tensor x = empty(shape);
  for (std::int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = static_cast<float>(i);
  return x;
}

}  // namespace

TEST_CASE("avg_pool2d equals the reference, with and without the padding in the mean") {
  Mt19937 generator(41);
  for (int i = 0; i < 40; ++i) {
    const Shape shape = {generator.randint(1, 5), random_channels(generator), generator.randint(3, 20),
                         generator.randint(3, 20)};
    const std::int64_t kernel_h = generator.randint(1, 6), kernel_w = generator.randint(1, 6);
    const Window2d window = {kernel_h,
                             kernel_w,
                             generator.randint(1, 4),
                             generator.randint(1, 4),
                             generator.randint(0, kernel_h / 2 + 1),
                             generator.randint(0, kernel_w / 2 + 1)};
    if (!window.fits(shape[2], shape[3])) continue;
    const bool padding = generator.randint(0, 2) > 0;
    const Array x = random_array(shape, generator), y = reference::avg_pool2d(x, window, padding);
    const Array dy = random_array(y.shape, generator), dx = reference::avg_pool2d_backward(x, dy, window, padding);
    for (const Layout layout : layouts_of(shape[1])) {
      CAPTURE(i, shape.str(), window.kernel_h, window.kernel_w, window.stride_h, window.stride_w, window.pad_h,
              window.pad_w, padding, name(layout));
      const Variable vx = leaf(x), vy = ops::avg_pool2d(ops::to_layout(vx, layout), window, padding);
      CHECK(vy.value().layout() == layout);
      CHECK(relative_error(vy.value(), y) < kTolerance);
      backward(vy, dy);
      CHECK(relative_error(vx.grad(), dx) < kTolerance);
    }
  }
}

TEST_CASE("adaptive_avg_pool2d equals the reference for fewer, as many and more outputs than pixels") {
  Mt19937 generator(42);
  for (int i = 0; i < 40; ++i) {
    const Shape shape = {generator.randint(1, 5), random_channels(generator), generator.randint(1, 20),
                         generator.randint(1, 20)};
    const std::int64_t height = i % 3 ? generator.randint(1, 9) : 1, width = i % 3 ? generator.randint(1, 9) : 1;
    const Array x = random_array(shape, generator), y = reference::adaptive_avg_pool2d(x, height, width);
    const Array dy = random_array(y.shape, generator), dx = reference::adaptive_avg_pool2d_backward(x, dy);
    for (const Layout layout : layouts_of(shape[1])) {
      CAPTURE(i, shape.str(), height, width, name(layout));
      const Variable vx = leaf(x), vy = ops::adaptive_avg_pool2d(ops::to_layout(vx, layout), height, width);
      CHECK(relative_error(vy.value(), y) < kTolerance);
      backward(vy, dy);
      CHECK(relative_error(vx.grad(), dx) < kTolerance);
    }
  }
}

TEST_CASE("an adaptive pool to the size of its input is the input itself") {
  const Variable x(zeros({2, 3, 6, 5}), true);
  CHECK(ops::adaptive_avg_pool2d(x, 6, 5).value().same_memory(x.value()));
  CHECK_FALSE(ops::adaptive_avg_pool2d(x, 5, 6).value().same_memory(x.value()));
}

// x = torch.arange(20.).view(1, 1, 4, 5), torch 2.15.0.
TEST_CASE("average pools have PyTorch's numbers") {
  const Variable x(counted({1, 1, 4, 5}));
  const Window2d window = {3, 3, 2, 2, 1, 1};
  CHECK(values_of(ops::avg_pool2d(x, window).value()) == std::vector<float>{12.0f / 9, 3, 24.0f / 9, 7, 12, 9});
  CHECK(values_of(ops::avg_pool2d(x, window, false).value()) == std::vector<float>{3, 4.5f, 6, 10.5f, 12, 13.5f});
  CHECK(values_of(ops::adaptive_avg_pool2d(x, 3, 2).value()) ==
        std::vector<float>{3.5f, 5.5f, 8.5f, 10.5f, 13.5f, 15.5f});
  CHECK(values_of(ops::adaptive_avg_pool2d(x, 1, 1).value()) == std::vector<float>{9.5f});
}

TEST_CASE("average pools let NaN and infinity through to their windows alone, and gradients likewise") {
  const Variable x(from_values<float>({1, 1, 2, 6}, {kNan, 1, kInfinity, 2, 3, 4, 1, 1, -1, 5, 5, 6}), true);
  const Variable y = ops::avg_pool2d(x, {2, 2, 2, 2, 0, 0});
  CHECK(std::isnan(y.value().data<float>()[0]));
  CHECK(y.value().data<float>()[1] == kInfinity);
  CHECK(y.value().data<float>()[2] == 4.5f);
  y.backward(from_values<float>({1, 1, 1, 3}, {4, 8, kNan}));
  const std::vector<float> dx = values_of(x.grad());
  CHECK(std::vector<float>(dx.begin(), dx.begin() + 4) == std::vector<float>{1, 1, 2, 2});
  CHECK(std::isnan(dx[4]));
}

TEST_CASE("average pools of no rows have no rows") {
  CHECK(ops::avg_pool2d(Variable(zeros({0, 16, 4, 4})), {2, 2, 2, 2, 0, 0}).shape() == Shape{0, 16, 2, 2});
  CHECK(ops::adaptive_avg_pool2d(Variable(zeros({0, 16, 4, 4})), 1, 1).shape() == Shape{0, 16, 1, 1});
}

TEST_CASE("average pools pass the stamp of their input on") {
  const Rows stamp = {3, 8, 32};
  Tensor x = zeros({4, 16, 6, 6});
  x.set_stamp(stamp);
  CHECK(ops::avg_pool2d(Variable(x), {2, 2, 2, 2, 0, 0}).value().stamp() == stamp);
  CHECK(ops::adaptive_avg_pool2d(Variable(x), 1, 1).value().stamp() == stamp);
}

TEST_CASE("average pools refuse windows and sizes that do not suit the input") {
  const Variable x(zeros({2, 3, 4, 4}));
  CHECK_THROWS_AS(ops::avg_pool2d(x, {5, 2, 1, 1, 0, 0}), ShapeError);
  CHECK_THROWS_WITH(ops::avg_pool2d(x, {5, 2, 1, 1, 0, 0}),
                    "avg_pool2d: a window of 5x2, padding 0x0 does not suit input [2, 3, 4, 4]");
  CHECK_THROWS_AS(ops::avg_pool2d(x, {2, 2, 2, 2, 2, 0}), ShapeError);
  CHECK_THROWS_AS(ops::avg_pool2d(x, {2, 2, 0, 2, 0, 0}), ShapeError);
  CHECK_THROWS_AS(ops::avg_pool2d(x, {1 << 20, 1 << 20, 1, 1, 1 << 19, 1 << 19}), ShapeError);
  CHECK_THROWS_WITH(ops::avg_pool2d(Variable(zeros({2, 3})), {2, 2, 2, 2, 0, 0}),
                    "avg_pool2d: got shape [2, 3], expected (N, C, H, W)");
  CHECK_THROWS_WITH(ops::avg_pool2d(Variable(zeros({2, 3, 4, 4}, DType::f16)), {2, 2, 2, 2, 0, 0}),
                    "avg_pool2d: got f16, expected f32");
  CHECK_THROWS_WITH(ops::adaptive_avg_pool2d(x, 0, 1),
                    "adaptive_avg_pool2d: 0x1 outputs for input [2, 3, 4, 4], expected 1 or more pixels of both");
  CHECK_THROWS_AS(ops::adaptive_avg_pool2d(Variable(zeros({2, 3, 0, 4})), 1, 1), ShapeError);
  CHECK_THROWS_AS(ops::adaptive_avg_pool2d(Variable(zeros({2, 3, 4})), 1, 1), ShapeError);
}
