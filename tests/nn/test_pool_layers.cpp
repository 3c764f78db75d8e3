// Pooling layers: the values and gradients that torch 2.15.0 gives, and their text.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/nn/layers.h"
#include "lib/ops/ops.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;

namespace {

/// (first + i) * factor % modulus for pixel i, the same in each of 16 channels.
Tensor of_16_channels(std::int64_t height, std::int64_t width, std::int64_t factor, std::int64_t modulus,
                      std::int64_t first) {
  Tensor x = empty({1, 16, height, width});
  const std::int64_t pixels = height * width;
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.data<float>()[i] = static_cast<float>((first + i % pixels) * factor % modulus);
  return x;
}

void check_channels(const Tensor& got, const std::vector<double>& expected) {
  REQUIRE(got.count() == static_cast<std::int64_t>(16 * expected.size()));
  for (std::size_t i = 0; i < 16 * expected.size(); ++i) {
    CAPTURE(i);
    CHECK(static_cast<double>(got.data<float>()[i]) ==
          duet_test::Approx(expected[i % expected.size()]).epsilon(1e-6).margin(1e-6));
  }
}

}  // namespace

// x = (torch.arange(20.) * 7 % 20).view(1, 1, 4, 5); the gradient of the result is 1, 2, 3, ...
TEST_CASE("pooling layers have PyTorch's values and gradients, in every layout") {
  struct Case {
    std::shared_ptr<Module> layer;
    std::vector<double> y, dx;
  };
  const double third = 1.0 / 3, ninth = 1.0 / 9;
  const Case cases[] = {
      {std::make_shared<MaxPool2d>(3, 2, 1), {15, 16, 16, 17, 19, 18}, {0, 0, 0, 0, 0, 1, 0, 0, 5, 0,
                                                                        0, 4, 0, 0, 6, 0, 0, 5, 0, 0}},
      {std::make_shared<MaxPool2d>(3, 2), {17, 18}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0}},
      {std::make_shared<AvgPool2d>(3, 2, 1),
       {24 * ninth, 49 * ninth, 28 * ninth, 61 * ninth, 96 * ninth, 67 * ninth},
       {ninth,     3 * ninth,  2 * ninth, 5 * ninth, 3 * ninth,  5 * ninth, 12 * ninth,
        7 * ninth, 16 * ninth, 9 * ninth, 4 * ninth, 9 * ninth,  5 * ninth, 11 * ninth,
        6 * ninth, 4 * ninth,  9 * ninth, 5 * ninth, 11 * ninth, 6 * ninth}},
      {std::make_shared<AvgPool2d>(3, 2, 1, false),
       {6, 49.0 / 6, 7, 61.0 / 6, 96 * ninth, 67.0 / 6},
       {.25,      .5833333,  third,    1.0833333, .75, .9166667, 1.8055556, .8888889, 2.6388889, 1.75,
        .6666667, 1.2222222, .5555556, 1.5555556, 1,   .6666667, 1.2222222, .5555556, 1.5555556, 1}},
      {std::make_shared<AdaptiveAvgPool2d>(2, 3),
       {6, 49.0 / 6, 7, 11, 11.5, 12},
       {.25, .5833333,  third,    1.0833333, .75, .25, .5833333,  third,    1.0833333, .75,
        1,   1.8333333, .8333333, 2.3333333, 1.5, 1,   1.8333333, .8333333, 2.3333333, 1.5}},
      {std::make_shared<AdaptiveAvgPool2d>(1, 1), {9.5}, std::vector<double>(20, .05)}};
  for (const Case& c : cases)
    for (const Layout layout : {Layout::plain, Layout::blocked8, Layout::blocked16}) {
      CAPTURE(c.layer->str(), name(layout));
      const Variable x(of_16_channels(4, 5, 7, 20, 0), true);
      Context context;
      const Variable y = ops::to_plain(c.layer->forward(context, ops::to_layout(x, layout)));
      check_channels(y.value(), c.y);
      y.backward(of_16_channels(y.shape()[2], y.shape()[3], 1, 1000, 1));
      check_channels(x.grad(), c.dx);
    }
}

TEST_CASE("pooling layers print as PyTorch's") {
  CHECK(MaxPool2d(3, 2, 1).str() == "MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)");
  CHECK(AvgPool2d(2).str() == "AvgPool2d(kernel_size=2, stride=2, padding=0)");
  CHECK(AvgPool2d(3, 2, 1).str() == "AvgPool2d(kernel_size=3, stride=2, padding=1)");
  CHECK(AdaptiveAvgPool2d(6, 6).str() == "AdaptiveAvgPool2d(output_size=(6, 6))");
}

TEST_CASE("pooling layers refuse windows that make no sense, and name themselves") {
  CHECK_THROWS_AS(AdaptiveAvgPool2d(0, 1), UsageError);
  CHECK_THROWS_WITH(AdaptiveAvgPool2d(1, -2), "AdaptiveAvgPool2d: an output of 1x-2 pixels, expected 1x1 or more");
  const Tensor x = zeros({1, 1, 4, 4});
  CHECK_THROWS_AS(MaxPool2d(3, 2, 2)(x), ShapeError);
  CHECK_THROWS_AS(MaxPool2d(2, -1)(x), ShapeError);
  CHECK_THROWS_WITH(AvgPool2d(5)(x), duet_test::ContainsSubstring("AvgPool2d: avg_pool2d: a window of 5x5"));
}
