// Sums, means, other shapes, parts and products of matrices: against the reference, stamps, bits of gradients in
// shards; what they refuse.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/ops/ops.h"
#include "tests/ops/operator_cases.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("sums, means, shapes and parts equal the reference, for drawn shapes and dimensions") {
  Mt19937 generator(91);
  for (int i = 0; i < 60; ++i)
    for (const OperatorCase& c : shape_cases(random_shape(generator, 1, 5), generator))
      check_operator(c, Device{}, generator);
}

TEST_CASE("sums, means, shapes and parts of long tensors") {
  Mt19937 generator(92);
  for (const Shape& shape : {Shape{700}, Shape{2, 300}, Shape{300, 3}, Shape{3, 1, 270}, Shape{9, 17, 5}})
    for (int i = 0; i < 2; ++i)
      for (const OperatorCase& c : shape_cases(shape, generator)) check_operator(c, Device{}, generator);
}

TEST_CASE("sums of nothing, of a scalar and of many numbers") {
  CHECK(ops::sum(zeros({0, 3})).item() == 0);
  CHECK(std::isnan(ops::mean(zeros({0, 3})).item()));
  CHECK(ops::sum(zeros({2, 0, 3}), {1}).shape() == Shape{2, 3});
  CHECK(ops::sum(zeros({2, 0, 3}), {1, 2}, true).value().span<float>()[1] == 0);
  CHECK(ops::mean(zeros({0, 3}), {1}).shape() == Shape{0});
  const Variable scalar(from_values<float>({}, {3}), true);
  const Variable y = ops::mean(scalar, {}, true);
  CHECK(y.shape() == Shape{});
  CHECK(y.item() == 3);
  y.backward();
  CHECK(scalar.grad().span<float>()[0] == 1);
  const Tensor many = empty({3, 1 << 20});  // in float 0.1 would add up to 104,858 by one part in a thousand more
  backend(many).fill(many, 0.1f);
  const Variable sums = ops::sum(many, {1});
  CHECK(sums.value().span<float>()[2] == duet_test::Approx(104857.6f).epsilon(1e-6));
}

TEST_CASE("sum and mean pass NaN and infinity, and keep the layout of images out of it") {
  const float inf = INFINITY, nan = std::nanf("");
  const Variable y = ops::sum(from_values<float>({3, 2}, {inf, 1, inf, -inf, nan, 2}), {1});
  CHECK(y.value().span<float>()[0] == inf);
  CHECK(std::isnan(y.value().span<float>()[1]));
  CHECK(std::isnan(y.value().span<float>()[2]));
  Mt19937 generator(93);
  const Array x = random_array({2, 16, 3, 2}, generator);
  for (const Layout layout : layouts_of(16)) {
    const Variable v = leaf(x), image = ops::to_layout(v, layout);
    CHECK(relative_error(ops::sum(image, {1}).value(), with_shape(summed(x, {false, true, false, false}), {2, 3, 2})) <
          kTolerance);
    CHECK(relative_error(ops::slice(image, 1, 0, 16).value(), x) == 0);
    CHECK(relative_error(ops::transpose(ops::transpose(image, 1, 3), 3, 1).value(), x) == 0);
    ops::reshape(image, {2, -1}).backward(zeros({2, 96}));
    CHECK(v.grad().shape() == x.shape);
  }
}

TEST_CASE("products of matrices equal the reference") {
  Mt19937 generator(94);
  for (const Shape& batch : {Shape{}, Shape{3}, Shape{2, 3}, Shape{0, 2}, Shape{1, 1}})
    for (int i = 0; i < 4; ++i)
      for (const OperatorCase& c : product_cases(batch, generator.randint(1, 20), generator.randint(i == 0 ? 0 : 1, 20),
                                                 generator.randint(1, 20), generator))
        check_operator(c, Device{}, generator);
}

TEST_CASE("products of matrices make NaN of zero times infinity, in their own matrix, in both directions") {
  const float inf = INFINITY;
  for (const bool batched : {true, false}) {
    Tensor values = from_values<float>({2, 1, 2}, {0, 1, 0, 1});
    const Variable a(values, true),
        b(batched ? from_values<float>({2, 2, 1}, {inf, 1, 2, 1}) : from_values<float>({2, 1}, {inf, 1}), true);
    const Variable y = ops::matmul(a, b);
    CHECK(std::isnan(y.value().span<float>()[0]));
    CHECK(std::isnan(y.value().span<float>()[1]) == !batched);
    y.backward(from_values<float>({2, 1, 1}, {1, 1}));
    CHECK(a.grad().span<float>()[0] == inf);
    CHECK(a.grad().span<float>()[2] == (batched ? 2 : inf));
  }
}

TEST_CASE("softmax and log_softmax along any dimension equal the reference") {
  Mt19937 generator(95);
  for (int d = 0; d < 4; ++d)
    for (const OperatorCase& c : softmax_cases({3, 4, 2, 5}, d, generator)) check_operator(c, Device{}, generator);
  CHECK(ops::softmax(zeros({2, 3, 0}), -1).shape() == Shape{2, 3, 0});
}

TEST_CASE("size counts from both ends") {
  const Variable x(zeros({2, 3, 4}));
  CHECK(x.size(1) == 3);
  CHECK(x.size(-1) == 4);
  CHECK_THROWS_AS(x.size(3), ShapeError);
}

TEST_CASE("results that have the rows of a batch have its stamp, others have none") {
  Tensor batch = zeros({2, 6, 4});
  batch.set_stamp({7, 4, 8});
  const Variable x(batch);
  for (const Variable& y : {ops::sum(x, {1, 2}), ops::mean(x, {-1}, true), ops::reshape(x, {2, -1}),
                            ops::transpose(x, 1, 2), ops::slice(x, 1, 2, 5), ops::softmax(x, 1), ops::softmax(x, 2),
                            ops::matmul(x, ops::transpose(x, 1, 2)), ops::matmul(zeros({2, 3, 6}), x)})
    CHECK(y.value().stamp() == batch.stamp());
  CHECK(ops::slice(x, 0, 1, 2).value().stamp() == Rows{7, 5, 8});
  for (const Variable& y : {ops::sum(x), ops::sum(x, {0}), ops::reshape(x, {1, -1}), ops::transpose(x, 0, 1)})
    CHECK_FALSE(y.value().stamp().stamped());
}

namespace {

/// Gradients of the parameters of linear(x, w, b), and of x, for rows [begin, end) of a batch.
std::vector<Tensor> linear_gradients(const Tensor& x, const Tensor& dy, const Tensor& w, const Tensor& b,
                                     std::int64_t begin, std::int64_t end) {
  const Variable vx(x.rows(begin, end), true), vw(w, true), vb(b, true);
  ops::linear(vx, vw, vb).backward(dy.rows(begin, end));
  return {vw.grad(), vb.grad(), vx.grad()};
}

}  // namespace

TEST_CASE("linear of more than two dimensions equals that of its vectors, and has the same bits in shards") {
  Mt19937 generator(96);
  for (const std::int64_t rows : {1, 3, 8, 19}) {
    Tensor x = to_tensor(random_array({rows, 5, 2, 24}, generator)),
           dy = to_tensor(random_array({rows, 5, 2, 17}, generator));
    const Tensor w = to_tensor(random_array({17, 24}, generator)), b = to_tensor(random_array({17}, generator));
    const std::vector<Tensor> flat =
        linear_gradients(x.reshape({rows * 10, 24}), dy.reshape({rows * 10, 17}), w, b, 0, rows * 10);
    x.set_stamp({3, 0, rows});
    const std::vector<Tensor> whole = linear_gradients(x, dy, w, b, 0, rows);
    for (std::size_t k = 0; k < 3; ++k) {
      Array expected(whole[k].shape());
      std::copy_n(flat[k].data<float>(), flat[k].count(), expected.values.begin());
      CHECK(relative_error(whole[k], expected) < kTolerance);
    }
    for (const int shards : {2, 4, 8}) {
      std::vector<Tensor> weights, biases;
      for (int i = 0; i < shards; ++i) {
        const auto part = linear_gradients(x, dy, w, b, block_begin(i, rows, shards), block_begin(i + 1, rows, shards));
        weights.push_back(part[0]);
        biases.push_back(part[1]);
      }
      const Tensor dw = empty(w.shape()), db = empty(b.shape());
      backend(dw).sum_devices(weights, dw, false, 0, 1);
      backend(db).sum_devices(biases, db, false, 0, 1);
      CAPTURE(rows, shards);
      CHECK(std::memcmp(dw.raw(), whole[0].raw(), dw.bytes()) == 0);
      CHECK(std::memcmp(db.raw(), whole[1].raw(), db.bytes()) == 0);
    }
  }
}

TEST_CASE("shapes that do not fit are refused") {
  const Variable x(zeros({2, 3, 4}));
  CHECK_THROWS_WITH(ops::sum(x, {3}), "sum: dimension 3 of shape [2, 3, 4], expected -3 to 2");
  CHECK_THROWS_WITH(ops::mean(x, {1, -2}), "mean: got dimension -2 of shape [2, 3, 4] twice, expected once");
  CHECK_THROWS_WITH(ops::reshape(x, {5, -1}), "reshape: [2, 3, 4] to [5, -1], expected equally many elements");
  CHECK_THROWS_WITH(ops::reshape(x, {-1, -1}),
                    "reshape: [2, 3, 4] to [-1, -1], expected one -1 at most, and no 0 beside it");
  CHECK_THROWS_WITH(ops::reshape(x, {0, -1}),
                    "reshape: [2, 3, 4] to [0, -1], expected one -1 at most, and no 0 beside it");
  CHECK_THROWS_AS(ops::reshape(x, {24, -2}), ShapeError);
  CHECK_THROWS_WITH(ops::transpose(x, 0, -4), "transpose: dimension -4 of shape [2, 3, 4], expected -3 to 2");
  CHECK_THROWS_WITH(ops::slice(x, 1, 2, 5), "slice: 2 to 5 in dimension 1 of shape [2, 3, 4], expected 0 to 3");
  CHECK_THROWS_AS(ops::slice(x, 1, 2, 1), ShapeError);
  CHECK_THROWS_WITH(ops::matmul(x, zeros({2, 3, 4})),
                    "matmul: got shapes [2, 3, 4] and [2, 3, 4], expected (..., M, K) and (..., K, P) or (K, P)");
  CHECK_THROWS_AS(ops::matmul(x, zeros({3, 4, 2})), ShapeError);
  CHECK_THROWS_AS(ops::matmul(zeros({3}), zeros({3, 2})), ShapeError);
  CHECK_THROWS_WITH(ops::softmax(x, 3), "softmax: dimension 3 of shape [2, 3, 4], expected -3 to 2");
}
