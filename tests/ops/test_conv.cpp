// Convolutions against the reference: plain and fused with pooling, relu and dropout.
#include <algorithm>
#include <cstdint>

#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

struct ConvCase {
  Shape x, w;
  Window2d window;
};

/// A convolution of at most `most` products, so that all cases together stay quick.
ConvCase random_conv(Mt19937& generator, std::int64_t most) {
  for (;;) {
    ConvCase c;
    const std::int64_t kernel_h = generator.randint(1, 6),
                       kernel_w = generator.randint(0, 3) ? kernel_h : generator.randint(1, 6);
    c.window = {kernel_h,
                kernel_w,
                generator.randint(1, 4),
                generator.randint(1, 4),
                generator.randint(0, kernel_h),
                generator.randint(0, kernel_w)};
    if (generator.randint(0, 2)) c.window = {3, 3, 1, 1, 1, 1};
    c.x = {generator.randint(1, 21), random_channels(generator), generator.randint(2, 31), generator.randint(2, 31)};
    c.w = {random_channels(generator), c.x[1], c.window.kernel_h, c.window.kernel_w};
    if (c.x[2] + 2 * c.window.pad_h < c.window.kernel_h || c.x[3] + 2 * c.window.pad_w < c.window.kernel_w) continue;
    const std::int64_t products = c.x[0] * c.w.count() * c.window.out_h(c.x[2]) * c.window.out_w(c.x[3]);
    if (products <= most) return c;
  }
}

}  // namespace

TEST_CASE("conv2d equals the reference for random shapes, in every layout of its input") {
  Mt19937 generator(11);
  for (int i = 0; i < 80; ++i) {
    const ConvCase c = random_conv(generator, 1000000);
    const Array x = random_array(c.x, generator), w = random_array(c.w, generator);
    const bool with_bias = generator.randint(0, 4) > 0;
    const Array b = with_bias ? random_array({c.w[0]}, generator) : Array();
    const Array y = reference::conv2d(x, w, b, c.window);
    const Array dy = random_array(y.shape, generator);
    const auto g = reference::conv2d_backward(x, w, dy, c.window);
    for (const Layout layout : layouts_of(c.x[1])) {
      CAPTURE(i, c.x.str(), c.w.str(), c.window.stride_h, c.window.pad_h, c.window.stride_w, c.window.pad_w,
              name(layout));
      const Variable vx = leaf(x), vw = leaf(w), vb = with_bias ? leaf(b) : Variable();
      const Variable vy = ops::conv2d(ops::to_layout(vx, layout), vw, vb, c.window);
      CHECK(relative_error(vy.value(), y) < kTolerance);
      backward(vy, dy);
      CHECK(relative_error(vx.grad(), g.x) < kTolerance);
      CHECK(relative_error(vw.grad(), g.w) < kTolerance);
      if (with_bias) CHECK(relative_error(vb.grad(), g.b) < kTolerance);
    }
  }
}

TEST_CASE("weight gradients of small images with many channels equal the reference") {
  Mt19937 generator(13);
  for (int i = 0; i < 40; ++i) {
    ConvCase c = random_conv(generator, 1000000);
    c.x = {generator.randint(1, 20), 16 * generator.randint(1, 3), generator.randint(1, 9), generator.randint(1, 9)};
    c.w = {16 * generator.randint(1, 3), c.x[1], c.window.kernel_h, c.window.kernel_w};
    if (!c.window.fits(c.x[2], c.x[3])) continue;
    const Array x = random_array(c.x, generator), w = random_array(c.w, generator);
    const Array dy = random_array(reference::conv2d(x, w, Array(), c.window).shape, generator);
    CAPTURE(i, c.x.str(), c.w.str(), c.window.stride_h, c.window.pad_h, c.window.stride_w, c.window.pad_w);
    const Variable vw = leaf(w);
    backward(ops::conv2d(to_tensor(x), vw, Variable(), c.window), dy);
    CHECK(relative_error(vw.grad(), reference::conv2d_backward(x, w, dy, c.window).w) < kTolerance);
  }
}

TEST_CASE("conv2d in groups equals the reference, in every layout of its input") {
  Mt19937 generator(15);
  struct Groups {
    std::int64_t groups, in, out;  // channels of a group
  };
  const Groups cases[] = {{2, 1, 1},  {3, 1, 8}, {2, 3, 5},   {4, 8, 2},  {2, 16, 16}, {2, 8, 16},
                          {32, 1, 1}, {8, 4, 4}, {2, 16, 32}, {16, 2, 1}, {16, 1, 2}};
  for (const Groups& c : cases)
    for (const Window2d& window :
         {Window2d{3, 3, 1, 1, 1, 1}, Window2d{1, 1, 1, 1, 0, 0}, Window2d{5, 2, 2, 3, 2, 0}}) {
      const bool with_bias = generator.randint(0, 2) > 0;
      const Array x = random_array({2, c.groups * c.in, 7, 6}, generator),
                  w = random_array({c.groups * c.out, c.in, window.kernel_h, window.kernel_w}, generator),
                  b = with_bias ? random_array({c.groups * c.out}, generator) : Array();
      const Array y = reference::conv2d(x, w, b, window), dy = random_array(y.shape, generator);
      const auto g = reference::conv2d_backward(x, w, dy, window);
      for (const Layout layout : layouts_of(x.shape[1])) {
        CAPTURE(c.groups, c.in, c.out, window.kernel_h, window.stride_h, name(layout));
        const Variable vx = leaf(x), vw = leaf(w), vb = with_bias ? leaf(b) : Variable();
        const Variable vy = ops::conv2d(ops::to_layout(vx, layout), vw, vb, window, c.groups);
        CHECK(relative_error(vy.value(), y) < kTolerance);
        backward(vy, dy);
        CHECK(relative_error(vx.grad(), g.x) < kTolerance);
        CHECK(relative_error(vw.grad(), g.w) < kTolerance);
        if (with_bias) CHECK(relative_error(vb.grad(), g.b) < kTolerance);
      }
    }
}

TEST_CASE("conv2d gives only the gradients that are wanted") {
  Mt19937 generator(12);
  const Array x = random_array({3, 8, 6, 6}, generator), w = random_array({16, 8, 3, 3}, generator),
              b = random_array({16}, generator);
  const Window2d window = {3, 3, 1, 1, 1, 1};
  const Array dy = random_array(reference::conv2d(x, w, b, window).shape, generator);
  const auto g = reference::conv2d_backward(x, w, dy, window);
  for (int wanted = 1; wanted < 8; ++wanted) {
    const Variable vx(to_tensor(x), wanted & 1), vw(to_tensor(w), wanted & 2), vb(to_tensor(b), wanted & 4);
    backward(ops::conv2d(vx, vw, vb, window), dy);
    CAPTURE(wanted);
    if (wanted & 1) CHECK(relative_error(vx.grad(), g.x) < kTolerance);
    if (wanted & 2) CHECK(relative_error(vw.grad(), g.w) < kTolerance);
    if (wanted & 4) CHECK(relative_error(vb.grad(), g.b) < kTolerance);
    CHECK(vx.grad().defined() == ((wanted & 1) != 0));
    CHECK(vw.grad().defined() == ((wanted & 2) != 0));
    CHECK(vb.grad().defined() == ((wanted & 4) != 0));
  }
}

TEST_CASE("conv_pool_relu equals the reference, with ties and outputs that relu stops") {
  Mt19937 generator(13);
  for (int i = 0; i < 60; ++i) {
    const ConvCase c = random_conv(generator, 600000);
    const std::int64_t kernel = generator.randint(0, 3) ? 2 : generator.randint(1, 4);
    const Window2d pool = {kernel, kernel, kernel, kernel, 0, 0};
    if (c.window.out_h(c.x[2]) < kernel || c.window.out_w(c.x[3]) < kernel) continue;
    // Exact in float: the same maxima, ties and zeros whatever the order of the sums.
    const Array x = random_grid(c.x, 2, 4, generator), w = random_grid(c.w, 2, 4, generator),
                b = random_grid({c.w[0]}, 4, 16, generator);
    const Array y = reference::conv_pool_relu(x, w, b, c.window, pool);
    const Array dy = random_array(y.shape, generator);
    const auto g = reference::conv_pool_relu_backward(x, w, b, dy, c.window, pool);
    for (const Layout layout : layouts_of(c.x[1]))
      for (const bool plain : {false, true}) {
        CAPTURE(i, c.x.str(), c.w.str(), c.window.kernel_h, c.window.stride_h, c.window.pad_h, kernel, name(layout),
                plain);
        const Variable vx = leaf(x), vw = leaf(w), vb = leaf(b);
        const Variable vy = ops::conv_pool_relu(ops::to_layout(vx, layout), vw, vb,
                                                {.conv = c.window, .pool = pool, .dropout = {}}, plain);
        CHECK((vy.value().layout() == Layout::plain || !plain));
        CHECK(relative_error(vy.value(), y) == 0);
        backward(vy, dy);
        CHECK(relative_error(vx.grad(), g.x) < kTolerance);
        CHECK(relative_error(vw.grad(), g.w) < kTolerance);
        CHECK(relative_error(vb.grad(), g.b) < kTolerance);
      }
  }
}

TEST_CASE("conv_pool_relu equals the four operators to rounding") {
  Mt19937 generator(14);
  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  struct Sizes {
    std::int64_t in, out, size;
  };
  for (const Sizes& s : {Sizes{1, 32, 28}, Sizes{32, 64, 14}, Sizes{16, 16, 7}, Sizes{8, 8, 6}, Sizes{3, 5, 9},
                         Sizes{64, 48, 4}, Sizes{16, 40, 8}})
    for (const float p : {0.0f, 0.25f}) {
      const std::int64_t rows = generator.randint(1, 20);
      const Array x = random_array({rows, s.in, s.size, s.size}, generator),
                  w = random_array({s.out, s.in, 3, 3}, generator), b = random_array({s.out}, generator);
      const Array dy = random_array({rows, s.out, s.size / 2, s.size / 2}, generator);
      const DropoutKey key = {5, 3, 2, p};
      Tensor stamped = to_tensor(x);
      stamped.set_stamp({3, 40, 200});
      for (const bool plain : {false, true}) {
        CAPTURE(s.in, s.out, s.size, p, rows, plain);
        const Variable x1(stamped.clone(), true), w1 = leaf(w), b1 = leaf(b), x2(stamped.clone(), true), w2 = leaf(w),
                                                  b2 = leaf(b);
        const Variable fused = ops::conv_pool_relu(x1, w1, b1, {.conv = conv, .pool = pool, .dropout = key}, plain);
        Variable single = ops::relu(ops::max_pool2d(ops::conv2d(x2, w2, b2, conv), pool));
        if (p > 0) single = ops::dropout(single, key);
        CHECK(fused.value().stamp() == single.value().stamp());
        const auto as_array = [](const Tensor& t) {
          Array array(t.shape());
          const auto values = t.span<float>();
          std::copy(values.begin(), values.end(), array.values.begin());
          return array;
        };
        CHECK(relative_error(fused.value(), as_array(ops::to_plain(single).value())) < 2e-6);
        backward(fused, dy);
        backward(single, dy);
        CHECK(relative_error(x1.grad(), as_array(x2.grad())) < 1e-6);
        CHECK(relative_error(w1.grad(), as_array(w2.grad())) < 2e-6);
        CHECK(relative_error(b1.grad(), as_array(b2.grad())) < 2e-6);
      }
    }
}

TEST_CASE("a shard without rows has gradients of zero") {
  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  Mt19937 generator(15);
  for (const bool fused : {false, true})
    for (const std::int64_t in : {1, 16}) {
      Tensor x = zeros({0, in, 6, 6});
      x.set_stamp({0, 3, 16});
      const Variable vx(x, true), w = leaf(random_array({16, in, 3, 3}, generator)),
                                  b = leaf(random_array({16}, generator));
      const Variable y = fused ? ops::conv_pool_relu(vx, w, b, {.conv = conv, .pool = pool, .dropout = {}})
                               : ops::conv2d(vx, w, b, conv);
      CHECK(y.shape()[0] == 0);
      backward(y, Array(y.shape()));
      CHECK(relative_error(w.grad(), Array(w.shape())) == 0);
      CHECK(relative_error(b.grad(), Array(b.shape())) == 0);
      CHECK(vx.grad().shape() == x.shape());
    }
}
