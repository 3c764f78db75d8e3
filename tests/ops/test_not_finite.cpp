// NaN and infinity through the operators, as PyTorch 2.15 (CPU) treats them; what the fused operators leave out, and
// that CheckFinite reports it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/autograd/check_finite.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ops/check.h"
#include "tests/support/error_of.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr float kBad[] = {kNan, kInfinity, -kInfinity};

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool same(const Tensor& tensor, const std::vector<float>& expected) {
  const auto got = tensor.span<float>();
  return std::equal(got.begin(), got.end(), expected.begin(), expected.end(),
                    [](float a, float b) { return same(a, b); });
}

bool same(const Tensor& a, const Tensor& b) { return same(a, {b.span<float>().begin(), b.span<float>().end()}); }

}  // namespace

TEST_CASE("relu passes NaN and infinity, and the gradient of both") {
  const Variable x(from_values<float>({8}, {0, -0.0f, kNan, 2, -1, kInfinity, -kInfinity, -kNan}), true);
  const Variable y = ops::relu(x);
  CHECK(same(y.value(), {0, 0, kNan, 2, 0, kInfinity, 0, kNan}));
  y.backward(from_values<float>({8}, {1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(same(x.grad(), {0, 0, 3, 4, 0, 6, 0, 8}));
}

TEST_CASE("relu stops a gradient that is not finite where its output is zero") {
  const Variable x(from_values<float>({4}, {-1, 0, 1, kNan}), true);
  ops::relu(x).backward(from_values<float>({4}, {kNan, kInfinity, kNan, -kInfinity}));
  CHECK(same(x.grad(), {0, 0, kNan, -kInfinity}));
}

TEST_CASE("linear_relu_dropout has its operators' gradients behind NaN and infinity; a NaN that it drops passes one") {
  Mt19937 generator(71);
  for (const float bad : kBad)
    for (const float p : {0.0f, 0.5f}) {
      const DropoutKey key = {5, 1, 2, p};
      Tensor x = to_tensor(random_array({3, 20}, generator));
      const Array w = random_array({40, 20}, generator), b = random_array({40}, generator),
                  dy = random_array({3, 40}, generator);
      x.data<float>()[25] = bad;
      const Variable x1(x, true), w1 = leaf(w), b1 = leaf(b), x2(x, true), w2 = leaf(w), b2 = leaf(b);
      const Variable y1 = ops::linear_relu_dropout(x1, w1, b1, key),
                     y2 = ops::dropout(ops::relu(ops::linear(x2, w2, b2)), key);
      backward(y1, dy);
      backward(y2, dy);
      CAPTURE(bad, p);
      CHECK(same(y1.value(), y2.value()));
      if (p == 0) {
        CHECK(same(b1.grad(), b2.grad()));
        CHECK(same(w1.grad(), w2.grad()));
        CHECK(same(x1.grad(), x2.grad()));
        continue;
      }
      Tensor mask = empty({3, 40}, DType::u8);
      backend(mask).dropout_mask(mask, key);
      for (std::int64_t o = 0; o < 40; ++o) {
        const float dropped = mask.data<std::uint8_t>()[40 + o] == 0 && std::isnan(y1.value().data<float>()[40 + o])
                                  ? static_cast<float>(dy[40 + o]) * key.scale()
                                  : 0.0f;
        CAPTURE(o);
        CHECK(b1.grad().data<float>()[o] - dropped == duet_test::Approx(b2.grad().data<float>()[o]).margin(1e-6));
      }
    }
}

TEST_CASE("max_pool2d gives a window's last NaN the gradient, before any infinity") {
  struct Case {
    std::int64_t side;
    Window2d window;
    std::vector<float> x, y, dx;  // for the gradients 1, 2, 3, ...
  };
  const float n = kNan, i = kInfinity;
  const Case cases[] = {
      {2, {2, 2, 2, 2, 0, 0}, {1, n, 3, n}, {n}, {0, 0, 0, 1}},
      {2, {2, 2, 2, 2, 0, 0}, {n, 1, 2, i}, {n}, {1, 0, 0, 0}},
      {2, {2, 2, 2, 2, 0, 0}, {i, 1, 2, i}, {i}, {1, 0, 0, 0}},
      {2, {2, 2, 2, 2, 0, 0}, {-i, -i, -i, -i}, {-i}, {1, 0, 0, 0}},
      {3, {2, 2, 1, 1, 0, 0}, {1, n, 3, 4, 5, 6, n, 8, n}, {n, n, n, n}, {0, 3, 0, 0, 0, 0, 3, 0, 4}},
      {3, {3, 3, 2, 2, 1, 1}, {1, n, 3, 4, -i, i, n, 8, n}, {n, n, n, n}, {0, 3, 0, 0, 0, 0, 3, 0, 4}},
      {2, {2, 2, 2, 2, 1, 1}, {-i, n, -i, -i}, {-i, n, -i, -i}, {1, 2, 3, 4}},
      {4,
       {2, 2, 2, 2, 0, 0},
       {1, n, 3, 4, 5, 6, 7, i, n, n, 1, 2, n, n, -i, n},
       {n, i, n, n},
       {0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 4}},
  };
  for (const Case& c : cases)
    for (const Layout layout : layouts_of(16)) {
      // The same image in 16 channels, so that every layout can hold it.
      std::vector<float> images;
      for (int channel = 0; channel < 16; ++channel) images.insert(images.end(), c.x.begin(), c.x.end());
      const Variable x(from_values<float>({1, 16, c.side, c.side}, images), true);
      const Variable y = ops::to_plain(ops::max_pool2d(ops::to_layout(x, layout), c.window));
      std::vector<float> dy, expected, gradient;
      for (int channel = 0; channel < 16; ++channel) {
        for (std::size_t k = 0; k < c.y.size(); ++k) dy.push_back(static_cast<float>(k + 1));
        expected.insert(expected.end(), c.y.begin(), c.y.end());
        gradient.insert(gradient.end(), c.dx.begin(), c.dx.end());
      }
      y.backward(from_values<float>(y.shape(), dy));
      CAPTURE(c.side, c.window.kernel_h, c.window.stride_h, c.window.pad_h, name(layout), c.x);
      CHECK(same(y.value(), expected));
      CHECK(same(x.grad(), gradient));
    }
}

TEST_CASE("log_softmax and nll_loss: a NaN or +infinity spoils its row, -infinity is probability 0") {
  const float n = kNan, i = kInfinity;
  for (const std::vector<float>& row : std::vector<std::vector<float>>{
           {n, 0, 1}, {0, n, 1}, {0, 1, n}, {i, 0, 1}, {-i, -i, -i}, {i, i, 0}, {i, -i, 0}}) {
    const Variable x(from_values<float>({2, 3}, {row[0], row[1], row[2], 0, 1, 2}), true);
    const Variable y = ops::log_softmax(x), loss = ops::nll_loss(y, from_values<std::int64_t>({2}, {2, 1}));
    CAPTURE(row);
    CHECK(same(y.value().rows(0, 1), {n, n, n}));
    CHECK(std::isnan(loss.item()));
    loss.backward();
    CHECK(same(x.grad().rows(0, 1), {n, n, n}));
    CHECK(x.grad().data<float>()[3] == duet_test::Approx(0.04501529037952423f));
    CHECK(x.grad().data<float>()[4] == duet_test::Approx(-0.37763574719429016f));
    CHECK(x.grad().data<float>()[5] == duet_test::Approx(0.3326205015182495f));
  }
  const float losses[] = {1.36043381690979f, i, 0.8604337573051453f};
  const float gradients[][3] = {{-0.36552929878234863f, 0, 0.36552929878234863f},
                                {0.13447071611881256f, -0.5f, 0.36552929878234863f},
                                {0.13447071611881256f, 0, -0.13447070121765137f}};
  for (std::int64_t label = 0; label < 3; ++label) {
    const Variable x(from_values<float>({2, 3}, {0, -i, 1, 0, 1, 2}), true);
    const Variable y = ops::log_softmax(x), loss = ops::nll_loss(y, from_values<std::int64_t>({2}, {label, 1}));
    CAPTURE(label);
    CHECK(y.value().data<float>()[0] == duet_test::Approx(-1.31326162815094f));
    CHECK(y.value().data<float>()[1] == -i);
    CHECK((loss.item() == duet_test::Approx(losses[label]) || loss.item() == losses[label]));
    loss.backward();
    for (std::int64_t c = 0; c < 3; ++c) CHECK(x.grad().data<float>()[c] == duet_test::Approx(gradients[label][c]));
  }
  // By itself, and log_softmax before another loss.
  const Variable x(from_values<float>({1, 3}, {0, -i, 1}), true);
  ops::log_softmax(x).backward(from_values<float>({1, 3}, {1, 2, 4}));
  const float alone[] = {-0.8825900554656982f, 2, -1.1174101829528809f};
  for (std::int64_t c = 0; c < 3; ++c) CHECK(x.grad().data<float>()[c] == duet_test::Approx(alone[c]));
  const Variable z(from_values<float>({2, 2}, {0, -i, n, 1}), true);
  const Variable kept = ops::nll_loss(z, from_values<std::int64_t>({2}, {0, 1}));
  CHECK(kept.item() == -0.5f);
  kept.backward();
  CHECK(same(z.grad(), {-0.5f, 0, 0, -0.5f}));
  CHECK(ops::nll_loss(z, from_values<std::int64_t>({2}, {1, 1})).item() == i);
  CHECK(std::isnan(ops::nll_loss(z, from_values<std::int64_t>({2}, {0, 0})).item()));
}

TEST_CASE("the fused convolution spreads a number that is not finite over its window's pixels only") {
  constexpr Window2d kConv = {3, 3, 1, 1, 1, 1}, kPool = {2, 2, 2, 2, 0, 0};
  constexpr std::int64_t kRow = 3, kColumn = 10;  // of the pixel
  Mt19937 generator(72);
  for (const std::int64_t in : {1, 3, 16, 32, 40})
    for (const float bad : kBad) {
      const Array w = random_array({16, in, 3, 3}, generator), b = random_array({16}, generator);
      Tensor x = to_tensor(random_array({1, in, 8, 20}, generator));
      const Tensor clean = x.clone();
      x.data<float>()[(in - 1) * 160 + kRow * 20 + kColumn] = bad;
      const auto fused = [&](const Tensor& image) {
        return ops::conv_pool_relu(image, leaf(w), leaf(b), {.conv = kConv, .pool = kPool, .dropout = {}}, true)
            .value();
      };
      const Tensor one_by_one =
          ops::to_plain(ops::relu(ops::max_pool2d(ops::conv2d(x, leaf(w), leaf(b), kConv), kPool))).value();
      const Tensor got = fused(x), unspoiled = fused(clean);
      CAPTURE(in, bad);
      std::int64_t hidden = 0, spread = 0;
      for (std::int64_t at = 0; at < got.count(); ++at) {
        const std::int64_t top = at / 10 % 4 * 2 - 1, left = at % 10 * 2 - 1;  // of the 4x4 pixels below the window
        const bool below = top <= kRow && kRow < top + 4 && left <= kColumn && kColumn < left + 4;
        hidden += !std::isfinite(one_by_one.data<float>()[at]) && std::isfinite(got.data<float>()[at]);
        spread += !below && got.data<float>()[at] != unspoiled.data<float>()[at];
      }
      CHECK(hidden == 0);
      CHECK(spread == 0);
    }
}

TEST_CASE("CheckFinite reports every number that the fused convolution spreads or leaves out") {
  const ConvPoolRelu op = {.conv = {3, 3, 1, 1, 1, 1}, .pool = {2, 2, 2, 2, 0, 0}, .dropout = {7, 1, 1, 0.3f}};
  Mt19937 generator(73);
  for (const std::int64_t in : {1, 3, 16, 32, 40})
    for (const float bad : kBad) {
      // relu stops every output, so all products of the gradients are left out.
      const Variable x = leaf(random_array({2, in, 8, 8}, generator)),
                     w = leaf(random_array({16, in, 3, 3}, generator)), b(empty({16}), true),
                     shift(zeros({2, in, 8, 8}), true);
      backend(b.value()).fill(b.value(), -1000);
      const auto step = [&](bool shifted) {
        const Variable y = ops::conv_pool_relu(shifted ? ops::add(x, shift) : x, w, b, op, true);
        y.backward(zeros(y.shape()));
      };
      const auto spoiled = [&](const Variable& v, bool shifted) {
        float& entry = v.value().data<float>()[v.value().count() / 2];
        const float before = entry;
        entry = bad;
        const std::string error = error_of<NumericError>([&] { step(shifted); });
        entry = before;
        return error;
      };
      CAPTURE(in, bad);
      const CheckFinite check;
      CHECK(error_of<NumericError>([&] { step(true); }).empty());
      CHECK_THAT(spoiled(x, false), ContainsSubstring(": argument 1"));  // or of the change of its layout
      CHECK_THAT(spoiled(w, false), ContainsSubstring("conv_pool_relu: argument 2"));
      CHECK_THAT(spoiled(b, false), ContainsSubstring("conv_pool_relu: argument 3"));
      CHECK_THAT(spoiled(shift, true), ContainsSubstring("add: argument 2"));
      const Variable y = ops::conv_pool_relu(x, w, b, op, true);
      Tensor dy = zeros(y.shape());
      dy.data<float>()[dy.count() / 2] = bad;
      CHECK_THAT(error_of<NumericError>([&] { y.backward(dy); }),
                 ContainsSubstring("backward of conv_pool_relu starts with is not finite"));
    }
}
