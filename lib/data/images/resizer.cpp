#include "lib/data/images/resizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace duet::data {
namespace {

constexpr int kBits = 22;       // bits of a weight's fraction
constexpr int kUpperBits = 11;  // a weight is upper * 2^11 + lower, so that both fit 16 bits
constexpr std::int32_t kHalf = 1 << (kBits - 1);

std::int32_t lower_of(std::int32_t weight) { return weight & ((1 << kUpperBits) - 1); }
std::int32_t upper_of(std::int32_t weight) { return weight >> kUpperBits; }

/// For each group of four taps 16 upper halves, then 16 lower ones: taps 0 and 1 four times, then taps 2 and 3.
void pair_up(Axis& axis) {
  axis.in_pairs.resize(8 * axis.weights.size());
  std::int16_t* to = axis.in_pairs.data();
  for (std::size_t group = 0; group < axis.weights.size(); group += Axis::kGroup) {
    const std::int32_t* const weights = axis.weights.data() + group;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 16; ++i) {
        const std::int32_t weight = weights[i / 8 * 2 + i % 2];
        *to++ = static_cast<std::int16_t>(half == 0 ? upper_of(weight) : lower_of(weight));
      }
    }
  }
}

#if defined(__x86_64__)
#define DUET_AVX2 __attribute__((target("avx2")))

/// (upper * 2^11 + lower + 1/2) in units of 2^22.
DUET_AVX2 inline __m256i rounded(__m256i upper, __m256i lower) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(upper, kUpperBits), lower);
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), kBits);
}

DUET_AVX2 void across_avx2(const Axis& axis, const std::uint8_t* in, std::uint8_t* out) {
  // Puts the colours of the first two of four pixels side by side in the lower lane, the other two's in the upper one.
  const __m256i order = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                         6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const std::int64_t groups = axis.stride / Axis::kGroup;
  for (std::int64_t i = 0; i < axis.size(); ++i, out += 3) {
    const std::uint8_t* from = in + 3 * axis.begin[static_cast<std::size_t>(i)];
    const auto* pairs = reinterpret_cast<const __m256i*>(axis.in_pairs.data()) + 2 * groups * i;
    const std::int64_t used = (axis.taps[static_cast<std::size_t>(i)] + Axis::kGroup - 1) / Axis::kGroup;
    __m256i upper = _mm256_setzero_si256(), lower = upper;
    for (std::int64_t group = 0; group < used; ++group, from += 3 * Axis::kGroup, pairs += 2) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      const __m256i pixels = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order);
      upper = _mm256_add_epi32(upper, _mm256_madd_epi16(pixels, _mm256_loadu_si256(pairs)));
      lower = _mm256_add_epi32(lower, _mm256_madd_epi16(pixels, _mm256_loadu_si256(pairs + 1)));
    }
    upper = _mm256_add_epi32(upper, _mm256_permute2x128_si256(upper, upper, 1));
    lower = _mm256_add_epi32(lower, _mm256_permute2x128_si256(lower, lower, 1));
    const __m128i sums = _mm256_castsi256_si128(rounded(upper, lower));
    const __m128i packed = _mm_packus_epi16(_mm_packs_epi32(sums, sums), sums);
    const std::int32_t pixel = _mm_cvtsi128_si32(packed);
    std::memcpy(out, &pixel, sizeof pixel);  // a byte too many, which the next pixel overwrites
  }
}

struct RowPair {
  const std::uint8_t *first, *second;
};

DUET_AVX2 inline void add_two_rows(RowPair rows, std::int64_t at, __m256i upper_weights, __m256i lower_weights,
                                   __m256i (&upper)[2], __m256i (&lower)[2]) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.first + at));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.second + at));
  const __m256i pixels[2] = {_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
                             _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b))};
  for (int half = 0; half < 2; ++half) {
    upper[half] = _mm256_add_epi32(upper[half], _mm256_madd_epi16(pixels[half], upper_weights));
    lower[half] = _mm256_add_epi32(lower[half], _mm256_madd_epi16(pixels[half], lower_weights));
  }
}

DUET_AVX2 void down_avx2(const std::int32_t* weights, std::int64_t taps, RowsIn in, std::int64_t bytes,
                         std::uint8_t* out) {
  constexpr std::int64_t kBytes = 16;
  const auto both = [](std::int32_t first, std::int32_t second) { return first | second << 16; };
  for (std::int64_t at = 0; at < bytes; at += kBytes) {
    __m256i upper[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, lower[2] = {upper[0], upper[0]};
    for (std::int64_t tap = 0; tap < taps; tap += 2) {
      const std::int32_t first = weights[tap], second = weights[tap + 1];  // a last one without a partner has zero
      const std::uint8_t* const row = in.data + tap * in.stride;
      add_two_rows({row, tap + 1 < taps ? row + in.stride : row}, at,
                   _mm256_set1_epi32(both(upper_of(first), upper_of(second))),
                   _mm256_set1_epi32(both(lower_of(first), lower_of(second))), upper, lower);
    }
    const __m256i words = _mm256_packs_epi32(rounded(upper[0], lower[0]), rounded(upper[1], lower[1]));
    // Packing works lane by lane: words 0-3 and 8-11 lie in the lower one.
    const __m256i packed = _mm256_packus_epi16(words, words);
    const __m256i sorted = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + at), _mm256_castsi256_si128(sorted));
  }
}

bool has_avx2() { return __builtin_cpu_supports("avx2"); }
#else
void across_avx2(const Axis&, const std::uint8_t*, std::uint8_t*) {}
void down_avx2(const std::int32_t*, std::int64_t, RowsIn, std::int64_t, std::uint8_t*) {}
bool has_avx2() { return false; }
#endif

}  // namespace

void weigh(Axis& axis, std::int64_t in, std::int64_t out, std::int64_t first, std::int64_t count) {
  const double scale = static_cast<double>(in) / static_cast<double>(out), reach = std::max(scale, 1.0);
  // Rounded up to whole groups.
  axis.stride = (static_cast<std::int64_t>(std::ceil(reach)) * 2 + Axis::kGroup) / Axis::kGroup * Axis::kGroup;
  axis.begin.resize(static_cast<std::size_t>(count));
  axis.taps.resize(static_cast<std::size_t>(count));
  axis.weights.assign(static_cast<std::size_t>(count * axis.stride), 0);
  std::vector<double> shares(static_cast<std::size_t>(axis.stride));
  for (std::int64_t i = 0; i < count; ++i) {
    const double centre = (static_cast<double>(first + i) + 0.5) * scale;
    const std::int64_t begin = std::max(static_cast<std::int64_t>(centre - reach + 0.5), std::int64_t{0});
    const std::int64_t end = std::min(static_cast<std::int64_t>(centre + reach + 0.5), in);
    if (i == 0) axis.first = begin;
    axis.end = end;
    double sum = 0;
    for (std::int64_t tap = 0; tap < end - begin; ++tap) {
      const double distance = std::abs((static_cast<double>(tap + begin) - centre + 0.5) * (1.0 / reach));
      shares[static_cast<std::size_t>(tap)] = distance < 1.0 ? 1.0 - distance : 0.0;
      sum += shares[static_cast<std::size_t>(tap)];
    }
    axis.begin[static_cast<std::size_t>(i)] = begin - axis.first;
    axis.taps[static_cast<std::size_t>(i)] = end - begin;
    std::int32_t* const weights = axis.weights.data() + i * axis.stride;
    for (std::int64_t tap = 0; tap < end - begin; ++tap)
      weights[tap] = static_cast<std::int32_t>(0.5 + shares[static_cast<std::size_t>(tap)] / sum * (1 << kBits));
  }
  pair_up(axis);
}

void resample_across_plain(const Axis& axis, RowsIn in, std::int64_t rows, std::uint8_t* out) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < axis.size(); ++i) {
      const std::uint8_t* const from = in.data + row * in.stride + 3 * axis.begin[static_cast<std::size_t>(i)];
      const std::int32_t* const weights = axis.weights.data() + i * axis.stride;
      for (std::int64_t c = 0; c < 3; ++c) {
        std::int32_t sum = kHalf;
        for (std::int64_t tap = 0; tap < axis.taps[static_cast<std::size_t>(i)]; ++tap)
          sum += from[3 * tap + c] * weights[tap];
        *out++ = static_cast<std::uint8_t>(std::min(sum >> kBits, 255));
      }
    }
  }
}

void resample_down_plain(const Axis& axis, RowsIn in, std::int64_t bytes, std::uint8_t* out) {
  for (std::int64_t i = 0; i < axis.size(); ++i) {
    const std::uint8_t* const from = in.data + axis.begin[static_cast<std::size_t>(i)] * in.stride;
    const std::int32_t* const weights = axis.weights.data() + i * axis.stride;
    for (std::int64_t at = 0; at < bytes; ++at) {
      std::int32_t sum = kHalf;
      for (std::int64_t tap = 0; tap < axis.taps[static_cast<std::size_t>(i)]; ++tap)
        sum += from[tap * in.stride + at] * weights[tap];
      *out++ = static_cast<std::uint8_t>(std::min(sum >> kBits, 255));
    }
  }
}

void resample_across(const Axis& axis, RowsIn in, std::int64_t rows, std::uint8_t* out) {
  if (!has_avx2()) return resample_across_plain(axis, in, rows, out);
  for (std::int64_t row = 0; row < rows; ++row)
    across_avx2(axis, in.data + row * in.stride, out + 3 * row * axis.size());
}

void resample_down(const Axis& axis, RowsIn in, std::int64_t bytes, std::uint8_t* out) {
  if (!has_avx2()) return resample_down_plain(axis, in, bytes, out);
  for (std::int64_t i = 0; i < axis.size(); ++i) {
    const RowsIn rows{in.data + axis.begin[static_cast<std::size_t>(i)] * in.stride, in.stride};
    down_avx2(axis.weights.data() + i * axis.stride, axis.taps[static_cast<std::size_t>(i)], rows, bytes,
              out + i * bytes);
  }
}

namespace {

void make_room(std::vector<std::uint8_t>& bytes, std::int64_t needed) {
  const std::size_t size = static_cast<std::size_t>(needed) + Pixels::kSlack;
  if (bytes.size() < size) bytes.resize(size);
}

/// Rows before columns where that takes away most: Pillow 13; its older versions never do.
bool down_first(const View& view) {
  const std::int64_t rows_less = view.crop.height - view.height, columns_less = view.crop.width - view.width;
  return rows_less > 0 && rows_less > 2 * columns_less;
}

}  // namespace

Region Resizer::prepare(const View& view) {
  view_ = view;
  weigh(across_, view.crop.width, view.width, view.window.x, view.window.width);
  weigh(down_, view.crop.height, view.height, view.window.y, view.window.height);
  return {view.crop.x + across_.first, view.crop.y + down_.first, across_.end - across_.first, down_.end - down_.first};
}

const std::uint8_t* Resizer::run(const Pixels& source) {
  const std::int64_t columns = across_.end - across_.first, rows = down_.end - down_.first;
  const RowsIn in{source.at(view_.crop.x + across_.first, view_.crop.y + down_.first),
                  static_cast<std::int64_t>(source.row_bytes())};
  make_room(out_, 3 * across_.size() * down_.size());
  if (down_first(view_)) {
    make_room(between_, 3 * columns * down_.size());
    resample_down(down_, in, 3 * columns, between_.data());
    resample_across(across_, {between_.data(), 3 * columns}, down_.size(), out_.data());
  } else {
    make_room(between_, 3 * across_.size() * rows);
    resample_across(across_, in, rows, between_.data());
    resample_down(down_, {between_.data(), 3 * across_.size()}, 3 * across_.size(), out_.data());
  }
  return out_.data();
}

}  // namespace duet::data
