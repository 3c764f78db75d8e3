// Networks that use tensors which they made on cpu:0, in forward or before, on whatever device forward runs.
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "lib/ops/custom.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/support/catch2.h"
#include "tests/user_programs/program.h"

using namespace duet;
using namespace duet_test;

namespace {

Tensor some(const Shape& shape) {
  Tensor tensor = empty(shape);
  for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.data<float>()[i] = 0.1f * static_cast<float>(i % 7);
  return tensor;
}

Tensor places(std::int64_t count) {
  Tensor tensor = empty({count}, DType::i64);
  for (std::int64_t i = 0; i < count; ++i) tensor.data<std::int64_t>()[i] = (i * 3) % 10;
  return tensor;
}

/// An operator that makes its result and its gradient where tensors are made by default.
struct Doubled {
  static constexpr const char* kName = "doubled";
  static constexpr bool kSumsRows = true;
  static Tensor twice(const Tensor& x) {
    const Tensor y = empty(x.shape());
    for (std::int64_t i = 0; i < x.count(); ++i) y.data<float>()[i] = 2 * x.data<float>()[i];
    return y;
  }
  Tensor forward(const ops::Tensors& in) { return twice(in[0]); }
  ops::Tensors backward(const Tensor& dy, const ops::Tensors&, const Tensor&) { return {twice(dy)}; }
};

/// (N, 1, 28, 28) -> log-probabilities (N, 10), by a use of y (N, 10), the square parameter w (10, 10), and the images.
struct Net : nn::Module {
  using Use = std::function<Variable(const Variable& y, const Variable& w, const Variable& x)>;
  explicit Net(Use of) : use(std::move(of)) {
    register_module("body", body);
    register_module("square", square);
    initialise(kSeed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable y = nn::chain(context, x, {flatten, body});
    return ops::log_softmax(square.forward(context, use(y, square.weight(context), x)));
  }
  using Module::forward;
  Use use;
  nn::Flatten flatten;
  nn::Linear body{784, 10}, square{10, 10, false};
};

struct Constant {
  const char* what;
  Net::Use use;
  bool exact = true;
};

std::vector<Constant> constants() {
  const Tensor vector = some({10}), matrix = some({10, 10}), kernel = some({1, 1, 3, 3}), bias = some({1});
  return {{"a kept operand", [=](auto& y, auto&, auto&) { return vector + y * vector - vector / (y * y + 1); }},
          {"a mask of rows",
           [](auto& y, auto&, auto&) {
             return y * full_like(y, {y.size(0), 1}, 0.5f) + y / from_values<float>({1, 1}, {3});
           }},
          {"a kept matrix", [=](auto& y, auto&, auto&) { return ops::matmul(ops::linear(y, matrix, vector), matrix); }},
          {"a product of constants and a parameter",
           [=](auto& y, auto& w, auto&) { return ops::linear(y, matrix, ops::mean(ops::linear(matrix, w, {}), {0})); },
           false},
          {"a first state",
           [](auto& y, auto& w, auto&) {
             const Variable first = ops::tanh(ops::linear(zeros_like(y, {y.size(0), 10}), w, {}) + y);
             return first + ops::sigmoid(zeros({y.size(0), 10}));
           },
           false},
          {"a padding",
           [](auto& y, auto&, auto&) {
             return ops::slice(ops::concat({y, Variable(zeros({y.size(0), 2})), y}), 1, 2, 12);
           }},
          {"a fixed filter",
           [=](auto& y, auto&, auto& x) {
             const Variable seen = ops::conv2d(x, kernel, bias, {3, 3, 1, 1, 1, 1});
             const Variable wide = ops::conv_transpose2d(seen, kernel, bias, {3, 3, 1, 1, 1, 1});
             return y + ops::reshape(ops::mean(wide, {1, 2, 3}), {-1, 1});
           }},
          {"indices of places",
           [](auto& y, auto& w, auto&) { return y + ops::mean(ops::embedding(w, places(10)), {0}); }, false},
          {"a kept table",
           [=](auto& y, auto&, auto&) { return y + ops::embedding(matrix, zeros_like(y, {y.size(0)}, DType::i64)); }},
          {"an operator's result", [](auto& y, auto&, auto&) { return ops::custom(Doubled{}, {y}); }},
          {"targets of a loss in the module", [](auto& y, auto&, auto&) {
             const Variable off = ops::mse_loss(y, zeros(y.shape())) + ops::l1_loss(y, zeros(y.shape()));
             CHECK((ops::cross_entropy(y, places(y.size(0))) + off).device() == y.device());
             return y;
           }}};
}

}  // namespace

TEST_CASE("constants made on cpu:0 serve a network on every CPU device") {
  for (const Constant& constant : constants())
    check({constant.what,
           kAll,
           [&](Run& run) {
             Net model(constant.use);
             data::Loader loader = loader_of(run.size(), run.rank());
             return train(run, model, loader);
           },
           {.exact = constant.exact}});
}
