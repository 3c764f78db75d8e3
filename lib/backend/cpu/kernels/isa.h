// The declarations that sources of kernels share: one instruction set's kernels, whose namespace is DUET_ISA, and
// vectors as wide as the instruction set has them.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lib/backend/cpu/kernels/kernels.h"

#ifndef DUET_ISA
#error "compile this once per instruction set, with DUET_ISA set to its name"
#endif

namespace duet::cpu::DUET_ISA {

#if defined(__AVX512F__)
inline constexpr char kName[] = "AVX-512";
inline constexpr int kWidth = 16;
inline constexpr int kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr char kName[] = "AVX2";
inline constexpr int kWidth = 8;
inline constexpr int kRegisters = 16;
#else
inline constexpr char kName[] = "generic";
inline constexpr int kWidth = 4;
inline constexpr int kRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(kWidth * sizeof(float))));
/// kWidth 32-bit integers: what comparing Vecs gives, and what chooses between them.
typedef std::int32_t Ints __attribute__((vector_size(kWidth * sizeof(float))));

[[gnu::always_inline]] inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
/// x in all lanes. Minus zero, not plus: the compiler must keep an addition of +0, which changes -0.
[[gnu::always_inline]] inline Vec broadcast(float x) { return x - Vec{}; }
/// a * b + c, fused where the machine can. By its own instruction: whether a compiler contracts the expression depends
/// on what stands around it, so the bits of a row would depend on the tile that it is in.
[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
  return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  return a * b + c;
#endif
}
[[gnu::always_inline]] inline float fma(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

#if defined(__x86_64__) && !defined(__FMA__)
/// Converts x * y + z of two lanes to float, where double's sum may not be rounded as it is: its error tells which way
/// it was rounded, and a sum rounded to odd is rounded to float as the exact one would be. Source: Boldo and Melquiond,
/// "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
[[gnu::noinline]] inline __m128 round_by_error(__m128d product, __m128d term) {
  typedef std::uint64_t Bits __attribute__((vector_size(16)));
  const __m128d sum = product + term, rest = sum - product, error = (product - (sum - rest)) + (term - rest);
  const Bits inexact = (Bits)((error < __m128d{}) | (error > __m128d{})) & 1;
  const Bits too_large = ((Bits)sum ^ (Bits)error) >> 63 & inexact;  // the error points towards zero
  return _mm_cvtpd_ps((__m128d)(((Bits)sum - too_large) | inexact));
}
#endif

/// a * b + c rounded once, on every machine: for `exact_sources` (meson.build). SSE2 lacks the instruction, and a call
/// of fmaf for each lane takes longer than this: double holds the product exactly, and rounding its sum again matters
/// only if that lies half-way between floats, or is subnormal as a float.
[[gnu::always_inline]] inline Vec exact_fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__) || defined(__AVX2__)
  return fma(a, b, c);
#elif defined(__x86_64__) && !defined(__FMA__)
  const auto high = [](__m128 v) { return _mm_cvtps_pd(_mm_movehl_ps(v, v)); };
  const __m128d product[] = {_mm_cvtps_pd(a) * _mm_cvtps_pd(b), high(a) * high(b)}, term[] = {_mm_cvtps_pd(c), high(c)};
  const __m128d sum[] = {product[0] + term[0], product[1] + term[1]};
  const Ints lower = (Ints)_mm_shuffle_ps((__m128)sum[0], (__m128)sum[1], 0x88);
  const Ints upper = (Ints)_mm_shuffle_ps((__m128)sum[0], (__m128)sum[1], 0xDD) & 0x7fffffff;
  const Ints doubtful = ((lower & 0x1fffffff) == 0x10000000) | ((upper < 0x38100000) & (upper > 0));
  if (__builtin_expect(_mm_movemask_ps((__m128)doubtful) != 0, 0))
    return _mm_movelh_ps(round_by_error(product[0], term[0]), round_by_error(product[1], term[1]));
  return _mm_movelh_ps(_mm_cvtpd_ps(sum[0]), _mm_cvtpd_ps(sum[1]));
#else
  Vec v;
  for (int i = 0; i < kWidth; ++i) v[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return v;
#endif
}

/// p, as a sum that the compiler does not take apart again: an operand in memory with an index costs an operation more
/// than one with a constant offset.
[[gnu::always_inline]] inline const float* whole(const float* p) {
  asm("" : "+r"(p));
  return p;
}

/// Asks for the cache line that holds p, which need not be memory at all.
[[gnu::always_inline]] inline void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }

/// Fetches memory into the second cache a few lines at a time, between other work: the third cache answers so late that
/// reading from it in one go is mostly waiting. Lines that will be written are fetched, too.
class Ahead {
 public:
  /// All of [begin, begin + bytes) within `steps` calls of step().
  Ahead(const void* begin, std::int64_t bytes, std::int64_t steps)
      : next_(static_cast<const char*>(begin)), end_(next_ + bytes), stride_((bytes / kLine + steps) / steps * kLine) {}
  [[gnu::always_inline]] void step() {
    const char* const stop = end_ - next_ < stride_ ? end_ : next_ + stride_;
    for (; next_ < stop; next_ += kLine) fetch(next_);
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const char* next_;
  const char* end_;
  std::int64_t stride_;
};

/// The lanes' low bytes. GCC 12 converts vectors of bytes lane by lane, so the instructions are named.
[[gnu::always_inline]] inline void store_bytes(std::uint8_t* p, Ints v) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)v);
#elif defined(__AVX2__)
  const __m256i low = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0C080400));  // four bytes in each half
  const __m128i bytes = _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
#else
  typedef std::uint8_t Bytes __attribute__((vector_size(kWidth)));
  const Bytes bytes = __builtin_convertvector(v, Bytes);
#endif
  std::memcpy(p, &bytes, kWidth);
}
[[gnu::always_inline]] inline Ints load_bytes(const std::uint8_t* p) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef std::uint8_t Bytes __attribute__((vector_size(kWidth)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, Ints);
#endif
}

/// Lane i is p[index[i]], for indices below 8. May read kWidth floats.
[[gnu::always_inline]] inline Vec pick(const float* p, Ints index) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)index, (__m512)load(p));
#elif defined(__AVX2__)
  return (Vec)_mm256_permutevar8x32_ps((__m256)load(p), (__m256i)index);
#else
  Vec v;
  for (int i = 0; i < kWidth; ++i) v[i] = p[index[i]];
  return v;
#endif
}

/// Stands before the body of a lambda function that is too long for the compiler to inline it everywhere.
#define DUET_INLINE __attribute__((always_inline))

/// Calls f(0) to f(kCount - 1), each as code of its own: a loop that the compiler leaves a loop keeps what it indexes
/// in memory.
template <class F, int... kIndices>
[[gnu::always_inline]] inline void unroll(F f, std::integer_sequence<int, kIndices...>) {
  (f(kIndices), ...);
}
template <int kCount, class F>
[[gnu::always_inline]] inline void unroll(F f) {
  unroll(f, std::make_integer_sequence<int, kCount>());
}

/// All bits of the first n lanes, perhaps of all.
[[gnu::always_inline]] inline Ints first_lanes(std::int64_t n) {
  Ints lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < static_cast<std::int32_t>(n);
}
/// These lanes of memory, and 0 in the others; no other memory is read or written.
[[gnu::always_inline]] inline Vec load_first(const float* p, std::int64_t n) {
  if (n == kWidth) return load(p);
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#elif defined(__AVX2__)
  return (Vec)_mm256_maskload_ps(p, (__m256i)first_lanes(n));
#else
  float lanes[kWidth] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}
[[gnu::always_inline]] inline void store_first(float* p, Vec v, std::int64_t n) {
  if (n == kWidth) return store(p, v);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#else
  float lanes[kWidth];
  store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

/// The sum of all lanes, always in the same order.
[[gnu::always_inline]] inline float sum(Vec v) {
  float lanes[kWidth];
  std::memcpy(lanes, &v, sizeof v);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

/// Lane j of the result: u and v consist of segments of kLength lanes; each is halved by adding its second half to its
/// first, and those of u come first.
template <int kLength, int... kLanes>
[[gnu::always_inline]] inline Vec halve_segments(Vec u, Vec v, std::integer_sequence<int, kLanes...>) {
  constexpr int kHalf = kLength / 2;
  return __builtin_shufflevector(u, v, (kLanes / kHalf * kLength + kLanes % kHalf)...) +
         __builtin_shufflevector(u, v, (kLanes / kHalf * kLength + kLanes % kHalf + kHalf)...);
}

/// Lane i of the result is sum(v[i]), to the same bits, for kWidth vectors, which it overwrites.
template <int kLength = kWidth>
[[gnu::always_inline]] inline Vec sums(Vec* v) {
  for (int i = 0; i < kLength / 2; ++i)
    v[i] = halve_segments<kLength>(v[2 * i], v[2 * i + 1], std::make_integer_sequence<int, kWidth>());
  if constexpr (kLength == 2)
    return v[0];
  else
    return sums<kLength / 2>(v);
}

/// Interleaves the lanes of u and v; the lower or the upper half of the result.
template <bool kUpper, class V, int... kLanes>
[[gnu::always_inline]] inline V interleave(V u, V v, std::integer_sequence<int, kLanes...>) {
  constexpr int kCount = sizeof...(kLanes), kFrom = kUpper ? kCount / 2 : 0;
  return __builtin_shufflevector(u, v, (kLanes % 2 * kCount + kLanes / 2 + kFrom)...);
}

/// Interleaves the first half of the kVecs vectors with the second, `kTimes` times: each time an element's number, its
/// place in them, is rotated left by one bit, so a matrix of powers of two is transposed after a few.
template <int kTimes, int kVecs, class V>
[[gnu::always_inline]] inline void riffle(V (&v)[kVecs]) {
  constexpr auto kLanes = std::make_integer_sequence<int, static_cast<int>(sizeof(V) / sizeof(v[0][0]))>();
  for (int time = 0; time < kTimes; ++time) {
    V next[kVecs];
    for (int i = 0; i < kVecs / 2; ++i) {
      next[2 * i] = interleave<false>(v[i], v[i + kVecs / 2], kLanes);
      next[2 * i + 1] = interleave<true>(v[i], v[i + kVecs / 2], kLanes);
    }
    for (int i = 0; i < kVecs; ++i) v[i] = next[i];
  }
}

/// A vector of 64-bit lanes with as many bytes as a vector of kWidth floats.
typedef std::uint64_t Wide __attribute__((vector_size(kWidth * sizeof(float))));

/// Products of the low 32 bits of each lane. The compilers do not find this instruction themselves.
[[gnu::always_inline]] inline Wide multiply_low(Wide a, Wide b) {
#if defined(__AVX512F__)
  // The form without a mask trips a false "uninitialized" warning in GCC 12's header.
  return (Wide)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

/// kBlock floats, and kBlock 32-bit integers, as one value each.
template <int kBlock>
struct Lanes;

// A macro, because GCC 12 rejects __builtin_convertvector on vectors whose size is a template parameter.
#define DUET_LANES(n)                                                       \
  template <>                                                               \
  struct Lanes<n> {                                                         \
    typedef float Floats __attribute__((vector_size(n * 4)));               \
    typedef std::int32_t Ints __attribute__((vector_size(n * 4)));          \
    typedef std::uint8_t Bytes __attribute__((vector_size(n)));             \
    static Floats load(const float* p) {                                    \
      Floats v;                                                             \
      std::memcpy(&v, p, sizeof v);                                         \
      return v;                                                             \
    }                                                                       \
    static void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); } \
    static Ints load_bytes(const std::uint8_t* p) {                         \
      Bytes v;                                                              \
      std::memcpy(&v, p, sizeof v);                                         \
      return __builtin_convertvector(v, Ints);                              \
    }                                                                       \
    static void store_bytes(std::uint8_t* p, Ints v) {                      \
      const Bytes b = __builtin_convertvector(v, Bytes);                    \
      std::memcpy(p, &b, sizeof b);                                         \
    }                                                                       \
  };
DUET_LANES(8)
DUET_LANES(16)
#undef DUET_LANES

template <>
struct Lanes<1> {
  using Floats = float;
  using Ints = std::int32_t;
  static float load(const float* p) { return *p; }
  static void store(float* p, float v) { *p = v; }
  static std::int32_t load_bytes(const std::uint8_t* p) { return *p; }
  static void store_bytes(std::uint8_t* p, std::int32_t v) { *p = static_cast<std::uint8_t>(v); }
};

/// The end of a fused convolution: maximum of a window's four outputs, its place, and relu. Ties go to the first; a NaN
/// wins.
[[gnu::always_inline]] inline void pool_window(const Vec (&outputs)[4], float* y, std::uint8_t* index) {
  Vec best = outputs[0];
  Ints place = {};
  for (int i = 1; i < 4; ++i) {
    const Vec next = outputs[i];
    const Ints wins = (next > best) | (next != next);
    best = wins ? next : best;
    place = wins ? Ints{} + i : place;
  }
  const Ints stopped = best <= Vec{};
  store(y, stopped ? Vec{} : best);
  store_bytes(index, stopped ? Ints{} + kNoGradient : place);
}

DUET_KERNELS(DUET_DECLARE_KERNEL)

/// Terms of a leaf that a product of matrices adds up by one chain of fused multiply-adds. Changes results.
inline constexpr std::int64_t kProductChunk = 256;

}  // namespace duet::cpu::DUET_ISA
