// Convolutions on a GPU, alone and fused with pooling, relu and dropout, against the reference and the CPU.
#include <cstdint>

#include "lib/ops/ops.h"
#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

namespace {

struct Case {
  Shape x;
  std::int64_t out;
  Window2d window;
};

constexpr Window2d kThree = {3, 3, 1, 1, 1, 1};

}  // namespace

DUET_CUDA_TEST("cuda: conv2d and its gradients equal the reference, in every precision") {
  Mt19937 generator(101);
  const Case cases[] = {{{1, 1, 5, 7}, 3, kThree},
                        {{3, 2, 6, 5}, 4, {3, 2, 2, 1, 0, 1}},
                        {{17, 3, 4, 4}, 5, kThree},
                        {{2, 8, 9, 8}, 8, {5, 5, 1, 1, 2, 2}},
                        {{4, 5, 3, 3}, 1, {1, 1, 1, 1, 0, 0}}};
  for (const Case& c : cases)
    for (const Precision precision : kPrecisions) {
      const WithPrecision set(precision);
      const double allowed = tolerance(precision);
      const Array x = random_array(c.x, generator),
                  w = random_array({c.out, c.x[1], c.window.kernel_h, c.window.kernel_w}, generator),
                  b = random_array({c.out}, generator);
      const Array y = reference::conv2d(x, w, b, c.window), dy = random_array(y.shape, generator);
      const auto g = reference::conv2d_backward(x, w, dy, c.window);
      CAPTURE(c.x.str(), c.out, name(precision));
      const Variable vx = gpu_leaf(x), vw = gpu_leaf(w), vb = gpu_leaf(b);
      const Variable vy = ops::conv2d(vx, vw, vb, c.window);
      CHECK(gpu_error(vy.value(), y) < allowed);
      vy.backward(on_gpu(dy));
      CHECK(gpu_error(vx.grad(), g.x) < allowed);
      CHECK(gpu_error(vw.grad(), g.w) < allowed);
      CHECK(gpu_error(vb.grad(), g.b) < allowed);
      CHECK(gpu_error(ops::conv2d(vx, vw, Variable(), c.window).value(), reference::conv2d(x, w, Array(), c.window)) <
            allowed);
    }
}

DUET_CUDA_TEST("cuda: convolutions take tensors at any place of a flat buffer") {
  Mt19937 generator(102);
  const Array x = random_array({2, 2, 6, 6}, generator), w = random_array({4, 2, 3, 3}, generator),
              b = random_array({4}, generator);
  const Array y = reference::conv2d(x, w, b, kThree), dy = random_array(y.shape, generator);
  const auto g = reference::conv2d_backward(x, w, dy, kThree);
  Backend& gpu = backend(DeviceKind::cuda);
  for (const std::int64_t skip : {1, 2, 3}) {
    CAPTURE(skip);
    const Tensor tx = gpu_view(x, skip), tw = gpu_view(w, skip), tb = gpu_view(b, skip), tdy = gpu_view(dy, skip);
    const Tensor ty = gpu_view(Array(y.shape), skip), dx = gpu_view(Array(x.shape), skip),
                 dw = gpu_view(Array(w.shape), skip), db = gpu_view(Array(b.shape), skip);
    gpu.conv2d_forward(tx, tw, tb, ty, kThree);
    gpu.conv2d_backward_data(tdy, tw, dx, kThree);
    gpu.conv2d_backward_weights(tx, tdy, dw, db, kThree);
    CHECK(gpu_error(ty, y) < kTolerance);
    CHECK(gpu_error(dx, g.x) < kTolerance);
    CHECK(gpu_error(dw, g.w) < kTolerance);
    CHECK(gpu_error(db, g.b) < kTolerance);
  }
}

DUET_CUDA_TEST("cuda: conv_pool_relu equals the reference, ties and stopped windows included") {
  Mt19937 generator(103);
  struct Sizes {
    Shape x;
    std::int64_t out, pool_h, pool_w;
    bool stopped;
  };
  const Sizes cases[] = {{{1, 1, 4, 6}, 2, 2, 2, false},  {{3, 2, 7, 5}, 3, 2, 2, false},
                         {{17, 1, 6, 6}, 4, 2, 2, false}, {{2, 3, 9, 7}, 2, 3, 2, false},
                         {{3, 2, 5, 8}, 2, 2, 2, false},  {{3, 2, 6, 6}, 2, 2, 2, true}};
  for (const Sizes& s : cases) {
    const Window2d pool = {s.pool_h, s.pool_w, s.pool_h, s.pool_w, 0, 0};
    // Exact in float: the same maxima, ties and zeros whatever the order of the sums.
    const Array x = random_grid(s.x, 2, 4, generator), w = random_grid({s.out, s.x[1], 3, 3}, 2, 4, generator);
    Array b = random_grid({s.out}, 4, 16, generator);
    if (s.stopped)
      for (double& value : b.values) value = -1000;
    const Array y = reference::conv_pool_relu(x, w, b, kThree, pool), dy = random_array(y.shape, generator);
    const auto g = reference::conv_pool_relu_backward(x, w, b, dy, kThree, pool);
    CAPTURE(s.x.str(), s.out, s.pool_h, s.pool_w, s.stopped);
    const Variable vx = gpu_leaf(x), vw = gpu_leaf(w), vb = gpu_leaf(b);
    const Variable vy = ops::conv_pool_relu(vx, vw, vb, {.conv = kThree, .pool = pool, .dropout = {}}, true);
    CHECK(gpu_error(vy.value(), y) == 0);
    vy.backward(on_gpu(dy));
    CHECK(gpu_error(vx.grad(), g.x) < kTolerance);
    CHECK(gpu_error(vw.grad(), g.w) < kTolerance);
    CHECK(gpu_error(vb.grad(), g.b) < kTolerance);
  }
}

DUET_CUDA_TEST("cuda: conv_pool_relu picks the CPU's places, 255 where no gradient passes") {
  Mt19937 generator(104);
  const ConvPoolRelu op = {.conv = kThree, .pool = {2, 2, 2, 2, 0, 0}, .dropout = {11, 5, 2, 0.4f}};
  for (const std::int64_t size : {6, 7, 13}) {
    CAPTURE(size);
    Tensor x = to_tensor(random_grid({3, 2, size, size}, 2, 4, generator));
    x.set_stamp({5, 40, 200});
    const Tensor w = to_tensor(random_grid({3, 2, 3, 3}, 2, 4, generator)),
                 b = to_tensor(random_grid({3}, 4, 16, generator));
    const Shape pooled = {3, 3, size / 2, size / 2};
    const Tensor y = empty(pooled), index = empty(pooled, DType::u8);
    backend(DeviceKind::cpu).conv_pool_relu_forward(x, w, b, y, index, op);
    const Tensor gpu_y = empty(pooled, DType::f32, kGpu), gpu_index = empty(pooled, DType::u8, kGpu);
    Tensor gpu_x = on_gpu(x);
    gpu_x.set_stamp(x.stamp());
    backend(DeviceKind::cuda).conv_pool_relu_forward(gpu_x, on_gpu(w), on_gpu(b), gpu_y, gpu_index, op);
    CHECK(same_bits(gpu_y, y));
    CHECK(bytes_of(gpu_index) == bytes_of(index));
  }
}

DUET_CUDA_TEST("cuda: conv_pool_relu equals the four operators: values bit for bit, gradients to rounding") {
  Mt19937 generator(105);
  const Window2d pool = {2, 2, 2, 2, 0, 0};
  for (const float p : {0.0f, 0.25f})
    for (const std::int64_t size : {14, 9}) {
      const Array x = random_array({3, 2, size, size}, generator), w = random_array({6, 2, 3, 3}, generator),
                  b = random_array({6}, generator), dy = random_array({3, 6, size / 2, size / 2}, generator);
      const DropoutKey key = {5, 3, 2, p};
      CAPTURE(p, size);
      Tensor stamped = on_gpu(x);
      stamped.set_stamp({3, 40, 200});
      const Variable x1(stamped, true), w1 = gpu_leaf(w), b1 = gpu_leaf(b), x2(stamped, true), w2 = gpu_leaf(w),
                                        b2 = gpu_leaf(b);
      const Variable fused = ops::conv_pool_relu(x1, w1, b1, {.conv = kThree, .pool = pool, .dropout = key}, true);
      Variable single = ops::relu(ops::max_pool2d(ops::conv2d(x2, w2, b2, kThree), pool));
      if (p > 0) single = ops::dropout(single, key);
      CHECK(same_bits(fused.value(), single.value()));
      fused.backward(on_gpu(dy));
      single.backward(on_gpu(dy));
      CHECK(gpu_error(x1.grad(), as_array(x2.grad())) < 2e-6);
      CHECK(gpu_error(w1.grad(), as_array(w2.grad())) < 2e-6);
      CHECK(gpu_error(b1.grad(), as_array(b2.grad())) < 2e-6);
    }
}

DUET_CUDA_TEST("cuda: a shard without rows has gradients of zero") {
  Mt19937 generator(106);
  for (const bool fused : {false, true}) {
    CAPTURE(fused);
    const Variable x(zeros({0, 2, 6, 6}, DType::f32, kGpu), true), w = gpu_leaf(random_array({3, 2, 3, 3}, generator)),
                                                                   b = gpu_leaf(random_array({3}, generator));
    const Variable y =
        fused ? ops::conv_pool_relu(x, w, b, {.conv = kThree, .pool = {2, 2, 2, 2, 0, 0}, .dropout = {}}, true)
              : ops::conv2d(x, w, b, kThree);
    y.backward(zeros(y.shape(), DType::f32, kGpu));
    CHECK(gpu_error(w.grad(), Array(w.shape())) == 0);
    CHECK(gpu_error(b.grad(), Array(b.shape())) == 0);
    CHECK(x.grad().shape() == x.shape());
  }
}

DUET_CUDA_TEST("cuda: convolutions without results have gradients of zero") {
  Mt19937 generator(108);
  for (const Precision precision : kPrecisions) {
    CAPTURE(name(precision));
    const WithPrecision set(precision);
    const Variable x = gpu_leaf(random_array({2, 3, 6, 6}, generator)),
                   none(zeros({0, 3, 3, 3}, DType::f32, kGpu), true);  // filters
    const Variable y = ops::conv2d(x, none, Variable(), kThree);
    y.backward(zeros(y.shape(), DType::f32, kGpu));
    CHECK(gpu_error(x.grad(), Array(x.shape())) == 0);
    CHECK(none.grad().shape() == none.shape());

    const Variable low(zeros({2, 3, 0, 4}, DType::f32, kGpu), true),
        w = gpu_leaf(random_array({3, 4, 3, 3}, generator));
    const Variable high = ops::conv_transpose2d(low, w, Variable(), {3, 3, 1, 1, 0, 0});
    CHECK(gpu_error(high.value(), Array(high.shape())) == 0);
    high.backward(zeros(high.shape(), DType::f32, kGpu));
    CHECK(gpu_error(w.grad(), Array(w.shape())) == 0);
  }
}

DUET_CUDA_TEST("cuda: convolutions give the same bits each time") {
  Mt19937 generator(107);
  const Array x = random_array({5, 3, 8, 8}, generator), w = random_array({4, 3, 3, 3}, generator),
              b = random_array({4}, generator), dy = random_array({5, 4, 4, 4}, generator);
  Tensor first[3];
  for (int run = 0; run < 3; ++run) {
    const Variable vx = gpu_leaf(x), vw = gpu_leaf(w), vb = gpu_leaf(b);
    ops::conv_pool_relu(vx, vw, vb, {.conv = kThree, .pool = {2, 2, 2, 2, 0, 0}, .dropout = {1, 2, 3, 0.5f}}, true)
        .backward(on_gpu(dy));
    const Tensor now[] = {vx.grad(), vw.grad(), vb.grad()};
    for (int i = 0; i < 3; ++i) {
      if (run == 0) first[i] = on_cpu(now[i]);
      CHECK(same_bits(now[i], first[i]));
    }
  }
}
