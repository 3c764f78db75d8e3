// CheckFinite: no infinity and no NaN gets past it, not even one that a kernel skips with zeros.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "lib/autograd/check_finite.h"
#include "lib/autograd/node.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/autograd/branches.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

void step(nn::SimpleCNN& model, const Tensor& images) {
  const Tensor labels = from_values<std::int64_t>({2}, {3, 7});
  model.parameters().zero_grad();
  ops::nll_loss(model(Variable(images)), labels).backward();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Passes its input on; its backward gives a gradient of zeros with one NaN.
struct SpoilingNode final : Node {
  const char* name() const override { return "spoiling"; }
  void backward(const Gradients& gradients) override {
    gradients.inputs[0] = zeros(gradients.outputs[0].shape());
    gradients.inputs[0].data<float>()[5] = kNan;
  }
};

}  // namespace

TEST_CASE("a finite step passes, and a number that is not finite names operator and parameter") {
  nn::SimpleCNN model(1);
  const CheckFinite check;
  const Tensor images = zeros({2, 1, 28, 28});
  CHECK(error_of<NumericError>([&] { step(model, images); }).empty());
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    images.data<float>()[784 + 400] = bad;
    CHECK(contains(error_of<NumericError>([&] { step(model, images); }), "conv_pool_relu: argument 1 is not finite"));
    images.data<float>()[784 + 400] = 0;
    for (int slot = 0; slot < model.parameters().slot_count(); ++slot) {
      const Tensor value = model.parameters().value(slot);
      float& last = value.data<float>()[value.count() - 1];
      const float before = last;
      last = bad;
      const std::string& name = model.parameters().slots()[static_cast<std::size_t>(slot)].name;
      CHECK(contains(error_of<NumericError>([&] { step(model, images); }), "(" + name + ") is not finite"));
      last = before;
    }
  }
  CHECK(error_of<NumericError>([&] { step(model, images); }).empty());
}

TEST_CASE("a gradient whose products the kernel skips as zeros is found") {
  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  const Variable w(zeros({16, 16, 3, 3}), true), b(zeros({16}), true), x(zeros({1, 16, 4, 4}), true);
  backend(b.value()).fill(b.value(), -1);  // so relu stops every output
  const auto backward = [&] {
    const Variable y = ops::conv_pool_relu(x, w, b, {.conv = conv, .pool = pool, .dropout = {}}, true);
    auto node = make_pooled<SpoilingNode>();
    node->add_edge(y.edge());
    const Variable spoiled(y.value(), node);
    const BackwardRoot root{spoiled.edge(), zeros(y.shape())};
    run_backward({&root, 1});
  };
  backward();
  CHECK(numbers(w.grad())[0] == 0);
  const CheckFinite check;
  CHECK(contains(error_of<NumericError>(backward), "the backward of spoiling gives conv_pool_relu is not finite"));
}

TEST_CASE("a sum that overflows to -infinity is found, where the fused relu would hide it") {
  const Variable x(from_values<float>({1, 2}, {3e38f, 3e38f})), w(from_values<float>({1, 2}, {-1, -1}), true);
  const auto forward = [&] { return ops::linear_relu_dropout(x, w, Variable(), {}); };
  CHECK(numbers(forward().value())[0] == 0);
  const CheckFinite check;
  CHECK(contains(error_of<NumericError>(forward), "linear: the result is not finite"));
}

TEST_CASE("a result that overflows names its operator, and nothing is checked once CheckFinite is gone") {
  const Variable large = leaf({3e38f, 1});
  {
    const CheckFinite check;
    CHECK(contains(error_of<NumericError>([&] { ops::add(large, large); }), "add: the result is not finite"));
  }
  CHECK(std::isinf(numbers(ops::add(large, large).value())[0]));
  const CheckFinite off(false);
  CHECK_FALSE(checks_finite());
}
