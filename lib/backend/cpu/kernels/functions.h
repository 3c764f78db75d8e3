// Functions of elements over vectors, and loops over the numbers of a row, with the same bits on every instruction set:
// only operations that each rounds alike, and every fused one written out. Sources that include this stand in
// `exact_sources` of meson.build. A NaN gives a NaN; infinities, zeros and subnormal numbers give what <cmath> gives.
#pragma once

#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {

[[gnu::always_inline]] inline Vec magnitude(Vec x) { return (Vec)((Ints)x & 0x7fffffff); }
/// `size`, which is not negative, with the sign of x.
[[gnu::always_inline]] inline Vec with_sign(Vec size, Vec x) { return (Vec)((Ints)size | ((Ints)x & ~0x7fffffff)); }

[[gnu::always_inline]] inline Vec square_root(Vec x) {
  float lanes[kWidth];
  store(lanes, x);
  for (float& lane : lanes) lane = __builtin_sqrtf(lane);
  return load(lanes);
}

/// Continues a polynomial in x from the sum of its higher terms, divided by x^k, with its k lower coefficients, the
/// constant last.
template <class... Lower>
[[gnu::always_inline]] inline Vec polynomial(Vec x, Vec sum, Lower... lower) {
  ((sum = exact_fma(sum, x, broadcast(lower))), ...);
  return sum;
}

/// e^x = 2^n e^r for the whole number n that makes r smallest; a minimax polynomial gives e^r. Error: 0.91 ulp.
[[gnu::always_inline]] inline Vec exp(Vec x) {
  const Vec most = broadcast(89), least = broadcast(-104);  // beyond these the result is infinite, or 0
  x = x > most ? most : x;
  x = x < least ? least : x;
  const Vec shift = broadcast(12582912);  // 1.5 * 2^23: what is added to it is rounded to a whole number
  const Vec shifted = exact_fma(x, broadcast(1.44269504f), shift), n = shifted - shift;
  // ln 2 in two parts: n times the first is exact.
  const Vec r = exact_fma(n, broadcast(-1.42860677e-6f), exact_fma(n, broadcast(-0.693145752f), x));
  const Vec power =
      polynomial(r, broadcast(0.00139505847f), 0.00836894661f, 0.041666206f, 0.166665182f, 0.5f, 1.0f, 1.0f);
  // 2^n as a product of two powers: n is -150 to 128, which no float's exponent holds.
  const Ints exponent = (Ints)shifted - (Ints)shift, half = exponent >> 1;
  return power * (Vec)((half + 127) << 23) * (Vec)((exponent - half + 127) << 23);
}

/// Error: 0.85 ulp. Source: Norbert Juffa, stackoverflow.com/a/39822314.
[[gnu::always_inline]] inline Vec log(Vec x) {
  const float infinity = __builtin_inff();
  const Ints subnormal = x < broadcast(1.17549435e-38f);
  const Vec a = subnormal ? x * broadcast(8388608) : x;
  // a = m 2^(exponent / 2^23), m from 2/3 to 4/3
  const Ints exponent = ((Ints)a - 0x3f2aaaab) & ~0x7fffff;
  const Vec f = (Vec)((Ints)a - exponent) - broadcast(1), square = f * f;
  const Vec power =
      exact_fma(__builtin_convertvector(exponent, Vec), broadcast(1.19209290e-7f), subnormal ? broadcast(-23) : Vec{});
  Vec y = polynomial(square, broadcast(-0.130310059f), -0.121483512f, -0.166846126f, -0.249996200f);
  const Vec odd = polynomial(square, broadcast(0.140869141f), 0.139814854f, 0.200120345f);
  y = polynomial(f, exact_fma(odd, f, y), 0.333331972f, -0.5f);
  y = exact_fma(power, broadcast(0.693147182f), exact_fma(y, square, f));
  y = x == broadcast(infinity) ? x : y;
  y = x == Vec{} ? broadcast(-infinity) : y;
  return ((x < Vec{}) | (x != x)) ? broadcast(__builtin_nanf("")) : y;
}

/// log(1 + x): the error of rounding the sum is made good by a factor, as in HP's calculators (Kahan). Error: 2.42 ulp.
[[gnu::always_inline]] inline Vec log1p(Vec x) {
  const Vec sum = broadcast(1) + x, added = sum - broadcast(1);
  const Ints as_is = (added == Vec{}) | (x == broadcast(__builtin_inff()));
  return as_is ? x : log(sum) * (x / added);
}

/// Error: 0.99 ulp. Source: Norbert Juffa, stackoverflow.com/a/35148199.
[[gnu::always_inline]] inline Vec erf(Vec x) {
  const Vec t = magnitude(x), square = x * x;
  const Vec high = exact_fma(broadcast(-1.72853470e-5f), t, broadcast(3.83197126e-4f));
  const Vec low = exact_fma(broadcast(-3.88396438e-3f), t, broadcast(2.42546219e-2f));
  const Vec exponent = polynomial(t, exact_fma(high, square, low), -1.06777877e-1f, -6.34846687e-1f, -1.28717512e-1f);
  const Vec far = broadcast(1) - exp(exact_fma(exponent, t, -t));
  const Vec near = polynomial(square, broadcast(-5.96761703e-4f), 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f,
                              -3.76125336e-1f, 1.28379166e-1f);
  return t > broadcast(0.927734375f) ? with_sign(far, x) : exact_fma(near, x, x);
}

/// Error: 2.48 ulp; 0 where e^-x is infinite.
[[gnu::always_inline]] inline Vec sigmoid(Vec x) { return broadcast(1) / (broadcast(1) + exp(-x)); }

/// Error: 1.39 ulp.
[[gnu::always_inline]] inline Vec tanh(Vec x) {
  const Vec t = magnitude(x), square = x * x;
  const Vec far = broadcast(1) - broadcast(2) / (exp(t + t) + broadcast(1));
  const Vec near =
      polynomial(square, broadcast(-0.00590835046f), 0.0208080262f, -0.0537876561f, 0.133319721f, -0.333332986f);
  return with_sign(t > broadcast(0.6f) ? far : exact_fma(near * square, t, t), x);
}

/// The normal distribution's Phi(x), so that gelu(x) = x Phi(x).
[[gnu::always_inline]] inline Vec normal_distribution(Vec x) {
  return broadcast(0.5f) * (broadcast(1) + erf(x * broadcast(0.70710678118654752f)));
}
/// Absolute error: 4.5e-7 up to |x| = 8; above it, the error is that of rounding x.
[[gnu::always_inline]] inline Vec gelu(Vec x) { return x * normal_distribution(x); }
/// gelu's derivative. Absolute error: 1.5e-7.
[[gnu::always_inline]] inline Vec gelu_slope(Vec x) {
  const Vec density = broadcast(0.39894228040143268f) * exp(broadcast(-0.5f) * x * x);
  return exact_fma(x, density, normal_distribution(x));
}

/// Calls f(i, count) for numbers [i, i + count) of n: kWidth of them, at the end perhaps fewer.
template <class F>
[[gnu::always_inline]] inline void for_each_vector(std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) f(i, kWidth);
  if (i < n) f(i, static_cast<int>(n - i));
}

/// Returns the sum of n numbers: number i goes to lane i % 16, then lanes are added by halves. value(i, count): a
/// vector of the numbers from i on, of which only `count` count.
template <class Value>
[[gnu::always_inline]] inline float sum_of(std::int64_t n, Value value) {
  constexpr int kLanes = 16, kVecs = kLanes / kWidth;
  Vec sums[kVecs];
  for (Vec& part : sums) part = Vec{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) unroll<kVecs>([&](int v) { sums[v] = sums[v] + value(i + v * kWidth, kWidth); });
  unroll<kVecs>([&](int v) {
    const std::int64_t left = n - i - v * kWidth;
    if (left <= 0) return;
    const Vec rest = value(i + v * kWidth, left < kWidth ? static_cast<int>(left) : kWidth);
    sums[v] = sums[v] + (Vec)((Ints)rest & first_lanes(left));
  });
  for (int half = kVecs / 2; half > 0; half /= 2)
    for (int v = 0; v < half; ++v) sums[v] = sums[v] + sums[v + half];
  return sum(sums[0]);
}

}  // namespace duet::cpu::DUET_ISA
