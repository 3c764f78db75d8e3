#include "lib/data/normalise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lib/error.h"

namespace duet::data {
namespace {

using Table = std::array<float, 256>;

const std::uint8_t* row(const std::uint8_t* rows, std::size_t row_bytes, std::int64_t index) {
  return rows + static_cast<std::size_t>(index) * row_bytes;
}

#if defined(__x86_64__)
#define DUET_FMA __attribute__((target("avx2,fma")))

/// Correctly rounded a / b without a division: one Newton step on a * (1 / b), whose remainder FMA gives exactly
/// (Markstein 1990). That a * (1 / b) is near enough for it is checked for all 256 bytes.
DUET_FMA inline __m256 divide(__m256 a, float b) {
  const __m256 divisor = _mm256_set1_ps(b), reciprocal = _mm256_set1_ps(1 / b);
  const __m256 quotient = _mm256_mul_ps(a, reciprocal);
  return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, divisor, a), reciprocal, quotient);
}

DUET_FMA void normalise_fma(const std::uint8_t* in, std::size_t count, const PixelStatistics& pixels,
                            const Table& table, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
    const __m256 x = divide(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), 255.0f);
    _mm256_storeu_ps(out + i, divide(_mm256_sub_ps(x, _mm256_set1_ps(pixels.mean)), pixels.deviation));
  }
  for (; i < count; ++i) out[i] = table[in[i]];
}

bool has_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
void normalise_fma(const std::uint8_t*, std::size_t, const PixelStatistics&, const Table&, float*) {}

bool has_fma() { return false; }
#endif

void fetch_row(const std::uint8_t* bytes, std::size_t count) {
  constexpr std::size_t kLine = 64;
  for (std::size_t byte = 0; byte < count; byte += kLine) __builtin_prefetch(bytes + byte);
}

/// Whether normalise_fma gives the table's bits for each of the 256 bytes.
bool fma_is_exact(const PixelStatistics& pixels, const Table& table) {
  if (!has_fma()) return false;
  std::array<std::uint8_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  Table out{};
  normalise_fma(bytes.data(), bytes.size(), pixels, table, out.data());
  return std::memcmp(out.data(), table.data(), sizeof out) == 0;
}

}  // namespace

Normaliser::Normaliser(const PixelStatistics& pixels) : pixels_(pixels) {
  require<UsageError>(std::isfinite(pixels.mean) && std::isfinite(pixels.deviation) && pixels.deviation > 0,
                      "pixels have mean ", pixels.mean, " and deviation ", pixels.deviation,
                      ", expected finite numbers and a deviation above 0");
  for (std::size_t byte = 0; byte < table_.size(); ++byte)
    table_[byte] = (static_cast<float>(byte) / 255.0f - pixels.mean) / pixels.deviation;
  by_table_ = !fma_is_exact(pixels_, table_);
}

void Normaliser::gather(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                        float* out) const {
  if (by_table_) return gather_by_table(rows, row_bytes, indices, out);
  constexpr std::size_t kAhead = 2;  // rows lie anywhere in 47 MB: fetch them before they are needed
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size()) fetch_row(row(rows, row_bytes, indices[i + kAhead]), row_bytes);
    normalise_fma(row(rows, row_bytes, indices[i]), row_bytes, pixels_, table_, out + i * row_bytes);
  }
}

void Normaliser::gather_by_table(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                                 float* out) const {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint8_t* const in = row(rows, row_bytes, indices[i]);
    std::transform(in, in + row_bytes, out + i * row_bytes, [&](std::uint8_t byte) { return table_[byte]; });
  }
}

}  // namespace duet::data
