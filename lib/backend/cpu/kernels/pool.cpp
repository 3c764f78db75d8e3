// Pooling: maxima, and averages.
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

/// One window, all kBlock channels at once. Ties go to the first maximum in row-major order; a NaN wins, as in PyTorch.
template <int kBlock>
void pool_window(const float* x, float* y, std::uint8_t* index, const PoolGeometry& g, std::int64_t top,
                 std::int64_t left) {
  const auto first = static_cast<std::int32_t>((top < 0 ? -top : 0) * g.kernel_w + (left < 0 ? -left : 0));
  float best[kBlock];
  std::int32_t place[kBlock];
  for (int c = 0; c < kBlock; ++c) best[c] = -__builtin_inff();
  for (int c = 0; c < kBlock; ++c) place[c] = first;
  for (std::int64_t r = 0; r < g.kernel_h; ++r) {
    const std::int64_t h = top + r;
    if (h < 0 || h >= g.height) continue;
    for (std::int64_t s = 0; s < g.kernel_w; ++s) {
      const std::int64_t w = left + s;
      if (w < 0 || w >= g.width) continue;
      const float* const pixel = x + (h * g.width + w) * kBlock;
      const auto here = static_cast<std::int32_t>(r * g.kernel_w + s);
      for (int c = 0; c < kBlock; ++c) {
        const bool wins = arithmetic::pool_wins(pixel[c], best[c]);
        best[c] = wins ? pixel[c] : best[c];
        place[c] = wins ? here : place[c];
      }
    }
  }
  for (int c = 0; c < kBlock; ++c) y[c] = best[c];
  for (int c = 0; c < kBlock; ++c) index[c] = static_cast<std::uint8_t>(place[c]);
}

/// The common 2x2 window with stride 2 inside the image, one row of windows.
template <int kBlock>
void pool_2x2(const float* x, float* y, std::uint8_t* index, std::int64_t width, std::int64_t out_width) {
  using L = Lanes<kBlock>;
  using Floats = typename L::Floats;
  using Ints = typename L::Ints;
  for (std::int64_t q = 0; q < out_width; ++q) {
    const float* const corner = x + 2 * q * kBlock;
    Floats best = L::load(corner);
    Ints place = Ints{} + 0;
    for (int i = 1; i < 4; ++i) {
      const Floats next = L::load(corner + (i / 2 * width + i % 2) * kBlock);
      const auto wins = arithmetic::pool_wins(next, best);
      best = wins ? next : best;
      place = wins ? Ints{} + i : place;
    }
    L::store(y + q * kBlock, best);
    L::store_bytes(index + q * kBlock, place);
  }
}

template <int kBlock>
void pool_image(const float* x, float* y, std::uint8_t* index, const PoolGeometry& g) {
  const bool simple =
      g.kernel_h == 2 && g.kernel_w == 2 && g.stride_h == 2 && g.stride_w == 2 && g.pad_h == 0 && g.pad_w == 0;
  for (std::int64_t p = 0; p < g.out_height; ++p) {
    float* const row = y + p * g.out_width * kBlock;
    std::uint8_t* const index_row = index + p * g.out_width * kBlock;
    if (simple) {
      pool_2x2<kBlock>(x + 2 * p * g.width * kBlock, row, index_row, g.width, g.out_width);
      continue;
    }
    for (std::int64_t q = 0; q < g.out_width; ++q)
      pool_window<kBlock>(x, row + q * kBlock, index_row + q * kBlock, g, p * g.stride_h - g.pad_h,
                          q * g.stride_w - g.pad_w);
  }
}

template <int kBlock>
void unpool_2x2(const float* dy, const std::uint8_t* index, float* dx, const PoolGeometry& g) {
  using L = Lanes<kBlock>;
  using Floats = typename L::Floats;
  using Ints = typename L::Ints;
  for (std::int64_t p = 0; p < g.out_height; ++p) {
    for (std::int64_t q = 0; q < g.out_width; ++q) {
      const std::int64_t at = (p * g.out_width + q) * kBlock;
      const Floats gradient = L::load(dy + at);
      const Ints place = L::load_bytes(index + at);
      float* const corner = dx + (2 * p * g.width + 2 * q) * kBlock;
      for (int i = 0; i < 4; ++i)
        L::store(corner + (i / 2 * g.width + i % 2) * kBlock, place == Ints{} + i ? gradient : Floats{} + 0.0f);
    }
  }
}

template <int kBlock>
void unpool_image(const float* dy, const std::uint8_t* index, float* dx, const PoolGeometry& g) {
  // Windows that tile the whole image write every pixel themselves.
  if (g.kernel_h == 2 && g.kernel_w == 2 && g.stride_h == 2 && g.stride_w == 2 && g.pad_h == 0 && g.pad_w == 0 &&
      g.height == 2 * g.out_height && g.width == 2 * g.out_width)
    return unpool_2x2<kBlock>(dy, index, dx, g);
  for (std::int64_t i = 0; i < g.height * g.width * kBlock; ++i) dx[i] = 0;
  for (std::int64_t p = 0; p < g.out_height; ++p) {
    for (std::int64_t q = 0; q < g.out_width; ++q) {
      for (int c = 0; c < kBlock; ++c) {
        const std::int64_t at = (p * g.out_width + q) * kBlock + c;
        if (index[at] == kNoGradient) continue;
        const std::int64_t h = p * g.stride_h - g.pad_h + index[at] / g.kernel_w;
        const std::int64_t w = q * g.stride_w - g.pad_w + index[at] % g.kernel_w;
        dx[(h * g.width + w) * kBlock + c] += dy[at];
      }
    }
  }
}

}  // namespace

void max_pool(const float* x, float* y, std::uint8_t* index, const PoolGeometry& g, int block) {
  if (block == 16) return pool_image<16>(x, y, index, g);
  if (block == 8) return pool_image<8>(x, y, index, g);
  pool_image<1>(x, y, index, g);
}

void max_pool_backward(const float* dy, const std::uint8_t* index, float* dx, const PoolGeometry& g, int block) {
  if (block == 16) return unpool_image<16>(dy, index, dx, g);
  if (block == 8) return unpool_image<8>(dy, index, dx, g);
  unpool_image<1>(dy, index, dx, g);
}

void relu_index(float* y, std::uint8_t* index, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const bool stopped = arithmetic::relu_stops(y[i]);
    y[i] = stopped ? 0.0f : y[i];
    index[i] = stopped ? kNoGradient : index[i];
  }
}

void drop_index(float* y, std::uint8_t* index, const std::uint8_t* mask, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = y[i] * (mask[i] ? factor : 0.0f);
    index[i] = mask[i] ? index[i] : kNoGradient;
  }
}

namespace {

using arithmetic::end_pixel;
using arithmetic::first_pixel;

template <int kBlock>
void average_image(const float* x, float* y, const AveragePool& pool) {
  using L = Lanes<kBlock>;
  using Floats = typename L::Floats;
  for (std::int64_t p = 0; p < pool.h.out; ++p) {
    const std::int64_t top = first_pixel(pool.h, p), bottom = end_pixel(pool.h, p);
    for (std::int64_t q = 0; q < pool.w.out; ++q) {
      const std::int64_t left = first_pixel(pool.w, q), right = end_pixel(pool.w, q);
      Floats total = Floats{} + 0.0f;
      for (std::int64_t h = top; h < bottom; ++h) {
        Floats row = Floats{} + 0.0f;
        for (std::int64_t w = left; w < right; ++w) row += L::load(x + (h * pool.w.size + w) * kBlock);
        total += row;
      }
      L::store(y + (p * pool.w.out + q) * kBlock, total / arithmetic::pixels_of(pool, p, q));
    }
  }
}

template <int kBlock>
void spread_image(const float* dy, float* dx, const AveragePool& pool) {
  using L = Lanes<kBlock>;
  using Floats = typename L::Floats;
  for (std::int64_t i = 0; i < pool.h.size * pool.w.size * kBlock; ++i) dx[i] = 0;
  for (std::int64_t p = 0; p < pool.h.out; ++p) {
    const std::int64_t top = first_pixel(pool.h, p), bottom = end_pixel(pool.h, p);
    for (std::int64_t q = 0; q < pool.w.out; ++q) {
      const std::int64_t left = first_pixel(pool.w, q), right = end_pixel(pool.w, q);
      const Floats share = L::load(dy + (p * pool.w.out + q) * kBlock) / arithmetic::pixels_of(pool, p, q);
      for (std::int64_t h = top; h < bottom; ++h) {
        for (std::int64_t w = left; w < right; ++w) {
          float* const pixel = dx + (h * pool.w.size + w) * kBlock;
          L::store(pixel, L::load(pixel) + share);
        }
      }
    }
  }
}

}  // namespace

void avg_pool(const float* x, float* y, const AveragePool& pool, int block) {
  if (block == 16) return average_image<16>(x, y, pool);
  if (block == 8) return average_image<8>(x, y, pool);
  average_image<1>(x, y, pool);
}

void avg_pool_backward(const float* dy, float* dx, const AveragePool& pool, int block) {
  if (block == 16) return spread_image<16>(dy, dx, pool);
  if (block == 8) return spread_image<8>(dy, dx, pool);
  spread_image<1>(dy, dx, pool);
}

}  // namespace duet::cpu::DUET_ISA
