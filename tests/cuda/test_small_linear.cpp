// Linear layers of few outputs, which own kernels compute, against the reference and cuBLAS.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

namespace {

struct Sizes {
  std::int64_t rows, in, out;
};

Tensor room(const Shape& shape, std::int64_t skip) { return gpu_view(Array(shape), skip); }

}  // namespace

DUET_CUDA_TEST("cuda: small linear layers and their gradients equal the reference, in every precision") {
  Backend& gpu = backend(DeviceKind::cuda);
  Mt19937 generator(151);
  // The smallest; few outputs and more; whole warps and one more; the most weights, and too many; too many rows.
  const Sizes cases[] = {{1, 1, 1},    {3, 7, 10},   {4, 32, 16}, {5, 33, 17},
                         {6, 128, 32}, {5, 129, 32}, {2, 31, 33}, {1025, 3, 2}};
  for (const Sizes& s : cases)
    for (const Precision precision : kPrecisions) {
      const WithPrecision set(precision);
      // Exact in float and in bfloat16, also their sums: the same results whatever the order.
      const Array x = random_grid({s.rows, s.in}, 2, 4, generator), w = random_grid({s.out, s.in}, 2, 4, generator),
                  b = random_grid({s.out}, 2, 4, generator), dy = random_grid({s.rows, s.out}, 2, 4, generator);
      const auto g = reference::linear_backward(x, w, dy);
      const std::int64_t skip = s.in % 4;
      const Tensor tx = gpu_view(x, skip), tw = gpu_view(w, skip), tdy = gpu_view(dy, skip), y = room(dy.shape, skip);
      CAPTURE(s.rows, s.in, s.out, name(precision));
      gpu.linear_forward(tx, tw, gpu_view(b, skip), y);
      CHECK(gpu_error(y, reference::linear(x, w, b)) == 0);
      gpu.linear_forward(tx, tw, {}, y);
      CHECK(gpu_error(y, reference::linear(x, w, Array())) == 0);
      for (const int wanted : {7, 6, 4, 2, 1}) {  // dx, dw and db
        const Tensor dx = wanted & 1 ? room(x.shape, skip) : Tensor(), dw = wanted & 6 ? room(w.shape, skip) : Tensor(),
                     db = wanted & 4 ? room(b.shape, skip) : Tensor();
        CAPTURE(wanted);
        gpu.linear_backward(tdy, tx, tw, dx, dw, db);
        if (dx.defined()) CHECK(gpu_error(dx, g.x) == 0);
        if (dw.defined()) CHECK(gpu_error(dw, g.w) == 0);
        if (db.defined()) CHECK(gpu_error(db, g.b) == 0);
      }
    }
}

DUET_CUDA_TEST("cuda: small linear layers round to bfloat16 what that precision rounds") {
  Backend& gpu = backend(DeviceKind::cuda);
  Mt19937 generator(152);
  const Array x = random_array({9, 40}, generator), w = random_array({10, 40}, generator),
              b = random_array({10}, generator), dy = random_array({9, 10}, generator);
  for (const Precision precision : kPrecisions) {
    const WithPrecision set(precision);
    const bool rounds = precision == Precision::bf16;
    const Array rows = rounds ? rounded(x) : x, weights = rounds ? rounded(w) : w;
    const auto g = reference::linear_backward(rows, weights, rounds ? rounded(dy) : dy);
    const Tensor y = room(dy.shape, 0), dx = room(x.shape, 0), dw = room(w.shape, 0), db = room(b.shape, 0);
    CAPTURE(name(precision));
    gpu.linear_forward(on_gpu(x), on_gpu(w), on_gpu(b), y);
    gpu.linear_backward(on_gpu(dy), on_gpu(x), on_gpu(w), dx, dw, db);
    CHECK(gpu_error(y, reference::linear(rows, weights, b)) < 1e-6);
    CHECK(gpu_error(dx, g.x) < 1e-6);
    CHECK(gpu_error(dw, g.w) < 1e-6);
    // Sums alone are those of floats.
    CHECK(gpu_error(db, reference::linear_backward(rows, weights, dy).b) < 1e-6);
  }
}

DUET_CUDA_TEST("cuda: small linear_log_softmax has the bits of its operators, of NaN and infinity too") {
  Backend& gpu = backend(DeviceKind::cuda);
  Mt19937 generator(153);
  for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{9, 20, 10}, Sizes{5, 70, 16}, Sizes{6, 64, 32}})
    for (const Precision precision : kPrecisions) {
      const WithPrecision set(precision);
      Array x = random_array({s.rows, s.in}, generator);
      const Array w = random_array({s.out, s.in}, generator), b = random_array({s.out}, generator);
      if (s.rows > 3) {
        x[0] = NAN;
        x[s.in] = INFINITY;
        for (std::int64_t i = 0; i < s.in; ++i) x[2 * s.in + i] *= 300;  // exp overflows without the shift
      }
      const Tensor tx = gpu_view(x, 1), tw = gpu_view(w, 2), tb = gpu_view(b, 3), fused = room({s.rows, s.out}, 1),
                   single = room({s.rows, s.out}, 0);
      gpu.linear_log_softmax_forward(tx, tw, tb, fused);
      gpu.linear_forward(tx, tw, tb, single);
      gpu.log_softmax_forward(single, single);
      CAPTURE(s.rows, s.in, s.out, name(precision));
      const Array left = as_array(fused), right = as_array(single);
      for (std::int64_t i = 0; i < s.rows * s.out; ++i)
        CHECK((left[i] == right[i] || (std::isnan(left[i]) && std::isnan(right[i]))));
      if (s.rows > 3) CHECK((std::isnan(left[0]) && !std::isnan(left[3 * s.out])));
    }
}

DUET_CUDA_TEST("cuda: small linear layers of no rows have gradients of zero") {
  Backend& gpu = backend(DeviceKind::cuda);
  Mt19937 generator(154);
  const Tensor x = zeros({0, 5}, DType::f32, kGpu), dy = zeros({0, 3}, DType::f32, kGpu),
               w = on_gpu(random_array({3, 5}, generator)), dw = on_gpu(random_array({3, 5}, generator)),
               db = on_gpu(random_array({3}, generator));
  gpu.linear_log_softmax_forward(x, w, {}, dy);
  gpu.linear_backward(dy, x, w, zeros(x.shape(), DType::f32, kGpu), dw, db);
  CHECK(gpu_error(dw, Array({3, 5})) == 0);
  CHECK(gpu_error(db, Array({3})) == 0);
}
