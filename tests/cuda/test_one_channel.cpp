// conv_pool_relu over images of one channel, which own kernels compute, against the reference and the CPU.
#include <cmath>
#include <cstdint>

#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr Window2d kPool = {2, 2, 2, 2, 0, 0};

Window2d three(std::int64_t pad_h, std::int64_t pad_w) { return {3, 3, 1, 1, pad_h, pad_w}; }

/// The operator and its gradients on the GPU, of tensors that start `skip` elements into their memory.
struct Run {
  Run(const Array& image, const Array& weights, const Array& bias, const Array& gradient, const ConvPoolRelu& op,
      std::int64_t skip = 0)
      : x(gpu_view(image, skip)),
        w(gpu_view(weights, skip)),
        y(gpu_view(Array(gradient.shape), skip)),
        index(empty(gradient.shape, DType::u8, kGpu)),
        dw(gpu_view(Array(weights.shape), skip)),
        db(gpu_view(Array(bias.shape), skip)) {
    Backend& gpu = backend(DeviceKind::cuda);
    gpu.conv_pool_relu_forward(x, w, gpu_view(bias, skip), y, index, op);
    gpu.conv_pool_relu_backward(gpu_view(gradient, skip), index, x, w, {}, dw, db, op);
  }
  Tensor x, w, y, index, dw, db;
};

}  // namespace

DUET_CUDA_TEST("cuda: the convolution of one channel and its gradients equal the reference, in every precision") {
  Mt19937 generator(141);
  struct Sizes {
    Shape x;
    std::int64_t out, pad_h, pad_w;
  };
  // One window; odd sizes; two groups of channels and of images; more padding than pixels; more images than parts.
  const Sizes cases[] = {{{1, 1, 2, 2}, 1, 1, 1}, {{3, 1, 5, 7}, 3, 1, 1},  {{9, 1, 6, 6}, 9, 0, 0},
                         {{2, 1, 4, 9}, 8, 2, 0}, {{3, 1, 13, 6}, 5, 0, 7}, {{520, 1, 2, 2}, 1, 1, 1}};
  for (const Sizes& s : cases)
    for (const Precision precision : kPrecisions) {
      const WithPrecision set(precision);
      const Window2d conv = three(s.pad_h, s.pad_w);
      // Exact in float and in bfloat16, also their sums: the same results whatever the order.
      const Array x = random_grid(s.x, 2, 4, generator), w = random_grid({s.out, 1, 3, 3}, 2, 4, generator),
                  b = random_grid({s.out}, 4, 16, generator);
      const Array y = reference::conv_pool_relu(x, w, b, conv, kPool), dy = random_grid(y.shape, 2, 4, generator);
      const auto g = reference::conv_pool_relu_backward(x, w, b, dy, conv, kPool);
      CAPTURE(s.x.str(), s.out, s.pad_h, s.pad_w, name(precision));
      const Run run(x, w, b, dy, {.conv = conv, .pool = kPool, .dropout = {}}, s.out % 4);
      CHECK(gpu_error(run.y, y) == 0);
      CHECK(gpu_error(run.dw, g.w) == 0);
      CHECK(gpu_error(run.db, g.b) == 0);
    }
}

DUET_CUDA_TEST("cuda: the convolution of one channel picks the CPU's places, of ties and NaN too") {
  Mt19937 generator(142);
  const ConvPoolRelu op = {.conv = three(1, 1), .pool = kPool, .dropout = {}};
  for (const std::int64_t size : {6, 7, 13}) {
    CAPTURE(size);
    Array x = random_grid({3, 1, size, size}, 2, 2, generator), b = random_grid({4}, 4, 4, generator);
    x[size + 2] = NAN;
    x[2 * size * size] = INFINITY;
    b.values[3] = -100;  // no gradient passes
    const Array w = random_grid({4, 1, 3, 3}, 2, 2, generator);
    const Shape pooled = {3, 4, size / 2, size / 2};
    const Tensor y = empty(pooled), index = empty(pooled, DType::u8);
    backend(DeviceKind::cpu).conv_pool_relu_forward(to_tensor(x), to_tensor(w), to_tensor(b), y, index, op);
    const Run run(x, w, b, Array(pooled), op);
    CHECK(bytes_of(run.index) == bytes_of(index));
    const Array expected = as_array(y), values = as_array(run.y);
    for (std::int64_t i = 0; i < pooled.count(); ++i)
      CHECK((values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i]))));
  }
}

DUET_CUDA_TEST("cuda: the convolution of one channel rounds to bfloat16 what that precision rounds") {
  Mt19937 generator(143);
  const Window2d conv = three(1, 1);
  const ConvPoolRelu op = {.conv = conv, .pool = kPool, .dropout = {}};
  const Array x = random_array({3, 1, 9, 8}, generator), w = random_array({5, 1, 3, 3}, generator),
              b = random_array({5}, generator), dy = random_array({3, 5, 4, 4}, generator);
  for (const Precision precision : kPrecisions) {
    const WithPrecision set(precision);
    const bool rounds = precision == Precision::bf16;
    const Array image = rounds ? rounded(x) : x, weights = rounds ? rounded(w) : w;
    const auto g = reference::conv_pool_relu_backward(image, weights, b, rounds ? rounded(dy) : dy, conv, kPool);
    CAPTURE(name(precision));
    const Run run(x, w, b, dy, op);
    CHECK(gpu_error(run.y, reference::conv_pool_relu(image, weights, b, conv, kPool)) < 1e-6);
    CHECK(gpu_error(run.dw, g.w) < 1e-6);
    // Sums alone are those of floats.
    CHECK(gpu_error(run.db, reference::conv_pool_relu_backward(image, weights, b, dy, conv, kPool).b) < 1e-6);
  }
}

DUET_CUDA_TEST("cuda: the convolution of one channel gives the same bits each time, and zeros for no images") {
  Mt19937 generator(144);
  const ConvPoolRelu op = {.conv = three(1, 1), .pool = kPool, .dropout = {}};
  const Array x = random_array({19, 1, 7, 7}, generator), w = random_array({3, 1, 3, 3}, generator),
              b = random_array({3}, generator), dy = random_array({19, 3, 3, 3}, generator);
  const Run first(x, w, b, dy, op), second(x, w, b, dy, op, 1);
  CHECK(same_bits(first.y, second.y));
  CHECK(same_bits(first.dw, second.dw));
  CHECK(same_bits(first.db, second.db));
  const Tensor none = zeros({0, 1, 7, 7}, DType::f32, kGpu), no_gradient = zeros({0, 3, 3, 3}, DType::f32, kGpu);
  backend(none).conv_pool_relu_backward(no_gradient, zeros(no_gradient.shape(), DType::u8, kGpu), none, first.w, {},
                                        first.dw, first.db, op);
  CHECK(gpu_error(first.dw, Array(w.shape)) == 0);
  CHECK(gpu_error(first.db, Array(b.shape)) == 0);
}
