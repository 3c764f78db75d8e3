#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {
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
