// What operators refuse, and how they say so.
#include <cstdint>
#include <functional>
#include <string>

#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;

namespace {

const Window2d kConv = {3, 3, 1, 1, 1, 1}, kPool = {2, 2, 2, 2, 0, 0};

Variable of(const Shape& shape) { return Variable(zeros(shape)); }
Variable bytes(const Shape& shape) { return Variable(zeros(shape, DType::u8)); }
const std::string kRegister = ", expected one device: register a tensor with gradients as a parameter of the module";
Variable leaf(const Shape& shape) { return Variable(zeros(shape), true); }
/// The first on cpu:1.
Variable elsewhere(const Shape& shape) { return Variable(zeros(shape).to({DeviceKind::cpu, 1})); }

}  // namespace

#define CHECK_ERROR(call, type, text) \
  do {                                \
    CHECK_THROWS_AS(call, type);      \
    CHECK_THROWS_WITH(call, text);    \
  } while (0)

TEST_CASE("conv2d names both shapes that disagree") {
  const Variable x = of({2, 3, 8, 8}), w = of({4, 3, 3, 3}), b = of({4});
  CHECK_ERROR(ops::conv2d(of({2, 5, 8, 8}), w, b, kConv), ShapeError,
              "conv2d: input [2, 5, 8, 8] has 5 channels, weights [4, 3, 3, 3] expect 3");
  CHECK_ERROR(ops::conv2d(of({3, 8, 8}), w, b, kConv), ShapeError,
              "conv2d: got shape [3, 8, 8], expected (N, C, H, W)");
  CHECK_ERROR(ops::conv2d(Variable(), w, b, kConv), ShapeError, "conv2d: got shape of nothing, expected (N, C, H, W)");
  CHECK_ERROR(ops::conv2d(bytes({2, 3, 8, 8}), w, b, kConv), ShapeError, "conv2d: got u8, expected f32");
  CHECK_ERROR(ops::conv2d(x, of({4, 3}), b, kConv), ShapeError, "conv2d: got shape [4, 3], expected (K, C, R, S)");
  CHECK_ERROR(ops::conv2d(x, w, of({5}), kConv), ShapeError, "conv2d: bias [5], expected [4]");
  CHECK_ERROR(ops::conv2d(x, w, b, kPool), ShapeError, "conv2d: kernel size 2x2 for weights [4, 3, 3, 3]");
  CHECK_ERROR(ops::conv2d(of({2, 3, 2, 2}), w, b, {3, 3, 1, 1, 0, 0}), ShapeError,
              "conv2d: a kernel of 3x3 does not fit into input [2, 3, 2, 2]");
  CHECK_ERROR(ops::conv2d(x, w, b, {3, 3, 0, 1, 0, 0}), ShapeError,
              "conv2d: a kernel of 3x3 does not fit into input [2, 3, 8, 8]");
  CHECK_ERROR(ops::conv2d(x, w, b, kConv, 2), ShapeError,
              "conv2d: input [2, 3, 8, 8] has 3 channels, weights [4, 3, 3, 3] expect 3 for each of 2 groups");
  CHECK_ERROR(ops::conv2d(of({2, 9, 8, 8}), w, b, kConv, 3), ShapeError,
              "conv2d: 4 output channels do not divide into 3 groups");
  CHECK_ERROR(ops::conv2d(x, w, b, kConv, 0), ShapeError, "conv2d: 4 output channels do not divide into 0 groups");
  CHECK_ERROR(ops::conv2d(of({2, 0, 8, 8}), of({4, 0, 3, 3}), b, kConv), ShapeError,
              "conv2d: input [2, 0, 8, 8] has 0 channels, weights [4, 0, 3, 3] expect 0");
  CHECK_ERROR(ops::conv2d(leaf({2, 3, 8, 8}), elsewhere({4, 3, 3, 3}), b, kConv), DeviceError,
              "conv2d: arguments lie on cpu:1 and cpu:0" + kRegister);
}

TEST_CASE("conv_pool_relu checks the convolution, its windows and what is left to pool") {
  const Variable x = of({2, 8, 8, 8}), w = of({16, 8, 3, 3}), b = of({16});
  const auto run = [&](const Variable& image, const Window2d& pool, const Variable& bias) {
    return ops::conv_pool_relu(image, w, bias, {.conv = kConv, .pool = pool, .dropout = {}});
  };
  CHECK_ERROR(run(of({2, 3, 8, 8}), kPool, b), ShapeError,
              "conv_pool_relu: input [2, 3, 8, 8] has 3 channels, weights [16, 8, 3, 3] expect 8");
  CHECK_ERROR(run(x, kPool, Variable()), ShapeError, "conv_pool_relu: needs a bias");
  CHECK_ERROR(run(x, {3, 3, 2, 2, 0, 0}, b), ShapeError,
              "conv_pool_relu: pool windows must tile, got kernel 3x3 and stride 2x2");
  CHECK_THROWS_AS(run(x, {2, 2, 2, 2, 1, 1}, b), ShapeError);
  CHECK_THROWS_AS(run(x, {16, 16, 16, 16, 0, 0}, b), ShapeError);
  CHECK_THROWS_AS(run(x, {0, 0, 0, 0, 0, 0}, b), ShapeError);
  // One pixel short of a window: the division that gives the output's size rounds towards zero.
  CHECK_THROWS_AS(run(of({2, 8, 1, 1}), kPool, b), ShapeError);
  CHECK_THROWS_AS(run(of({2, 8, 8, 1}), kPool, b), ShapeError);
  CHECK_THROWS_AS(ops::conv_pool_relu(x, w, b, {.conv = kConv, .pool = kPool, .dropout = {.p = 1.0f}}), UsageError);
}

TEST_CASE("max_pool2d refuses windows that do not suit the input") {
  CHECK_ERROR(ops::max_pool2d(of({2, 3, 1, 4}), kPool), ShapeError,
              "max_pool2d: a window of 2x2, padding 0x0 does not suit input [2, 3, 1, 4]");
  CHECK_ERROR(ops::max_pool2d(of({2, 3, 4, 4}), {2, 2, 2, 2, 2, 0}), ShapeError,
              "max_pool2d: a window of 2x2, padding 2x0 does not suit input [2, 3, 4, 4]");
  CHECK_THROWS_AS(ops::max_pool2d(of({2, 3, 4, 4}), {2, 2, 0, 2, 0, 0}), ShapeError);
  CHECK_THROWS_AS(ops::max_pool2d(of({2, 3, 4, 4}), {2, 2, 2, 2, -1, 0}), ShapeError);
  CHECK_THROWS_AS(ops::max_pool2d(of({2, 3, 20, 20}), {16, 16, 1, 1, 0, 0}), ShapeError);
  CHECK_ERROR(ops::max_pool2d(of({2, 3}), kPool), ShapeError, "max_pool2d: got shape [2, 3], expected (N, C, H, W)");
}

TEST_CASE("linear, log_softmax and flatten name what they got") {
  CHECK_ERROR(ops::linear(of({2, 4}), of({3, 5}), Variable()), ShapeError,
              "linear: input [2, 4] and weights [3, 5] disagree about the number of inputs");
  CHECK_ERROR(ops::linear(of({2, 5}), of({3, 5}), of({2})), ShapeError, "linear: bias [2], expected [3]");
  CHECK_ERROR(ops::linear(of({2, 5, 1}), of({3, 5}), Variable()), ShapeError,
              "linear: input [2, 5, 1] and weights [3, 5] disagree about the number of inputs");
  CHECK_ERROR(ops::linear(of({5}), of({3, 5}), Variable()), ShapeError, "linear: got shape [5], expected (N, ..., I)");
  CHECK_ERROR(ops::linear(leaf({2, 5}), elsewhere({3, 5}), Variable()), DeviceError,
              "linear: arguments lie on cpu:1 and cpu:0" + kRegister);
  CHECK_ERROR(ops::linear_relu_dropout(of({2, 4}), of({3, 5}), Variable(), {}), ShapeError,
              "linear_relu_dropout: input [2, 4] and weights [3, 5] disagree about the number of inputs");
  CHECK_ERROR(ops::linear_relu_dropout(of({2, 5}), of({3, 5}), Variable(), {.p = 1.0f}), UsageError,
              "linear_relu_dropout: probability 1, expected 0 <= p < 1");
  CHECK_ERROR(ops::log_softmax(of({2})), ShapeError, "log_softmax: got shape [2], expected (N, C)");
  CHECK_ERROR(ops::flatten(of({})), ShapeError, "flatten: got a scalar, expected (N, ...)");
}

TEST_CASE("add, relu, dropout and flatten refuse other dtypes and nothing") {
  CHECK_ERROR(ops::add(of({2, 3}), of({3, 2})), ShapeError,
              "add: shapes [2, 3] and [3, 2] differ in dimension -2, expected equal sizes or 1");
  CHECK_ERROR(ops::add(leaf({2}), elsewhere({2})), DeviceError, "add: arguments lie on cpu:1 and cpu:0" + kRegister);
  CHECK_ERROR(ops::add(of({2}), bytes({2})), ShapeError, "add: got u8, expected f32");
  CHECK_ERROR(ops::relu(bytes({2})), ShapeError, "relu: got u8, expected f32");
  CHECK_ERROR(ops::dropout(bytes({2}), DropoutKey{0, 0, 0, 0.5f}), ShapeError, "dropout: got u8, expected f32");
  CHECK_ERROR(ops::relu(Variable()), ShapeError, "relu: got nothing, expected a tensor");
  CHECK_ERROR(ops::add(of({2}), Variable()), ShapeError, "add: got nothing, expected a tensor");
  CHECK_ERROR(ops::flatten(Variable()), ShapeError, "flatten: got nothing, expected a tensor");
  CHECK_ERROR(ops::dropout(Variable(), DropoutKey{0, 0, 0, 0.5f}), ShapeError,
              "dropout: got nothing, expected a tensor");
  CHECK_ERROR(ops::dropout(of({2}), DropoutKey{0, 0, 0, 1.0f}), UsageError,
              "dropout: probability 1, expected 0 <= p < 1");
  CHECK_THROWS_AS(ops::dropout(of({2}), DropoutKey{0, 0, 0, -0.5f}), UsageError);
}

TEST_CASE("no operator takes 16-bit numbers, as input or as parameter") {
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  const auto half = [&](const Shape& shape) { return Variable(zeros(shape, dtype)); };
  const Variable x = of({2, 8, 8, 8}), w = of({16, 8, 3, 3}), b = of({16}), c = of({8}), rows = of({2, 5});
  const Variable half_x = half({2, 8, 8, 8}), half_w = half({16, 8, 3, 3}), half_b = half({16}), half_c = half({8});
  const Variable half_rows = half({2, 5}), matrix = of({3, 5}), half_matrix = half({3, 5}), three = half({3});
  const ConvPoolRelu pooled{.conv = kConv, .pool = kPool, .dropout = {}};
  const auto is_refused = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const ShapeError& error) {
      return std::string(error.what()).find(name(dtype)) != std::string::npos;
    }
    return false;
  };
#define CHECK_REFUSED(call) CHECK(is_refused([&] { call; }))
  CHECK_REFUSED(ops::add(rows, half_rows));
  CHECK_REFUSED(ops::relu(half_rows));
  CHECK_REFUSED(ops::dropout(half_rows, DropoutKey{0, 0, 0, 0.5f}));
  CHECK_REFUSED(ops::flatten(half_x));
  CHECK_REFUSED(ops::log_softmax(half_rows));
  CHECK_REFUSED(ops::max_pool2d(half_x, kPool));
  CHECK_REFUSED(ops::nll_loss(half_rows, zeros({2}, DType::i64)));
  CHECK_REFUSED(ops::mse_loss(rows, half_rows.value()));
  CHECK_REFUSED(ops::conv2d(half_x, w, b, kConv));
  CHECK_REFUSED(ops::conv2d(x, half_w, b, kConv));
  CHECK_REFUSED(ops::conv2d(x, w, half_b, kConv));
  CHECK_REFUSED(ops::conv_pool_relu(half_x, w, b, pooled));
  CHECK_REFUSED(ops::conv_pool_relu(x, half_w, b, pooled));
  CHECK_REFUSED(ops::conv_pool_relu(x, w, half_b, pooled));
  CHECK_REFUSED(ops::linear(half_rows, matrix, Variable()));
  CHECK_REFUSED(ops::linear(rows, half_matrix, Variable()));
  CHECK_REFUSED(ops::linear(rows, matrix, three));
  CHECK_REFUSED(ops::linear_relu_dropout(rows, half_matrix, Variable(), {}));
  CHECK_REFUSED(ops::linear_relu_dropout(rows, matrix, three, {}));
  CHECK_REFUSED(ops::batch_norm2d(half_x, c, c, zeros({8}), zeros({8}), {}));
  CHECK_REFUSED(ops::batch_norm2d(x, half_c, c, zeros({8}), zeros({8}), {}));
  CHECK_REFUSED(ops::batch_norm2d(x, c, half_c, zeros({8}), zeros({8}), {}));
  CHECK_REFUSED(ops::batch_norm2d(x, c, c, half_c.value(), zeros({8}), {}));
  CHECK_REFUSED(backend(DeviceKind::cpu).scale(half_c.value(), 2));
  CHECK_REFUSED(backend(DeviceKind::cpu).add(c.value(), c.value(), half_c.value()));
#undef CHECK_REFUSED
}

TEST_CASE("losses check labels and targets") {
  const Tensor labels = from_values<std::int64_t>({2}, {0, 3});
  CHECK_THROWS_WITH(ops::nll_loss(of({2, 3}), labels), duet_test::ContainsSubstring("Target 3 is out of bounds."));
  CHECK_THROWS_WITH(ops::nll_loss(of({2, 3}), from_values<std::int64_t>({2}, {-1, 0})),
                    duet_test::ContainsSubstring("Target -1 is out of bounds."));
  CHECK_ERROR(ops::nll_loss(of({3, 4}), labels), ShapeError, "nll_loss: labels [2] i64, expected [3] i64");
  CHECK_ERROR(ops::nll_loss(of({2, 4}), zeros({2})), ShapeError, "nll_loss: labels [2] f32, expected [2] i64");
  CHECK_ERROR(ops::nll_loss(of({2, 4}), labels.to({DeviceKind::cpu, 1})), DeviceError,
              "nll_loss: input on cpu:0, labels on cpu:1, expected one device: make constants there, by zeros_like(x, "
              "shape) or t.to(x.device())");
  CHECK_ERROR(ops::cross_entropy(of({3, 4}), labels), ShapeError, "cross_entropy: labels [2] i64, expected [3] i64");
  CHECK_THROWS_WITH(ops::cross_entropy(of({2, 3}), labels, 0.1),
                    duet_test::ContainsSubstring("cross_entropy: Target 3 is out of bounds."));
  CHECK_ERROR(ops::cross_entropy(of({2, 4}), labels, 1.5), UsageError,
              "cross_entropy: label smoothing 1.5, expected 0 to 1");
  CHECK_THROWS_AS(ops::cross_entropy(of({2, 4}), labels, -0.1), UsageError);
  CHECK_ERROR(ops::count_in_top(of({2, 4}), labels, 5), UsageError,
              "count_in_top: the largest 5 of 4 classes, expected 1 to 4");
  CHECK_THROWS_AS(ops::count_in_top(of({2, 4}), labels, 0), UsageError);
  CHECK_ERROR(ops::count_in_top(of({3, 4}), labels, 1), ShapeError, "count_in_top: labels [2] i64, expected [3] i64");
  CHECK_ERROR(ops::mse_loss(of({2, 4}), zeros({4, 2})), ShapeError, "mse_loss: input [2, 4] and target [4, 2] differ");
  CHECK_ERROR(ops::mse_loss(of({2, 4}), zeros({2, 4}, DType::f64)), ShapeError, "mse_loss: got f64, expected f32");
  CHECK_THROWS_AS(ops::mse_loss(Variable(), zeros({2, 4})), ShapeError);
}

TEST_CASE("batch_norm2d checks its per-channel tensors and the number of values") {
  const auto run = [](const Shape& x, const Shape& weight, bool training) {
    return ops::batch_norm2d(of(x), of(weight), of({3}), zeros({3}), zeros({3}), {.training = training});
  };
  CHECK_ERROR(run({2, 3, 4, 4}, {2}, true), ShapeError, "batch_norm2d: per-channel tensor [2] for input [2, 3, 4, 4]");
  CHECK_ERROR(run({1, 3, 1, 1}, {3}, true), ShapeError,
              "batch_norm2d: expected more than 1 value per channel when training, got input [1, 3, 1, 1]");
  CHECK_NOTHROW(run({1, 3, 1, 1}, {3}, false));
  CHECK_ERROR(ops::batch_norm2d(of({2, 3, 4, 4}), of({3}), of({3}), zeros({3}), zeros({3}), {}, of({2, 3, 4, 5})),
              ShapeError, "batch_norm2d: residual [2, 3, 4, 5] for input [2, 3, 4, 4]");
}
