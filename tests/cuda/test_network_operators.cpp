// Operators of image networks on a GPU, against the reference and to the CPU's bits: average pools, groups,
// mul, concat, softmax, smoothed losses, top k; arithmetic and functions of elements.
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/ops/custom.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/cuda/gpu.h"
#include "tests/ops/operator_cases.h"

using namespace duet;
using namespace duet_test;

DUET_CUDA_TEST("cuda: avg_pool2d equals the reference, and the CPU to the bit") {
  Mt19937 generator(131);
  struct Case {
    Shape x;
    Window2d window;
  };
  const Case cases[] = {{{1, 1, 2, 2}, {2, 2, 2, 2, 0, 0}}, {{3, 2, 7, 9}, {3, 3, 2, 2, 1, 1}},
                        {{2, 3, 8, 7}, {3, 3, 1, 1, 1, 1}}, {{17, 1, 5, 6}, {3, 2, 2, 1, 1, 0}},
                        {{1, 2, 9, 9}, {2, 2, 3, 3, 0, 0}}, {{2, 1, 6, 5}, {1, 4, 1, 2, 0, 2}}};
  for (const Case& c : cases)
    for (const bool padding : {false, true}) {
      const Array x = random_array(c.x, generator), y = reference::avg_pool2d(x, c.window, padding),
                  dy = random_array(y.shape, generator);
      CAPTURE(c.x.str(), c.window.kernel_h, c.window.kernel_w, c.window.stride_h, c.window.pad_h, padding);
      const Variable vx = gpu_leaf(x), vy = ops::avg_pool2d(vx, c.window, padding);
      const Variable cx = leaf(x), cy = ops::avg_pool2d(cx, c.window, padding);
      CHECK(gpu_error(vy.value(), y) < kTolerance);
      CHECK(as_array(vy.value()).values == as_array(cy.value()).values);
      vy.backward(on_gpu(dy));
      cy.backward(to_tensor(dy));
      CHECK(gpu_error(vx.grad(), reference::avg_pool2d_backward(x, dy, c.window, padding)) < kTolerance);
      CHECK(as_array(vx.grad()).values == as_array(cx.grad()).values);
    }
}

DUET_CUDA_TEST("cuda: conv2d in groups equals the reference, in every precision") {
  Mt19937 generator(133);
  struct Groups {
    std::int64_t groups, in, out;  // channels of a group
  };
  for (const Groups& c : {Groups{2, 16, 8}, Groups{32, 1, 1}, Groups{4, 3, 5}})
    for (const Precision precision : kPrecisions) {
      const WithPrecision set(precision);
      const double allowed = tolerance(precision);
      const Window2d window = {3, 3, 2, 2, 1, 1};
      const Array x = random_array({3, c.groups * c.in, 7, 9}, generator),
                  w = random_array({c.groups * c.out, c.in, 3, 3}, generator),
                  b = random_array({c.groups * c.out}, generator), y = reference::conv2d(x, w, b, window),
                  dy = random_array(y.shape, generator);
      const auto g = reference::conv2d_backward(x, w, dy, window);
      CAPTURE(c.groups, c.in, c.out, name(precision));
      const Variable vx = gpu_leaf(x), vw(gpu_view(w, 1), true), vb(gpu_view(b, 3), true);
      const Variable vy = ops::conv2d(vx, vw, vb, window, c.groups);
      CHECK(gpu_error(vy.value(), y) < allowed);
      vy.backward(on_gpu(dy));
      CHECK(gpu_error(vx.grad(), g.x) < allowed);
      CHECK(gpu_error(vw.grad(), g.w) < allowed);
      CHECK(gpu_error(vb.grad(), g.b) < allowed);
    }
}

DUET_CUDA_TEST("cuda: adaptive_avg_pool2d equals the reference, and the CPU to the bit") {
  Mt19937 generator(132);
  struct Case {
    Shape x;
    std::int64_t height, width;
  };
  for (const Case& c :
       {Case{{2, 3, 7, 7}, 1, 1}, Case{{1, 2, 13, 9}, 6, 4}, Case{{3, 1, 2, 3}, 5, 7}, Case{{0, 2, 4, 4}, 1, 1}}) {
    const Array x = random_array(c.x, generator), y = reference::adaptive_avg_pool2d(x, c.height, c.width),
                dy = random_array(y.shape, generator);
    CAPTURE(c.x.str(), c.height, c.width);
    const Variable vx = gpu_leaf(x), vy = ops::adaptive_avg_pool2d(vx, c.height, c.width);
    const Variable cx = leaf(x), cy = ops::adaptive_avg_pool2d(cx, c.height, c.width);
    CHECK(gpu_error(vy.value(), y) < kTolerance);
    CHECK(as_array(vy.value()).values == as_array(cy.value()).values);
    vy.backward(on_gpu(dy));
    cy.backward(to_tensor(dy));
    CHECK(gpu_error(vx.grad(), reference::adaptive_avg_pool2d_backward(x, dy)) < kTolerance);
    CHECK(as_array(vx.grad()).values == as_array(cx.grad()).values);
  }
}

DUET_CUDA_TEST("cuda: mul and concat equal the reference") {
  Mt19937 generator(134);
  const Array a = random_array({3, 5, 4, 2}, generator), b = random_array(a.shape, generator),
              c = random_array({3, 2, 4, 2}, generator), dy = random_array({3, 7, 4, 2}, generator);
  const Variable va(gpu_view(a, 1), true), vb = gpu_leaf(b), vc = gpu_leaf(c);
  const Variable product = ops::mul(va, vb), y = ops::concat({product, vc});
  CHECK(gpu_error(product.value(), reference::mul(a, b)) < kTolerance);
  CHECK(gpu_error(y.value(), reference::concat({reference::mul(a, b), c})) < kTolerance);
  y.backward(on_gpu(dy));
  const Variable ca = leaf(a), cb = leaf(b), cc = leaf(c);
  ops::concat({ops::mul(ca, cb), cc}).backward(to_tensor(dy));
  CHECK(as_array(va.grad()).values == as_array(ca.grad()).values);
  CHECK(as_array(vb.grad()).values == as_array(cb.grad()).values);
  CHECK(as_array(vc.grad()).values == as_array(cc.grad()).values);
}

DUET_CUDA_TEST("cuda: softmax equals the reference, and makes NaN where the CPU does") {
  Mt19937 generator(135);
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 10}, Shape{5, 70}, Shape{0, 4}}) {
    const Array x = random_array(shape, generator), dy = random_array(shape, generator);
    CAPTURE(shape.str());
    const Variable vx = gpu_leaf(x), vy = ops::softmax(vx);
    CHECK(gpu_error(vy.value(), reference::softmax(x)) < kTolerance);
    vy.backward(on_gpu(dy));
    CHECK(gpu_error(vx.grad(), reference::softmax_backward(x, dy)) < kTolerance);
  }
  const float nan = std::nanf(""), inf = INFINITY;
  const Array y = as_array(
      ops::softmax(Variable(on_gpu(from_values<float>({4, 2}, {nan, 1, inf, 1, -inf, -inf, -inf, 5})))).value());
  for (int i = 0; i < 6; ++i) CHECK(std::isnan(y[i]));
  CHECK(y[6] == 0);
  CHECK(y[7] == 1);
}

DUET_CUDA_TEST("cuda: cross_entropy with label smoothing equals the reference and reports labels out of bounds") {
  Mt19937 generator(136);
  for (const Shape& shape : {Shape{1, 3}, Shape{17, 10}, Shape{70, 100}}) {
    const Array x = random_array(shape, generator);
    const std::vector<std::int64_t> labels = random_labels(shape[0], shape[1], generator);
    CAPTURE(shape.str());
    const Variable vx = gpu_leaf(x), loss = ops::cross_entropy(vx, on_gpu(label_tensor(labels)), 0.1);
    const double expected = reference::cross_entropy(x, labels, 0.1);
    CHECK(std::abs(as_array(loss.value())[0] - expected) < kTolerance * expected);
    loss.backward();
    CHECK(gpu_error(vx.grad(), reference::cross_entropy_backward(x, labels, 0.1)) < kTolerance);
  }
  const Variable x(zeros({2, 3}, DType::f32, kGpu));
  const auto wrong = [&] { return ops::cross_entropy(x, on_gpu(label_tensor({1, 3})), 0.1).item(); };
  CHECK_THROWS_WITH(wrong(), ContainsSubstring("Target 3 is out of bounds."));
}

DUET_CUDA_TEST("cuda: count_in_top counts as the CPU does, ties and NaN included") {
  Mt19937 generator(137);
  for (const Shape& shape : {Shape{1, 2}, Shape{40, 10}, Shape{9, 70}}) {
    const Tensor x = to_tensor(random_grid(shape, 3, 1, generator));
    x.data<float>()[1] = std::nanf("");
    std::vector<std::int64_t> classes = random_labels(shape[0], shape[1], generator);
    classes.back() = -1;
    const Tensor labels = label_tensor(classes);
    for (std::int64_t k = 1; k <= 2; ++k) {
      CAPTURE(shape.str(), k);
      CHECK(ops::count_in_top(Variable(on_gpu(x)), on_gpu(labels), k) == ops::count_in_top(Variable(x), labels, k));
    }
  }
}

DUET_CUDA_TEST("cuda: arithmetic with broadcasting equals the reference") {
  Mt19937 generator(121);
  std::vector<std::vector<Shape>> pairs = {{{2, 300}, {300}}, {{40, 2}, {40, 1}}, {{3}, {2, 3, 5, 1, 3}}, {{}, {70}}};
  for (int i = 0; i < 8; ++i) pairs.push_back(random_pair(generator));
  for (const auto& pair : pairs)
    for (const OperatorCase& c : arithmetic_cases(pair[0], pair[1], generator)) check_operator(c, kGpu, generator);
}

DUET_CUDA_TEST("cuda: functions of elements equal the reference") {
  Mt19937 generator(122);
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{2, 3, 2, 5}, Shape{0, 4}, Shape{300}})
    for (const OperatorCase& c : function_cases(shape, generator)) check_operator(c, kGpu, generator);
}

DUET_CUDA_TEST("cuda: sums, means, shapes and parts equal the reference") {
  Mt19937 generator(123);
  std::vector<Shape> shapes = {{70}, {2, 300}, {300, 3}, {9, 17, 5}, {5, 1, 3, 1, 2}, {40, 100}};
  for (int i = 0; i < 8; ++i) shapes.push_back(random_shape(generator, 1, 5));
  for (const Shape& shape : shapes)
    for (const OperatorCase& c : shape_cases(shape, generator)) check_operator(c, kGpu, generator);
}

DUET_CUDA_TEST("cuda: products of matrices and softmax along any dimension equal the reference") {
  Mt19937 generator(124);
  for (const Shape& batch : {Shape{}, Shape{3}, Shape{2, 3}, Shape{0, 2}})
    for (const OperatorCase& c : product_cases(batch, 7, 5, 9, generator)) check_operator(c, kGpu, generator);
  for (const OperatorCase& c : product_cases({2}, 3, 0, 2, generator)) check_operator(c, kGpu, generator);
  for (int d = 0; d < 3; ++d)
    for (const OperatorCase& c : softmax_cases({3, 4, 5}, d, generator)) check_operator(c, kGpu, generator);
  for (const Precision precision : kPrecisions) {
    const WithPrecision set(precision);
    const OperatorCase c = product_cases({3}, 20, 30, 10, generator)[0];
    const Variable y = ops::matmul(on_gpu(c.inputs[0]), on_gpu(c.inputs[1]));
    CAPTURE(name(precision));
    CHECK(gpu_error(y.value(), c.reference(c.inputs)) < tolerance(precision));
  }
}

DUET_CUDA_TEST("cuda: losses of elements equal the reference") {
  Mt19937 generator(125);
  for (const Shape& shape : {Shape{1}, Shape{40, 70}, Shape{3, 2, 5}})
    for (const OperatorCase& c : loss_cases(shape, generator)) check_operator(c, kGpu, generator);
}

DUET_CUDA_TEST("cuda: transposed convolutions, embedding, layer_norm and attention equal the reference") {
  Mt19937 generator(126);
  for (const OperatorCase& c : conv_transpose_cases(generator)) check_operator(c, kGpu, generator);
  for (const OperatorCase& c : sequence_cases(generator)) check_operator(c, kGpu, generator);
  const Variable rows = ops::embedding(gpu_leaf(random_array({4, 3}, generator)), on_gpu(label_tensor({3, 4, -1})));
  const Array values = as_array(rows.value());
  for (std::int64_t i = 0; i < 9; ++i) CHECK(std::isnan(values[i]) == (i >= 3));
}

namespace {

/// x * b of columns b, by kernels on the device's stream.
struct Scaled {
  static constexpr const char* kName = "scaled";
  static constexpr bool kSumsRows = true;
  Tensor forward(const ops::Tensors& in) { return product(in[0], in[1]); }
  ops::Tensors backward(const Tensor& dy, const ops::Tensors& in, const Tensor&) {
    return {product(dy, in[1]), product(dy, in[0])};
  }
  static Tensor product(const Tensor& x, const Tensor& b) {
    const Tensor y = empty(x.shape(), DType::f32, x.device());
    backend(y).pointwise(Pointwise::mul, y.shape(), {broadcast(x, y.shape()), broadcast(b, y.shape()), {}},
                         broadcast(y, y.shape()));
    return y;
  }
};

}  // namespace

DUET_CUDA_TEST("cuda: an operator of one's own runs on the device, and check_gradients passes it") {
  Mt19937 generator(127);
  const auto run = [](const std::vector<Variable>& x) { return ops::custom(Scaled{}, {x[0], x[1]}); };
  check_operator({"scaled",
                  {random_array({4, 3}, generator), random_array({3}, generator)},
                  run,
                  [](const std::vector<Array>& x) { return map(x[0], x[1], std::multiplies()); }},
                 kGpu, generator);
  ops::check_gradients(run, {on_gpu(random_array({2, 3}, generator)), on_gpu(random_array({3}, generator))});
}
