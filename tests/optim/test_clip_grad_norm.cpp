#include <cmath>
#include <limits>

#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/optim/clip_grad_norm.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// y = w x + b with these gradients; `bias` false leaves b without one.
struct Model : nn::Linear {
  Model(float of_weight, float of_bias, bool bias = true) : nn::Linear(1, 1) {
    gradient(0) = of_weight;
    parameters().set_filled(0);
    gradient(1) = of_bias;
    if (bias) parameters().set_filled(1);
  }
  float& gradient(int slot) { return parameters().gradient(slot).span<float>()[0]; }
};

}  // namespace

TEST_CASE("clip_grad_norm scales all gradients by the norm of all") {
  Model model(3, -4);
  CHECK(optim::clip_grad_norm(model, 2.0) == 5.0);
  const auto factor = static_cast<float>(2.0 / (5.0 + 1e-6));
  CHECK(model.gradient(0) == 3 * factor);
  CHECK(model.gradient(1) == -4 * factor);
}

TEST_CASE("clip_grad_norm leaves smaller and missing gradients alone") {
  Model model(3, -4);
  CHECK(optim::clip_grad_norm(model, 5.1) == 5.0);
  CHECK(model.gradient(0) == 3.0f);
  Model half(3, -4, false);
  CHECK(optim::clip_grad_norm(half, 1.5) == 3.0);
  CHECK(half.gradient(1) == -4.0f);
}

TEST_CASE("clip_grad_norm sums long gradients in double") {
  nn::Linear model(1000, 1003, false);
  for (float& value : model.parameters().gradients().span<float>()) value = 0.1f;
  model.parameters().set_filled(0);
  const double expected = double{0.1f} * std::sqrt(1003000.0);
  CHECK(std::abs(optim::clip_grad_norm(model, 1e9) / expected - 1) < 1e-10);
}

TEST_CASE("clip_grad_norm reports gradients that are not finite where asked") {
  Model model(3, kNaN);
  CHECK_THROWS_AS(optim::clip_grad_norm(model, 1.0, true), NumericError);
  CHECK(model.gradient(0) == 3.0f);
  CHECK(std::isnan(optim::clip_grad_norm(model, 1.0)));
  CHECK(std::isnan(model.gradient(0)));
  CHECK_THROWS_AS(optim::clip_grad_norm(model, 0.0), UsageError);
}
