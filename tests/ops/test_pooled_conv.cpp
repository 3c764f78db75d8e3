// The fused convolution's own kernels: shapes with and without them, equal maxima, stopped and passing
// outputs, rows alone and in company, numbers that are not finite.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr Window2d kConv = {3, 3, 1, 1, 1, 1}, kPool = {2, 2, 2, 2, 0, 0};

/// An image and weights of at most `most` products: sizes 2 to 34, mostly even, channels mostly in whole blocks.
struct PooledCase {
  PooledCase(Mt19937& generator, std::int64_t most) {
    do {
      const std::int64_t step = generator.randint(0, 5) > 0 ? 2 : 1;
      rows = generator.randint(0, 6) > 0 ? generator.randint(1, 20) : generator.randint(20, 131);
      height = step * generator.randint(2 / step, 34 / step + 1);
      width = step * generator.randint(2 / step, 34 / step + 1);
      in = channels(generator);
      out = channels(generator);
    } while (rows * in * out * height * width * 9 > most || height < 2 || width < 2);
  }
  static std::int64_t channels(Mt19937& generator) {
    const std::int64_t choice = generator.randint(0, 8);
    return choice == 0   ? generator.randint(1, 129)
           : choice <= 2 ? 1 + 2 * generator.randint(0, 2)
           : choice == 3 ? 8 * generator.randint(1, 9)
                         : 16 * generator.randint(1, 5);
  }
  Shape x() const { return {rows, in, height, width}; }
  Shape w() const { return {out, in, 3, 3}; }
  Shape y() const { return {rows, out, height / 2, width / 2}; }
  std::int64_t rows, in, out, height, width;
};

Variable fused(const Variable& x, const Variable& w, const Variable& b, const DropoutKey& dropout = {},
               bool plain = true) {
  return ops::conv_pool_relu(x, w, b, {.conv = kConv, .pool = kPool, .dropout = dropout}, plain);
}

Variable one_by_one(const Variable& x, const Variable& w, const Variable& b) {
  return ops::relu(ops::max_pool2d(ops::conv2d(x, w, b, kConv), kPool));
}

Array as_array(const Tensor& tensor) {
  Array array(tensor.shape());
  const auto values = tensor.span<float>();
  std::copy(values.begin(), values.end(), array.values.begin());
  return array;
}

}  // namespace

TEST_CASE("the fused convolution equals the reference: values exactly, gradients to rounding") {
  Mt19937 generator(31);
  for (int i = 0; i < 60; ++i) {
    const PooledCase c(generator, 4000000);
    // Exact in float whatever the order of the sums, so ties and zeros are as in the reference. A large bias makes relu
    // stop all outputs or none.
    const Array x = random_grid(c.x(), 2, 4, generator), w = random_grid(c.w(), 2, 4, generator);
    Array b = random_grid({c.out}, 4, 16, generator);
    const double shift = i % 5 == 0 ? -1000.0 : i % 5 == 1 ? 1000.0 : 0.0;
    for (double& value : b.values) value += shift;
    const Array y = reference::conv_pool_relu(x, w, b, kConv, kPool), dy = random_grid(y.shape, 4, 8, generator);
    const auto g = reference::conv_pool_relu_backward(x, w, b, dy, kConv, kPool);
    for (const Layout layout : layouts_of(c.in)) {
      CAPTURE(i, c.x().str(), c.w().str(), shift, name(layout));
      const bool plain = generator.randint(0, 2) == 0;
      const bool image_wanted = generator.randint(0, 2) == 0;
      const Variable vx(to_tensor(x), image_wanted), vw = leaf(w), vb = leaf(b);
      const Variable vy = fused(ops::to_layout(vx, layout), vw, vb, {}, plain);
      CHECK(relative_error(vy.value(), y) == 0);
      backward(vy, dy);
      if (image_wanted) CHECK(relative_error(vx.grad(), g.x) < kTolerance);
      CHECK(relative_error(vw.grad(), g.w) < kTolerance);
      CHECK(relative_error(vb.grad(), g.b) < kTolerance);
    }
  }
}

TEST_CASE("the fused convolution stays within 2e-6 of the operators one by one") {
  Mt19937 generator(32);
  for (int i = 0; i < 40; ++i) {
    const PooledCase c(generator, 20000000);
    const Variable x = leaf(random_array(c.x(), generator)), w = leaf(random_array(c.w(), generator)),
                   b = leaf(random_array({c.out}, generator));
    CAPTURE(i, c.x().str(), c.w().str());
    CHECK(relative_error(fused(x, w, b).value(), as_array(ops::to_plain(one_by_one(x, w, b)).value())) < 2e-6);
  }
}

TEST_CASE("the fused convolution drops what the dropout operator drops") {
  Mt19937 generator(33);
  for (int i = 0; i < 20; ++i) {
    const PooledCase c(generator, 2000000);
    const DropoutKey key = {7, static_cast<std::uint64_t>(i), 1, 0.3f};
    const Array x = random_grid(c.x(), 2, 4, generator), w = random_grid(c.w(), 2, 4, generator),
                b = random_grid({c.out}, 4, 16, generator), dy = random_array(c.y(), generator);
    Tensor stamped = to_tensor(x);
    stamped.set_stamp({3, 40, 200});
    const Variable x1(stamped, true), w1 = leaf(w), b1 = leaf(b), x2(stamped.clone().set_stamp({3, 40, 200}), true),
                                      w2 = leaf(w), b2 = leaf(b);
    const Variable y1 = fused(x1, w1, b1, key, i % 2 == 0), y2 = ops::dropout(one_by_one(x2, w2, b2), key);
    CAPTURE(i, c.x().str(), c.w().str());
    CHECK(relative_error(y1.value(), as_array(y2.value())) == 0);
    backward(y1, dy);
    backward(y2, dy);
    CHECK(relative_error(x1.grad(), as_array(x2.grad())) < 2e-6);
    CHECK(relative_error(w1.grad(), as_array(w2.grad())) < 2e-6);
    CHECK(relative_error(b1.grad(), as_array(b2.grad())) < 2e-6);
  }
}

TEST_CASE("a row of the fused convolution does not depend on the other rows") {
  Mt19937 generator(34);
  for (int i = 0; i < 20; ++i) {
    const PooledCase c(generator, 2000000);
    const Tensor x = to_tensor(random_array(c.x(), generator));
    const Variable w = leaf(random_array(c.w(), generator)), b = leaf(random_array({c.out}, generator));
    const Tensor all = fused(x, w, b).value();
    const std::int64_t row = generator.randint(0, c.rows);
    const Tensor alone = fused(x.rows(row, row + 1).clone(), w, b).value();
    CAPTURE(i, c.x().str(), c.w().str(), row);
    CHECK(std::memcmp(alone.raw(), all.rows(row, row + 1).raw(), alone.bytes()) == 0);
  }
}

TEST_CASE("a first layer's weight gradient shows an image that is not finite, and drops what dropout drops") {
  Mt19937 generator(36);
  const DropoutKey key = {7, 1, 1, 0.3f};
  for (const std::int64_t in : {1, 3})
    for (const bool spoil : {false, true}) {
      Array x = random_grid({9, in, 12, 10}, 2, 4, generator);
      const Array w = random_grid({48, in, 3, 3}, 2, 4, generator), b = random_grid({48}, 4, 16, generator),
                  dy = random_array({9, 48, 6, 5}, generator);
      // Where relu stops its outputs, only a product with zero can show it.
      if (spoil) x.at(4, in - 1, 5, 5) = -static_cast<double>(INFINITY);
      const Variable image(to_tensor(x), false), w1 = leaf(w), b1 = leaf(b), w2 = leaf(w), b2 = leaf(b);
      backward(fused(image, w1, b1, key, false), dy);
      backward(ops::dropout(one_by_one(image, w2, b2), key), dy);
      CAPTURE(in, spoil);
      std::int64_t hidden = 0;
      for (std::int64_t i = 0; i < w1.grad().count(); ++i)
        hidden += std::isfinite(w1.grad().data<float>()[i]) && !std::isfinite(w2.grad().data<float>()[i]);
      CHECK(hidden == 0);
      if (!spoil) CHECK(relative_error(w1.grad(), as_array(w2.grad())) < 2e-6);
      if (!spoil) CHECK(relative_error(b1.grad(), as_array(b2.grad())) < 2e-6);
    }
}

TEST_CASE("the largest float passes through the fused convolution") {
  Mt19937 generator(37);
  for (const std::int64_t in : {1, 16, 32, 64}) {
    Array x = random_array({2, in, 8, 20}, generator);
    const Array w = random_grid({16, in, 3, 3}, 2, 64, generator), b = random_array({16}, generator);
    x.at(1, in - 1, 3, 4) = FLT_MAX;
    x.at(1, 0, 3, 14) = -static_cast<double>(FLT_MAX);
    CAPTURE(in);
    CHECK(relative_error(fused(to_tensor(x), leaf(w), leaf(b)).value(),
                         reference::conv_pool_relu(x, w, b, kConv, kPool)) < kTolerance);
  }
}

TEST_CASE("numbers that are not finite stay so through the fused convolution") {
  Mt19937 generator(35);
  for (const std::int64_t in : {1, 3, 16, 32, 40})
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      CAPTURE(in, bad);
      const Array x = random_array({3, in, 8, 20}, generator), w = random_array({16, in, 3, 3}, generator),
                  b = random_array({16}, generator);
      Tensor spoiled = to_tensor(x);
      const std::int64_t row = x.shape.count_from(1), at = row + (in - 1) * 160 + 64;
      spoiled.data<float>()[at] = bad;
      const Tensor expected = ops::to_plain(one_by_one(spoiled, leaf(w), leaf(b))).value(),
                   got = fused(spoiled, leaf(w), leaf(b)).value(),
                   clean = fused(to_tensor(x), leaf(w), leaf(b)).value();
      std::int64_t hidden = 0, spread = 0;
      for (std::int64_t i = 0; i < got.count(); ++i) {
        hidden += !std::isfinite(expected.data<float>()[i]) && std::isfinite(got.data<float>()[i]);
        spread += i / got.shape().count_from(1) != 1 && got.data<float>()[i] != clean.data<float>()[i];
      }
      CHECK(hidden == 0);
      CHECK(spread == 0);
      // And where a weight or bias is not finite.
      for (const bool weight : {true, false}) {
        Tensor vw = to_tensor(w), vb = to_tensor(b);
        (weight ? vw : vb).data<float>()[0] = std::abs(bad);
        const Tensor y = fused(to_tensor(x), vw, vb).value();
        const auto values = y.rows(0, 1).slice(0, {40}).span<float>();
        CHECK(std::any_of(values.begin(), values.end(), [](float value) { return !std::isfinite(value); }));
      }
    }
}
