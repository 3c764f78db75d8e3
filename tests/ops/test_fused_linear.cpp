// The fused linear, relu and dropout against the operators one by one, bit for bit, and against the reference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

struct LinearCase {
  LinearCase(Mt19937& generator, int number)
      : rows(generator.randint(0, 4) ? generator.randint(1, 20) : generator.randint(20, 131)),
        in(number % 8 == 0 ? 1568 + generator.randint(0, 40) : generator.randint(1, 300)),
        out(generator.randint(1, 150)),
        key{5, static_cast<std::uint64_t>(number), 2, number % 4 == 0 ? 0.0f : 0.4f} {
    if (number % 3 != 1) return;
    in = 32 * generator.randint(1, 33);  // whole matrices of every instruction set
    out = 32 * generator.randint(1, 6);
  }
  /// A shard from row 40 on.
  Tensor stamped(const Array& x) const { return to_tensor(x).set_stamp({3, 40, 400}); }
  std::vector<std::uint8_t> mask() const {
    Tensor mask = empty({rows, out}, DType::u8).set_stamp({3, 40, 400});
    backend(mask).dropout_mask(mask, key);
    return {mask.span<std::uint8_t>().begin(), mask.span<std::uint8_t>().end()};
  }
  std::int64_t rows, in, out;
  DropoutKey key;
};

Variable one_by_one(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& key) {
  return ops::dropout(ops::relu(ops::linear(x, w, b)), key);
}

}  // namespace

TEST_CASE("linear_relu_dropout has the bits of its operators one by one, forward and back") {
  Mt19937 generator(51);
  for (int i = 0; i < 60; ++i) {
    const LinearCase c(generator, i);
    const Array x = random_array({c.rows, c.in}, generator), w = random_array({c.out, c.in}, generator),
                b = random_array({c.out}, generator), dy = random_array({c.rows, c.out}, generator);
    const bool biased = i % 5 != 0, image_wanted = i % 3 != 0, weights_wanted = i % 7 != 0;
    CAPTURE(i, c.rows, c.in, c.out, c.key.p, biased, image_wanted, weights_wanted);
    Variable vx[2], vw[2], vb[2], y[2];
    for (int k = 0; k < 2; ++k) {
      vx[k] = Variable(c.stamped(x), image_wanted);
      vw[k] = Variable(to_tensor(w), weights_wanted);
      vb[k] = biased ? leaf(b) : Variable();
      y[k] = k == 0 ? ops::linear_relu_dropout(vx[k], vw[k], vb[k], c.key) : one_by_one(vx[k], vw[k], vb[k], c.key);
      if (y[k].requires_grad()) backward(y[k], dy);
    }
    CHECK(y[0].value().stamp() == y[1].value().stamp());
    CHECK(same_bits(y[0].value(), y[1].value()));
    CHECK(y[0].requires_grad() == y[1].requires_grad());
    if (image_wanted) CHECK(same_bits(vx[0].grad(), vx[1].grad()));
    if (weights_wanted) CHECK(same_bits(vw[0].grad(), vw[1].grad()));
    if (biased) CHECK(same_bits(vb[0].grad(), vb[1].grad()));
  }
}

TEST_CASE("linear_relu_dropout and its gradients equal the reference") {
  Mt19937 generator(52);
  for (int i = 0; i < 30; ++i) {
    const LinearCase c(generator, i);
    const Array x = random_array({c.rows, c.in}, generator), w = random_array({c.out, c.in}, generator),
                b = random_array({c.out}, generator), dy = random_array({c.rows, c.out}, generator);
    const double p = static_cast<double>(c.key.p);
    const Variable vx(c.stamped(x), true), vw = leaf(w), vb = leaf(b);
    const Variable y = ops::linear_relu_dropout(vx, vw, vb, c.key);
    backward(y, dy);
    const Array sum = reference::linear(x, w, b);
    // Where a sum is so near 0 that rounding decides its sign, the run's own sign counts.
    Array hidden = sum;
    for (std::int64_t k = 0; k < sum.shape.count(); ++k)
      if (std::abs(sum[k]) < 1e-5) hidden[k] = y.value().data<float>()[k] > 0 ? 1e-9 : -1e-9;
    const auto g =
        reference::linear_backward(x, w, reference::relu_backward(hidden, reference::dropout(dy, c.mask(), p)));
    CAPTURE(i, c.rows, c.in, c.out, c.key.p);
    CHECK(relative_error(y.value(), reference::dropout(reference::relu(sum), c.mask(), p)) < kTolerance);
    CHECK(relative_error(vx.grad(), g.x) < kTolerance);
    CHECK(relative_error(vw.grad(), g.w) < kTolerance);
    CHECK(relative_error(vb.grad(), g.b) < kTolerance);
  }
}

TEST_CASE("linear_relu_dropout lets through and drops what is not finite as its operators do") {
  Mt19937 generator(53);
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const float p : {0.0f, 0.5f}) {
      const DropoutKey key = {5, 1, 2, p};
      Tensor x = to_tensor(random_array({3, 20}, generator));
      const Variable w = leaf(random_array({40, 20}, generator)), b = leaf(random_array({40}, generator));
      x.data<float>()[25] = bad;
      CAPTURE(bad, p);
      const Tensor got = ops::linear_relu_dropout(x, w, b, key).value(), expected = one_by_one(x, w, b, key).value();
      std::int64_t differ = 0;
      for (std::int64_t i = 0; i < got.count(); ++i) {
        const float a = got.data<float>()[i], e = expected.data<float>()[i];
        differ += a != e && !(std::isnan(a) && std::isnan(e));
      }
      CHECK(differ == 0);
    }
}

TEST_CASE("a row of a linear layer does not depend on the other rows, and keeps what is not finite to itself") {
  Mt19937 generator(54);
  for (const std::int64_t in : {50, 64, 960}) {
    const Tensor x = to_tensor(random_array({150, in}, generator));
    const Variable w = leaf(random_array({96, in}, generator)), b = leaf(random_array({96}, generator));
    Tensor spoiled = x.clone();
    spoiled.data<float>()[130 * in + in - 1] = NAN;
    const Tensor all = ops::linear(x, w, b).value(), other = ops::linear(spoiled, w, b).value();
    for (const std::int64_t row : {0, 17, 127, 130, 149}) {
      CAPTURE(in, row);
      CHECK(same_bits(ops::linear(x.rows(row, row + 1).clone(), w, b).value(), all.rows(row, row + 1)));
      const auto values = other.rows(row, row + 1).span<float>();
      if (row == 130) {
        CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); }));
      } else {
        CHECK(same_bits(other.rows(row, row + 1), all.rows(row, row + 1)));
      }
    }
  }
}

TEST_CASE("linear_relu_dropout of no rows or no inputs") {
  const Variable none(zeros({0, 5}), true), w(zeros({3, 5}), true), b(zeros({3}), true);
  ops::linear_relu_dropout(none, w, b, {1, 1, 1, 0.5f}).backward(zeros({0, 3}));
  CHECK(relative_error(w.grad(), Array({3, 5})) == 0);
  CHECK(relative_error(b.grad(), Array({3})) == 0);
  const Tensor bias = from_values<float>({3}, {-1, 0.5f, 2});
  const Tensor y = ops::linear_relu_dropout(zeros({2, 0}), zeros({3, 0}), bias, {}).value();
  CHECK(std::vector<float>(y.span<float>().begin(), y.span<float>().end()) ==
        std::vector<float>{0, 0.5f, 2, 0, 0.5f, 2});
}
