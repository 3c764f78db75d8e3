#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "lib/backend/average_pool.h"
#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

kernels::PoolShape pool_shape(int images, int h, int w, int kh, int kw, int sh, int sw, int ph, int pw) {
  return {images, h, w, (h + 2 * ph - kh) / sh + 1, (w + 2 * pw - kw) / sw + 1, kh, kw, sh, sw, ph, pw};
}

/// A place of output o's window: the pixel, or none outside of the image.
struct Pixel {
  bool inside;
  std::size_t at;
};
Pixel pixel_of(const kernels::PoolShape& g, std::size_t o, int place) {
  const int out = static_cast<int>(o), q = out % g.out_width, p = out / g.out_width % g.out_height;
  const int image = out / g.out_width / g.out_height;
  const int h = p * g.stride_h - g.pad_h + place / g.kernel_w, w = q * g.stride_w - g.pad_w + place % g.kernel_w;
  return {h >= 0 && w >= 0 && h < g.height && w < g.width, size_of((image * g.height + h) * g.width + w)};
}

void max_pool_cases(const kernels::PoolShape& g) {
  const std::size_t pixels = size_of(g.images * g.height * g.width);
  const std::size_t outputs = size_of(g.images * g.out_height * g.out_width);
  const int places = g.kernel_h * g.kernel_w;
  const std::initializer_list<std::int64_t> shape = {g.images,   g.height,   g.width,   g.kernel_h,
                                                     g.kernel_w, g.stride_h, g.stride_w};
  for (const bool odd : {false, true}) {
    Case c(odd ? "max_pool_forward odd" : "max_pool_forward", shape);
    const Floats x = c.input<float>("x", pixels, odd ? 1 : 0, [&](std::size_t) {
      return !odd ? c.normal() : c.below(3) == 0 ? -kInfinity : c.odd();
    });
    const Floats y = c.output("y", outputs);
    const auto index = c.output<std::uint8_t>("index", outputs);
    c.run([&] { kernels::max_pool_forward(x.data(), y.data(), index.data(), g, nullptr); });
    for (std::size_t o = 0; o < outputs; ++o) {
      double best = -std::numeric_limits<double>::infinity();
      int at = -1;
      for (int place = 0; place < places; ++place) {
        const Pixel pixel = pixel_of(g, o, place);
        if (!pixel.inside) continue;
        const double value = x.first(pixel.at);
        if (at < 0 || value > best || std::isnan(value)) best = value, at = place;  // the last NaN, as in PyTorch
      }
      c.expect("y", o, y[o], best, 0);
      c.expect_equal("index", o, index[o], at);
    }
  }
  Case c("max_pool_backward", shape);
  const Floats dy = c.normal("dy", outputs), dx = c.output("dx", pixels);
  const auto index = c.input<std::uint8_t>("index", outputs, 0, [&](std::size_t o) {
    int place;
    do place = static_cast<int>(c.below(static_cast<std::uint64_t>(places)));
    while (!pixel_of(g, o, place).inside);
    return static_cast<std::uint8_t>(place);
  });
  c.run([&] { kernels::max_pool_backward(dy.data(), index.data(), dx.data(), g, nullptr); });
  std::vector<Expected> sums(pixels);
  for (std::size_t o = 0; o < outputs; ++o) sums[pixel_of(g, o, index.first(o)).at].add(dy.first(o));
  for (std::size_t i = 0; i < pixels; ++i) c.expect("dx", i, dx[i], sums[i], 10);
}

/// One axis: `kernel` 0 is an adaptive pool, whose windows follow from the sizes.
struct Window {
  std::int64_t begin, end;
};
Window window_of(const duet::AverageAxis& axis, std::int64_t o) {
  if (axis.kernel == 0) return {o * axis.size / axis.out, ((o + 1) * axis.size + axis.out - 1) / axis.out};
  return {std::max<std::int64_t>(o * axis.stride - axis.pad, 0),
          std::min(o * axis.stride - axis.pad + axis.kernel, axis.size)};
}

/// Calls each(output, pixel, divisor) for all pixels of all windows.
template <class Each>
void for_windows(const duet::AveragePool& pool, std::int64_t images, Each each) {
  std::size_t o = 0;
  for (std::int64_t n = 0; n < images; ++n)
    for (std::int64_t p = 0; p < pool.h.out; ++p)
      for (std::int64_t q = 0; q < pool.w.out; ++q, ++o) {
        const Window h = window_of(pool.h, p), w = window_of(pool.w, q);
        const bool padded = pool.h.counts_padding && pool.h.kernel != 0;
        const std::int64_t divisor = padded ? pool.h.kernel * pool.w.kernel : (h.end - h.begin) * (w.end - w.begin);
        for (std::int64_t y = h.begin; y < h.end; ++y)
          for (std::int64_t x = w.begin; x < w.end; ++x)
            each(o, size_of((n * pool.h.size + y) * pool.w.size + x), divisor);
      }
}

void average_pool_cases(const duet::AveragePool& pool, std::int64_t images) {
  const std::size_t pixels = size_of(images * pool.h.size * pool.w.size);
  const std::size_t outputs = size_of(images * pool.h.out * pool.w.out);
  const std::initializer_list<std::int64_t> shape = {images,     pool.h.size,   pool.w.size,   pool.h.out,
                                                     pool.w.out, pool.h.kernel, pool.w.kernel, pool.h.counts_padding};
  {
    Case c("avg_pool_forward", shape);
    const Floats x = c.normal("x", pixels, 1), y = c.output("y", outputs);
    c.run([&] { kernels::avg_pool_forward(x.data(), y.data(), pool, images, nullptr); });
    std::vector<Expected> means(outputs);
    for_windows(pool, images, [&](std::size_t o, std::size_t i, std::int64_t by) {
      means[o].add(x.first(i) / static_cast<double>(by));
    });
    for (std::size_t o = 0; o < outputs; ++o) c.expect("y", o, y[o], means[o], 12);
  }
  Case c("avg_pool_backward", shape);
  const Floats dy = c.normal("dy", outputs), dx = c.output("dx", pixels);
  c.run([&] { kernels::avg_pool_backward(dy.data(), dx.data(), pool, images, nullptr); });
  std::vector<Expected> sums(pixels);
  for_windows(pool, images, [&](std::size_t o, std::size_t i, std::int64_t by) {
    sums[i].add(dy.first(o) / static_cast<double>(by));
  });
  for (std::size_t i = 0; i < pixels; ++i) c.expect("dx", i, dx[i], sums[i], 20);
}

duet::AveragePool average_pool(int h, int w, int kh, int kw, int sh, int sw, int ph, int pw, bool counts) {
  duet::AveragePool pool;
  pool.h = {h, (h + 2 * ph - kh) / sh + 1, kh, sh, ph, counts};
  pool.w = {w, (w + 2 * pw - kw) / sw + 1, kw, sw, pw, counts};
  return pool;
}

duet::AveragePool adaptive_pool(int h, int w, int out_h, int out_w) {
  duet::AveragePool pool;
  pool.h = {h, out_h, 0, 1, 0, false};
  pool.w = {w, out_w, 0, 1, 0, false};
  return pool;
}

}  // namespace

TEST_CASE("ptx: largest values of windows") {
  for (const kernels::PoolShape& g :
       {pool_shape(1, 1, 1, 1, 1, 1, 1, 0, 0), pool_shape(3, 7, 5, 2, 2, 2, 2, 0, 0),
        pool_shape(2, 9, 11, 3, 3, 2, 2, 1, 1), pool_shape(5, 14, 14, 2, 2, 2, 2, 0, 0),
        pool_shape(2, 6, 13, 3, 5, 1, 2, 1, 2), pool_shape(0, 4, 4, 2, 2, 2, 2, 0, 0),
        pool_shape(4, 16, 16, 15, 16, 1, 1, 0, 0), pool_shape(7, 32, 32, 3, 3, 3, 3, 0, 0),
        pool_shape(2, 5, 5, 2, 2, 4, 4, 1, 1), pool_shape(3, 20, 20, 7, 9, 2, 3, 3, 4),
        pool_shape(128, 14, 14, 2, 2, 2, 2, 0, 0), pool_shape(1, 40, 3, 13, 3, 1, 1, 6, 1)})
    max_pool_cases(g);
  check_all_launched("pool", {"avg_pool_"});
}

TEST_CASE("ptx: means of windows") {
  for (const bool counts : {false, true}) {
    average_pool_cases(average_pool(7, 5, 2, 2, 2, 2, 0, 0, counts), 3);
    average_pool_cases(average_pool(9, 11, 3, 3, 2, 2, 1, 1, counts), 2);
    average_pool_cases(average_pool(6, 13, 3, 5, 1, 2, 1, 2, counts), 2);
    average_pool_cases(average_pool(1, 1, 1, 1, 1, 1, 0, 0, counts), 1);
    average_pool_cases(average_pool(5, 5, 2, 2, 4, 4, 1, 1, counts), 2);
    average_pool_cases(average_pool(16, 16, 4, 4, 3, 3, 2, 2, counts), 9);
    average_pool_cases(average_pool(40, 45, 9, 21, 1, 1, 4, 10, counts), 3);
    average_pool_cases(average_pool(33, 35, 33, 35, 1, 1, 0, 0, counts), 2);
    average_pool_cases(average_pool(20, 30, 13, 17, 1, 1, 6, 8, counts), 2);
    average_pool_cases(average_pool(20, 30, 13, 17, 1, 2, 6, 8, counts), 1);
  }
  average_pool_cases(adaptive_pool(7, 7, 1, 1), 3);
  average_pool_cases(adaptive_pool(7, 5, 3, 2), 2);
  average_pool_cases(adaptive_pool(3, 4, 7, 6), 2);
  average_pool_cases(adaptive_pool(3, 4, 2, 2), 0);
  average_pool_cases(adaptive_pool(8, 8, 1, 1), 33);
  average_pool_cases(adaptive_pool(5, 6, 19, 40), 4);
  average_pool_cases(adaptive_pool(50, 70, 2, 3), 2);
  check_launched({"avg_pool_"});
}
