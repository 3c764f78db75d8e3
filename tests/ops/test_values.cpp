// All operators but convolutions against the reference, over random shapes and all layouts.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

Shape random_images(Mt19937& generator) {
  return {generator.randint(1, 9), random_channels(generator), generator.randint(2, 31), generator.randint(2, 31)};
}

std::int64_t random_size(Mt19937& generator, std::int64_t most) {
  constexpr std::int64_t kCommon[] = {1, 3, 10, 16, 64, 128};
  const std::int64_t choice = generator.randint(0, 10);
  return std::min(most, choice < 6 ? kCommon[choice] : generator.randint(1, most + 1));
}

}  // namespace

TEST_CASE("max_pool2d equals the reference, ties included") {
  Mt19937 generator(21);
  for (int i = 0; i < 60; ++i) {
    const Shape shape = random_images(generator);
    const std::int64_t kernel_h = generator.randint(1, 4), kernel_w = generator.randint(1, 4);
    Window2d window = {kernel_h,
                       kernel_w,
                       generator.randint(1, 4),
                       generator.randint(1, 4),
                       generator.randint(0, kernel_h / 2 + 1),
                       generator.randint(0, kernel_w / 2 + 1)};
    if (generator.randint(0, 2)) window = {2, 2, 2, 2, 0, 0};
    if (shape[2] + 2 * window.pad_h < window.kernel_h || shape[3] + 2 * window.pad_w < window.kernel_w) continue;
    const Array x = i % 2 ? random_grid(shape, 2, 1, generator) : random_array(shape, generator);
    const Array y = reference::max_pool2d(x, window), dy = random_array(y.shape, generator);
    const Array dx = reference::max_pool2d_backward(x, dy, window);
    for (const Layout layout : layouts_of(shape[1])) {
      CAPTURE(i, shape.str(), window.kernel_h, window.kernel_w, window.stride_h, window.stride_w, window.pad_h,
              window.pad_w, name(layout));
      const Variable vx = leaf(x), vy = ops::max_pool2d(ops::to_layout(vx, layout), window);
      CHECK(relative_error(vy.value(), y) == 0);
      backward(vy, dy);
      CHECK(relative_error(vx.grad(), dx) < kTolerance);
    }
  }
}

TEST_CASE("max_pool2d lets NaN through and survives windows of -infinity") {
  const float nan = std::nanf(""), inf = INFINITY;
  for (const Window2d& window : {Window2d{2, 2, 2, 2, 0, 0}, Window2d{2, 2, 1, 1, 0, 0}}) {
    const Variable x(from_values<float>({1, 2, 2, 2}, {1, nan, 3, 2, -inf, -inf, -inf, -inf}), true);
    const Variable y = ops::max_pool2d(x, window);
    CHECK(std::isnan(y.value().data<float>()[0]));
    CHECK(y.value().data<float>()[1] == -inf);
    y.backward(from_values<float>({1, 2, 1, 1}, {5, 7}));
    const auto dx = x.grad().span<float>();
    CHECK(std::vector<float>(dx.begin(), dx.end()) == std::vector<float>{0, 5, 0, 0, 7, 0, 0, 0});
  }
}

TEST_CASE("a padded window of -infinity sends its gradient into the image") {
  const Variable x(from_values<float>({1, 1, 2, 2}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}), true);
  const Variable y = ops::max_pool2d(x, {2, 2, 2, 2, 1, 1});
  y.backward(from_values<float>({1, 1, 2, 2}, {1, 2, 3, 4}));
  const auto dx = x.grad().span<float>();
  CHECK(std::vector<float>(dx.begin(), dx.end()) == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("relu and add equal the reference in every layout") {
  Mt19937 generator(22);
  for (int i = 0; i < 30; ++i) {
    const Shape shape = random_images(generator);
    const Array a = random_grid(shape, 3, 2, generator), b = random_array(shape, generator),
                dy = random_array(shape, generator);
    for (const Layout layout : layouts_of(shape[1])) {
      CAPTURE(i, shape.str(), name(layout));
      const Variable va = leaf(a), vb = leaf(b), vc = leaf(a);
      const Variable rectified = ops::relu(ops::to_layout(vc, layout));
      CHECK(relative_error(rectified.value(), reference::relu(a)) == 0);
      backward(rectified, dy);
      CHECK(relative_error(vc.grad(), reference::relu_backward(a, dy)) == 0);
      const Variable sum = ops::add(ops::to_layout(va, layout), vb);  // the second is brought into the first's layout
      CHECK(relative_error(sum.value(), reference::add(a, b)) < kTolerance);
      backward(sum, dy);
      CHECK(relative_error(va.grad(), dy) == 0);
      CHECK(relative_error(vb.grad(), dy) == 0);
    }
  }
}

TEST_CASE("relu passes no gradient at zero and lets NaN through") {
  const Variable x(from_values<float>({4}, {0.0f, -0.0f, std::nanf(""), 2}), true);
  const Variable y = ops::relu(x);
  CHECK(std::isnan(y.value().data<float>()[2]));
  y.backward(from_values<float>({4}, {1, 1, 1, 1}));
  CHECK(x.grad().data<float>()[0] == 0);
  CHECK(x.grad().data<float>()[1] == 0);
  CHECK(x.grad().data<float>()[3] == 1);
}

TEST_CASE("dropout applies its mask in both directions") {
  Mt19937 generator(23);
  for (int i = 0; i < 20; ++i) {
    const Shape shape = i % 2 ? Shape{generator.randint(1, 20), random_size(generator, 700)} : random_images(generator);
    const float p = static_cast<float>(generator.randint(1, 10)) / 10;
    const DropoutKey key = {7, static_cast<std::uint64_t>(i), 3, p};
    const Array x = random_array(shape, generator), dy = random_array(shape, generator);
    const Tensor mask_tensor = empty(shape, DType::u8);
    duet::backend(mask_tensor).dropout_mask(mask_tensor, key);
    const auto bytes = mask_tensor.span<std::uint8_t>();
    const std::vector<std::uint8_t> mask(bytes.begin(), bytes.end());
    const std::vector<Layout> layouts = shape.rank() == 4 ? layouts_of(shape[1]) : std::vector{Layout::plain};
    for (const Layout layout : layouts) {
      CAPTURE(i, shape.str(), p, name(layout));
      const Variable vx = leaf(x), vy = ops::dropout(ops::to_layout(vx, layout), key);
      CHECK(relative_error(vy.value(), reference::dropout(x, mask, p)) < kTolerance);
      backward(vy, dy);
      CHECK(relative_error(vx.grad(), reference::dropout(dy, mask, p)) < kTolerance);
    }
    Mt19937 stream(static_cast<std::uint64_t>(i)), same(static_cast<std::uint64_t>(i));
    std::vector<std::uint8_t> drawn(x.values.size());
    same.bernoulli(drawn, 1.0 - static_cast<double>(p));
    const Variable vx = leaf(x), vy = ops::dropout(vx, p, stream);
    CHECK(relative_error(vy.value(), reference::dropout(x, drawn, p)) < kTolerance);
    CHECK(stream.random() == same.random());  // two words an element, no more
    backward(vy, dy);
    CHECK(relative_error(vx.grad(), reference::dropout(dy, drawn, p)) < kTolerance);
  }
}

TEST_CASE("a dropout decision is that of plain Philox, and depends on row, element and key only") {
  // The documented rule, by the scalar generator: see kernels/elementwise.cpp.
  const auto keep = [](std::uint64_t seed, std::uint64_t step, std::uint32_t layer, std::uint64_t row, std::int64_t e,
                       float p) {
    const auto chunk = static_cast<std::uint32_t>(e / 128), lane = static_cast<std::uint32_t>(e % 16);
    const auto j = static_cast<std::size_t>(e % 128 / 16);
    const auto words =
        philox4x32({chunk * 16 + lane, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(step), layer},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const std::uint32_t number = j % 2 ? words[j / 2] >> 16 : words[j / 2] & 0xffffU;
    return number >= static_cast<std::uint32_t>(p * 65536.0f + 0.5f);
  };
  constexpr std::uint64_t kSeed = 0x123456789abcdefULL;
  for (const std::int64_t columns : {1, 100, 128, 129, 300}) {
    Tensor mask = empty({6, columns}, DType::u8);
    mask.set_stamp({41, 1000, 4096});
    duet::backend(mask).dropout_mask(mask, {kSeed, 41, 9, 0.3f});
    int wrong = 0;
    for (std::int64_t row = 0; row < 6; ++row)
      for (std::int64_t e = 0; e < columns; ++e)
        wrong += (mask.data<std::uint8_t>()[row * columns + e] != 0) !=
                 keep(kSeed, 41, 9, static_cast<std::uint64_t>(1000 + row), e, 0.3f);
    CAPTURE(columns);
    CHECK(wrong == 0);
  }
}

TEST_CASE("dropout drops about p of all elements, and nothing at p = 0") {
  const Tensor x = empty({100, 1000});
  duet::backend(x).fill(x, 1.0f);
  for (const float p : {0.1f, 0.25f, 0.5f, 0.9f}) {
    const Variable y = ops::dropout(Variable(x), {1, 2, 3, p});
    double dropped = 0;
    for (const float value : y.value().span<float>()) dropped += value == 0;
    CHECK(std::abs(dropped / 1e5 - static_cast<double>(p)) < 0.006);
  }
  CHECK(ops::dropout(Variable(x), {1, 2, 3, 0.0f}).value().same_memory(x));
}

TEST_CASE("linear equals the reference") {
  Mt19937 generator(24);
  for (int i = 0; i < 60; ++i) {
    const std::int64_t rows = generator.randint(1, 21), in = random_size(generator, 700),
                       out = random_size(generator, 150);
    const Array x = random_array({rows, in}, generator), w = random_array({out, in}, generator);
    const bool with_bias = generator.randint(0, 4) > 0;
    const Array b = with_bias ? random_array({out}, generator) : Array();
    const Array dy = random_array({rows, out}, generator);
    const auto g = reference::linear_backward(x, w, dy);
    const Variable vx = leaf(x), vw = leaf(w), vb = with_bias ? leaf(b) : Variable();
    const Variable vy = ops::linear(vx, vw, vb);
    CAPTURE(i, rows, in, out, with_bias);
    CHECK(relative_error(vy.value(), reference::linear(x, w, b)) < kTolerance);
    vy.backward(to_tensor(dy));
    CHECK(relative_error(vx.grad(), g.x) < kTolerance);
    CHECK(relative_error(vw.grad(), g.w) < kTolerance);
    if (with_bias) CHECK(relative_error(vb.grad(), g.b) < kTolerance);
  }
}

TEST_CASE("linear of no rows has gradients of zero") {
  const Variable x(zeros({0, 100}), true), w(zeros({7, 100}), true), b(zeros({7}), true);
  duet::backend(w.value()).fill(w.value(), 1.0f);
  ops::linear(x, w, b).backward(zeros({0, 7}));
  CHECK(relative_error(w.grad(), Array({7, 100})) == 0);
  CHECK(relative_error(b.grad(), Array({7})) == 0);
  CHECK(x.grad().shape() == Shape{0, 100});
}

TEST_CASE("flatten keeps values and gradients, from every layout") {
  Mt19937 generator(25);
  const Array x = random_array({3, 16, 5, 4}, generator), dy = random_array({3, 320}, generator);
  Array flat = x;
  flat.shape = dy.shape;
  for (const Layout layout : layouts_of(16)) {
    const Variable vx = leaf(x), vy = ops::flatten(ops::to_layout(vx, layout));
    CHECK(relative_error(vy.value(), flat) == 0);
    vy.backward(to_tensor(dy));
    Array dx = dy;
    dx.shape = x.shape;
    CHECK(relative_error(vx.grad(), dx) == 0);
  }
}

TEST_CASE("log_softmax and nll_loss equal the reference, and stay finite for large inputs") {
  Mt19937 generator(26);
  for (int i = 0; i < 30; ++i) {
    const std::int64_t rows = generator.randint(1, 21), classes = random_size(generator, 70);
    Array x = random_array({rows, classes}, generator);
    if (i % 3 == 0)
      for (double& value : x.values) value = 8 * std::round(value * 100);  // up to 800: exp overflows
    const Array dy = random_array(x.shape, generator), y = reference::log_softmax(x);
    const std::vector<std::int64_t> labels = random_labels(rows, classes, generator);
    CAPTURE(i, rows, classes);
    const Variable vx = leaf(x), vy = ops::log_softmax(vx);
    CHECK(relative_error(vy.value(), y) < kTolerance);
    vy.backward(to_tensor(dy));
    CHECK(relative_error(vx.grad(), reference::log_softmax_backward(x, dy)) < kTolerance);

    const Variable vz = leaf(x), loss = ops::nll_loss(vz, label_tensor(labels));
    const double expected = reference::nll_loss(x, labels);
    CHECK(std::abs(static_cast<double>(loss.item()) - expected) <= kTolerance * std::max(1.0, std::abs(expected)));
    loss.backward();
    CHECK(relative_error(vz.grad(), reference::nll_loss_backward(x, labels)) < kTolerance);
  }
}

TEST_CASE("mse_loss equals the reference in every layout") {
  Mt19937 generator(27);
  for (int i = 0; i < 20; ++i) {
    const Shape shape = i % 2 ? Shape{generator.randint(1, 21), random_size(generator, 300)} : random_images(generator);
    const Array x = random_array(shape, generator), target = random_array(shape, generator);
    for (const Layout layout : shape.rank() == 4 ? layouts_of(shape[1]) : std::vector{Layout::plain}) {
      CAPTURE(i, shape.str(), name(layout));
      const Variable vx = leaf(x), loss = ops::mse_loss(ops::to_layout(vx, layout), to_tensor(target));
      CHECK(std::abs(static_cast<double>(loss.item()) - reference::mse_loss(x, target)) < kTolerance);
      loss.backward();
      CHECK(relative_error(vx.grad(), reference::mse_loss_backward(x, target)) < kTolerance);
    }
  }
}

TEST_CASE("losses of an empty batch are nan, as in PyTorch") {
  const Variable x(zeros({0, 10}));
  CHECK(std::isnan(ops::nll_loss(x, empty({0}, DType::i64)).item()));
  CHECK(std::isnan(ops::mse_loss(x, zeros({0, 10})).item()));
}

TEST_CASE("the gradient of a stamped shard is its share of the global mean, its value the mean of its own rows") {
  Mt19937 generator(28);
  const Array x = random_array({4, 5}, generator);
  Tensor shard = to_tensor(x);
  shard.set_stamp({0, 8, 16});
  const std::vector<std::int64_t> labels = random_labels(4, 5, generator);
  const Variable vx(shard, true), loss = ops::nll_loss(vx, label_tensor(labels));
  CHECK(std::abs(static_cast<double>(loss.item()) - reference::nll_loss(x, labels)) < kTolerance);
  loss.backward();
  Array dx = reference::nll_loss_backward(x, labels);
  for (double& value : dx.values) value /= 4;
  CHECK(relative_error(vx.grad(), dx) < kTolerance);
}

TEST_CASE("batch_norm2d equals the reference in training and evaluation, running statistics included") {
  Mt19937 generator(29);
  for (int i = 0; i < 30; ++i) {
    const Shape shape = random_images(generator);
    const Shape channels = {shape[1]};
    reference::BatchNorm norm = {random_array(channels, generator), random_array(channels, generator),
                                 random_array(channels, generator), Array(channels), i % 2 == 0};
    for (double& value : norm.running_var.values) value = 0.5 + static_cast<double>(generator.randint(0, 100)) / 64;
    Array x = random_array(shape, generator);
    for (double& value : x.values)
      value = static_cast<double>(static_cast<float>(value + 0.75));  // a mean that is not zero
    const Array dy = random_array(shape, generator);
    const auto g = reference::batch_norm2d_backward(x, norm, dy);
    const reference::BatchNorm before = norm;
    const Array y = reference::batch_norm2d(x, norm);
    for (const Layout layout : layouts_of(shape[1])) {
      CAPTURE(i, shape.str(), before.training, name(layout));
      const Variable vx = leaf(x), weight = leaf(before.weight), bias = leaf(before.bias);
      const Tensor mean = to_tensor(before.running_mean), variance = to_tensor(before.running_var);
      const Variable vy =
          ops::batch_norm2d(ops::to_layout(vx, layout), weight, bias, mean, variance, {.training = before.training});
      CHECK(relative_error(vy.value(), y) < kTolerance);
      CHECK(relative_error(mean, norm.running_mean) < kTolerance);
      CHECK(relative_error(variance, norm.running_var) < kTolerance);
      backward(vy, dy);
      CHECK(relative_error(vx.grad(), g.x) < kTolerance);
      CHECK(relative_error(weight.grad(), g.w) < kTolerance);
      CHECK(relative_error(bias.grad(), g.b) < kTolerance);
    }
  }
}

TEST_CASE("operators pass the stamp of their input on") {
  const Rows stamp = {3, 8, 32};
  Tensor x = zeros({4, 16, 6, 6});
  x.set_stamp(stamp);
  const Variable v(x);
  CHECK(ops::relu(v).value().stamp() == stamp);
  CHECK(ops::max_pool2d(v, {2, 2, 2, 2, 0, 0}).value().stamp() == stamp);
  CHECK(ops::dropout(v, {1, 1, 1, 0.5f}).value().stamp() == stamp);
  CHECK(ops::flatten(ops::to_layout(v, Layout::blocked8)).value().stamp() == stamp);
  CHECK(ops::add(v, v).value().stamp() == stamp);
  CHECK(ops::log_softmax(ops::flatten(v)).value().stamp() == stamp);
  CHECK(ops::linear(ops::flatten(v), Variable(zeros({3, 576})), Variable()).value().stamp() == stamp);
}
