// Operators of image networks on a GPU, against the reference and to the CPU's bits: average pools, groups.
#include <cstdint>
#include <vector>

#include "lib/ops/ops.h"
#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("cuda: avg_pool2d equals the reference, and the CPU to the bit") {
  DUET_NEEDS_CUDA();
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

TEST_CASE("cuda: conv2d in groups equals the reference, in every precision") {
  DUET_NEEDS_CUDA();
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

TEST_CASE("cuda: adaptive_avg_pool2d equals the reference, and the CPU to the bit") {
  DUET_NEEDS_CUDA();
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
