// Batch norm, with what follows it: a second summand, relu. Sums are in double.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kVecs = kNormLanes / kWidth;
constexpr int kHalf = kWidth / 2, kHalves = kNormLanes / kHalf;

/// Half a Vec, and as many doubles, which fill a register.
typedef float Half __attribute__((vector_size(kHalf * sizeof(float))));
typedef double Doubles __attribute__((vector_size(kHalf * sizeof(double))));

template <int... kLanes>
[[gnu::always_inline]] inline Doubles widen(Vec v, int half, std::integer_sequence<int, kLanes...>) {
  const Half part =
      half == 0 ? __builtin_shufflevector(v, v, kLanes...) : __builtin_shufflevector(v, v, (kLanes + kHalf)...);
#if defined(__AVX512F__)  // GCC 12 converts in two steps
  return (Doubles)_mm512_maskz_cvtps_pd(0xFF, (__m256)part);
#else
  return __builtin_convertvector(part, Doubles);
#endif
}
/// The first or the second half of v.
[[gnu::always_inline]] inline Doubles widen(Vec v, int half) {
  return widen(v, half, std::make_integer_sequence<int, kHalf>());
}

/// Sums of kNormLanes lanes.
struct LaneSums {
  Doubles halves[kHalves] = {};

  /// Lanes that hold the same channel are added up, in their order.
  void store(double* channels, int block) const {
    double lanes[kNormLanes];
    std::memcpy(lanes, halves, sizeof lanes);
    for (int lane = block; lane < kNormLanes; ++lane) lanes[lane % block] += lanes[lane];
    std::memcpy(channels, lanes, static_cast<std::size_t>(block) * sizeof(double));
  }
};

/// Calls unit(inputs, output) for kNormLanes numbers at a time of one group of channels, in all rows. What is left at
/// the end of a row is filled up with zeros.
template <int kInputs, class Unit>
[[gnu::always_inline]] inline void for_each_unit(const NormRows& rows, std::int64_t group,
                                                 const float* const (&inputs)[kInputs], float* output, Unit unit) {
  const std::int64_t rest = rows.run % kNormLanes, whole = rows.run - rest;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int64_t begin = row * rows.pitch + group * rows.run;
    for (std::int64_t at = begin; at < begin + whole; at += kNormLanes) {
      const float* from[kInputs];
      for (int i = 0; i < kInputs; ++i) from[i] = inputs[i] + at;
      unit(from, output != nullptr ? output + at : nullptr);
    }
    if (rest == 0) continue;
    float filled[kInputs + 1][kNormLanes] = {};
    const float* from[kInputs];
    for (int i = 0; i < kInputs; ++i) {
      for (std::int64_t lane = 0; lane < rest; ++lane) filled[i][lane] = inputs[i][begin + whole + lane];
      from[i] = filled[i];
    }
    unit(from, filled[kInputs]);
    for (std::int64_t lane = 0; output != nullptr && lane < rest; ++lane)
      output[begin + whole + lane] = filled[kInputs][lane];
  }
}

/// 0 where relu stops y, else v.
[[gnu::always_inline]] inline Vec pass(Vec y, Vec v) { return (Vec)((Ints)v & ~(y <= Vec{})); }

template <bool kOther, bool kRelu>
void forward(const NormRows& rows, const NormLanes* all, const float* x, const float* other, float* y) {
  for (std::int64_t group = 0; group < rows.groups; ++group) {
    const NormLanes& lanes = all[group];
    for_each_unit<2>(rows, group, {x, kOther ? other : x}, y, [&](const float* const* from, float* to) {
      unroll<kVecs>([&](int i) {
        Vec v = fma(load(from[0] + i * kWidth), load(lanes.factor + i * kWidth), load(lanes.shift + i * kWidth));
        if constexpr (kOther) v += load(from[1] + i * kWidth);
        store(to + i * kWidth, kRelu ? pass(v, v) : v);
      });
    });
  }
}

/// How the gradient behind relu is found.
enum class Mask { none, from_x, from_y };

template <Mask kMask>
[[gnu::always_inline]] inline Vec masked(const NormLanes& lanes, Vec x, const float* y, Vec dy, int i) {
  if constexpr (kMask == Mask::from_x)
    return pass(fma(x, load(lanes.factor + i * kWidth), load(lanes.shift + i * kWidth)), dy);
  if constexpr (kMask == Mask::from_y) return pass(load(y + i * kWidth), dy);
  return dy;
}

template <Mask kMask>
void backward_sums(const NormRows& rows, const NormLanes* all, const float* x, const float* dy, const float* y,
                   float* passed, double* sums) {
  for (std::int64_t group = 0; group < rows.groups; ++group) {
    const NormLanes& lanes = all[group];
    LaneSums of_dy, of_products;
    for_each_unit<3>(rows, group, {x, dy, kMask == Mask::from_y ? y : x}, passed,
                     [&](const float* const* from, float* to) {
                       unroll<kVecs>([&](int i) {
                         const Vec v = load(from[0] + i * kWidth);
                         const Vec d = masked<kMask>(lanes, v, from[2], load(from[1] + i * kWidth), i);
                         if constexpr (kMask == Mask::from_y) store(to + i * kWidth, d);
                         const Vec centred = v - load(lanes.mean + i * kWidth);
                         unroll<2>([&](int half) {
                           const Doubles wide = widen(d, half);
                           of_dy.halves[2 * i + half] += wide;
                           of_products.halves[2 * i + half] += wide * widen(centred, half);
                         });
                       });
                     });
    of_dy.store(sums + group * rows.block, rows.block);
    of_products.store(sums + (rows.groups + group) * rows.block, rows.block);
  }
}

template <Mask kMask, bool kCentred>
void backward(const NormRows& rows, const NormLanes* all, const float* x, const float* dy, float* dx) {
  for (std::int64_t group = 0; group < rows.groups; ++group) {
    const NormLanes& lanes = all[group];
    for_each_unit<2>(rows, group, {x, dy}, dx, [&](const float* const* from, float* to) {
      unroll<kVecs>([&](int i) {
        const Vec v = load(from[0] + i * kWidth);
        Vec d = masked<kMask>(lanes, v, nullptr, load(from[1] + i * kWidth), i);
        if constexpr (kCentred) {
          const Vec centred = v - load(lanes.mean + i * kWidth);
          d = fma(centred, load(lanes.slope + i * kWidth), d - load(lanes.mean_dy + i * kWidth));
        }
        store(to + i * kWidth, d * load(lanes.scale + i * kWidth));
      });
    });
  }
}

}  // namespace

void norm_sums(const NormRows& rows, const float* x, double* sums) {
  for (std::int64_t group = 0; group < rows.groups; ++group) {
    LaneSums of_x, of_squares;
    for_each_unit<1>(rows, group, {x}, nullptr, [&](const float* const* from, float*) {
      unroll<kVecs>([&](int i) {
        const Vec v = load(from[0] + i * kWidth);
        unroll<2>([&](int half) {
          const Doubles wide = widen(v, half);
          of_x.halves[2 * i + half] += wide;
          of_squares.halves[2 * i + half] += wide * wide;
        });
      });
    });
    of_x.store(sums + group * rows.block, rows.block);
    of_squares.store(sums + (rows.groups + group) * rows.block, rows.block);
  }
}

void norm_forward(const NormRows& rows, const NormLanes* lanes, const float* x, const float* other, bool relu,
                  float* y) {
  if (other != nullptr) {
    relu ? forward<true, true>(rows, lanes, x, other, y) : forward<true, false>(rows, lanes, x, other, y);
  } else {
    relu ? forward<false, true>(rows, lanes, x, other, y) : forward<false, false>(rows, lanes, x, other, y);
  }
}

void norm_backward_sums(const NormRows& rows, const NormLanes* lanes, const float* x, const float* dy, bool relu,
                        const float* y, float* passed, double* sums) {
  if (y != nullptr) return backward_sums<Mask::from_y>(rows, lanes, x, dy, y, passed, sums);
  relu ? backward_sums<Mask::from_x>(rows, lanes, x, dy, nullptr, nullptr, sums)
       : backward_sums<Mask::none>(rows, lanes, x, dy, nullptr, nullptr, sums);
}

void norm_backward(const NormRows& rows, const NormLanes* lanes, const float* x, const float* dy, bool relu,
                   bool centred, float* dx) {
  if (centred) {
    relu ? backward<Mask::from_x, true>(rows, lanes, x, dy, dx) : backward<Mask::none, true>(rows, lanes, x, dy, dx);
  } else {
    relu ? backward<Mask::from_x, false>(rows, lanes, x, dy, dx) : backward<Mask::none, false>(rows, lanes, x, dy, dx);
  }
}

}  // namespace duet::cpu::DUET_ISA
