#include "lib/data/normalise.h"

#include <algorithm>
#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace duet::data {
namespace {

constexpr float normalised(std::uint8_t byte) { return (static_cast<float>(byte) / 255.0f - kMean) / kDeviation; }

constexpr std::array<float, 256> kTable = [] {
  std::array<float, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) table[byte] = normalised(static_cast<std::uint8_t>(byte));
  return table;
}();

const std::uint8_t* row(const std::uint8_t* rows, std::size_t row_bytes, std::int64_t index) {
  return rows + static_cast<std::size_t>(index) * row_bytes;
}

#if defined(__x86_64__)
#define DUET_FMA __attribute__((target("avx2,fma")))

/// Correctly rounded a / b without a division: one Newton step on a * (1 / b), whose remainder FMA gives exactly
/// (Markstein 1990). Checked for all 256 bytes by the tests.
DUET_FMA inline __m256 divide(__m256 a, float b) {
  const __m256 divisor = _mm256_set1_ps(b), reciprocal = _mm256_set1_ps(1 / b);
  const __m256 quotient = _mm256_mul_ps(a, reciprocal);
  return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, divisor, a), reciprocal, quotient);
}

DUET_FMA void normalise_fma(const std::uint8_t* in, std::size_t count, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
    const __m256 x = divide(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), 255.0f);
    _mm256_storeu_ps(out + i, divide(_mm256_sub_ps(x, _mm256_set1_ps(kMean)), kDeviation));
  }
  for (; i < count; ++i) out[i] = kTable[in[i]];
}

void gather_fma(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices, float* out) {
  constexpr std::size_t kAhead = 2, kLine = 64;  // rows lie anywhere in 47 MB: fetch them before they are needed
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size()) {
      const std::uint8_t* const next = row(rows, row_bytes, indices[i + kAhead]);
      for (std::size_t byte = 0; byte < row_bytes; byte += kLine) __builtin_prefetch(next + byte);
    }
    normalise_fma(row(rows, row_bytes, indices[i]), row_bytes, out + i * row_bytes);
  }
}

bool has_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
void gather_fma(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices, float* out) {
  gather_normalised_by_table(rows, row_bytes, indices, out);
}

bool has_fma() { return false; }
#endif

}  // namespace

void gather_normalised(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                       float* out) {
  static const auto version = has_fma() ? gather_fma : gather_normalised_by_table;
  version(rows, row_bytes, indices, out);
}

void gather_normalised_by_table(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                                float* out) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint8_t* const in = row(rows, row_bytes, indices[i]);
    std::transform(in, in + row_bytes, out + i * row_bytes, [](std::uint8_t byte) { return kTable[byte]; });
  }
}

}  // namespace duet::data
