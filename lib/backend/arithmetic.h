// Arithmetic of single elements that kernels of CPU and GPU share, so that both give the same numbers.
#pragma once

#include <cmath>
#include <cstdint>

#include "lib/backend/pointwise.h"

/// Stands before `inline`: nvcc compiles such functions for both, a C++ compiler for the CPU. The CPU's kernels are
/// compiled once per instruction set, so no copy of such a function may exist out of line: the linker would keep one,
/// perhaps with instructions that this machine lacks.
#if defined(__CUDACC__)
#define DUET_HOST_DEVICE __host__ __device__
#else
#define DUET_HOST_DEVICE [[gnu::always_inline]]
#endif

namespace duet::arithmetic {

// --- Pooling: what decides a maximum, and where its gradient goes ---

/// Place of a pooled element through which no gradient passes: its maximum was not positive, or it was dropped.
inline constexpr std::uint8_t kNoGradient = 255;

/// Whether the next value of a window, in row-major order, takes the place of the best so far: ties stay with the
/// first, and a NaN wins, as in PyTorch. T: float, or a vector of them.
template <class T>
DUET_HOST_DEVICE inline auto pool_wins(const T& next, const T& best) {
  return next > best || next != next;
}

/// Whether relu stops a value, and the gradient behind it; a NaN stays a NaN and passes its gradient on, as in PyTorch.
DUET_HOST_DEVICE inline bool relu_stops(float value) { return value <= 0; }

// --- Functions of elements; sources of the formulas: Activation.cpp, Loss.cpp and cpu/BinaryOpsKernel.cpp in
// aten/src/ATen/native ---

/// A NaN stays one.
DUET_HOST_DEVICE inline float at_least(float x, float least) { return x < least ? least : x; }

DUET_HOST_DEVICE inline float pointwise(Pointwise f, float a, float b, float c) {
  constexpr float kRootOfHalf = 0.70710678118654752f, kDensity = 0.39894228040143268f;  // 1 / sqrt(2 pi)
  switch (f) {
    case Pointwise::copy: return a;
    case Pointwise::add: return a + b;
    case Pointwise::sub: return a - b;
    case Pointwise::mul: return a * b;
    case Pointwise::div: return a / b;
    case Pointwise::div_right_gradient: return -c * (a / b / b);
    case Pointwise::exp: return expf(a);
    case Pointwise::exp_gradient: return c * a;
    case Pointwise::log: return logf(a);
    case Pointwise::log_gradient: return c / a;
    case Pointwise::sqrt: return sqrtf(a);
    case Pointwise::sqrt_gradient: return c / (2 * a);
    case Pointwise::sigmoid: return 1 / (1 + expf(-a));
    case Pointwise::sigmoid_gradient: return c * (1 - a) * a;
    case Pointwise::tanh: return tanhf(a);
    case Pointwise::tanh_gradient: return c * (1 - a * a);
    case Pointwise::gelu: return a * 0.5f * (1 + erff(a * kRootOfHalf));
    case Pointwise::gelu_gradient:
      return c * (0.5f * (1 + erff(a * kRootOfHalf)) + a * (kDensity * expf(-0.5f * a * a)));
    case Pointwise::leaky_relu: return a > 0 ? a : a * b;
    case Pointwise::leaky_relu_gradient: return a > 0 ? c : c * b;
    case Pointwise::absolute_error: return fabsf(a - b);
    case Pointwise::absolute_error_gradient: return a - b > 0 ? c : a - b < 0 ? -c : 0 * c;
    case Pointwise::cross_entropy: return (b - 1) * at_least(log1pf(-a), -100) - b * at_least(logf(a), -100);
    case Pointwise::cross_entropy_gradient: return c * (a - b) / at_least((1 - a) * a, 1e-12f);
    case Pointwise::logit_cross_entropy: return (1 - b) * a - ((a < 0 ? a : 0) - log1pf(expf(-fabsf(a))));
    case Pointwise::logit_cross_entropy_gradient: return c * (1 / (1 + expf(-a)) - b);
  }
  return a;
}

// --- Average pooling: which pixels an output averages, and which outputs average a pixel. Axis: AverageAxis, or one of
// shorter integers; Index: its integer ---

/// Pixels [first_pixel, end_pixel) are averaged to output i; at least one.
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index first_pixel(const Axis& axis, Index i) {
  if (axis.kernel == 0) return i * axis.size / axis.out;
  const Index first = i * axis.stride - axis.pad;
  return first < 0 ? 0 : first;
}
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index end_pixel(const Axis& axis, Index i) {
  if (axis.kernel == 0) return ((i + 1) * axis.size + axis.out - 1) / axis.out;
  const Index end = i * axis.stride - axis.pad + axis.kernel;
  return end < axis.size ? end : axis.size;
}

/// The divisor of the sum of output (p, q): how many pixels its window counts.
template <class Pool, class Index>
DUET_HOST_DEVICE inline float pixels_of(const Pool& pool, Index p, Index q) {
  const Index h = pool.h.counts_padding ? pool.h.kernel : end_pixel(pool.h, p) - first_pixel(pool.h, p);
  const Index w = pool.w.counts_padding ? pool.w.kernel : end_pixel(pool.w, q) - first_pixel(pool.w, q);
  return static_cast<float>(h * w);
}

/// Pixel i is averaged to outputs [first_output, end_output).
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index first_output(const Axis& axis, Index i) {
  if (axis.kernel == 0) return i * axis.out / axis.size;
  const Index past = i + axis.pad - axis.kernel;  // windows that start here or before end before the pixel
  return past < 0 ? 0 : past / axis.stride + 1;
}
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index end_output(const Axis& axis, Index i) {
  if (axis.kernel == 0) return ((i + 1) * axis.out + axis.size - 1) / axis.size;
  const Index end = (i + axis.pad) / axis.stride + 1;
  return end < axis.out ? end : axis.out;
}

// --- One decision of dropout, the same on every device: see DropoutKey in backend.h ---

/// The numbers that all decisions of one dropout in one step share.
struct DropoutDraw {
  std::uint64_t seed = 0, step = 0;
  std::uint64_t first_row = 0;  // number that the tensor's row 0 has in the global batch
  std::uint32_t layer = 0, threshold = 0;
};

/// Four random words: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
struct PhiloxWords {
  std::uint32_t word[4];
};

DUET_HOST_DEVICE inline PhiloxWords philox(PhiloxWords x, std::uint64_t seed) {
  std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xd2511f53} * x.word[0], second = std::uint64_t{0xcd9e8d57} * x.word[2];
    x = {{static_cast<std::uint32_t>(second >> 32) ^ x.word[1] ^ key0, static_cast<std::uint32_t>(second),
          static_cast<std::uint32_t>(first >> 32) ^ x.word[3] ^ key1, static_cast<std::uint32_t>(first)}};
    key0 += 0x9e3779b9U;
    key1 += 0xbb67ae85U;
  }
  return x;
}

/// Number of decisions that one call of dropout_words gives, kDropoutLanes elements apart.
inline constexpr int kDropoutNumbers = 8;
inline constexpr int kDropoutLanes = 16;

/// The words that decide elements chunk * 128 + lane + 16 * j of a row, j = 0..7, where index = 16 * chunk + lane.
DUET_HOST_DEVICE inline PhiloxWords dropout_words(const DropoutDraw& draw, std::int64_t row, std::uint32_t index) {
  return philox({{index, static_cast<std::uint32_t>(draw.first_row + static_cast<std::uint64_t>(row)),
                  static_cast<std::uint32_t>(draw.step), draw.layer}},
                draw.seed);
}

/// Whether the j-th of these eight elements is kept.
DUET_HOST_DEVICE inline bool dropout_keeps(const DropoutDraw& draw, const PhiloxWords& words, int j) {
  const std::uint32_t word = words.word[j / 2];
  return (j % 2 ? word >> 16 : word & 0xffffU) >= draw.threshold;
}

/// Whether element `element` of the tensor's row `row` is kept. Draws all eight numbers of its group for one.
DUET_HOST_DEVICE inline bool dropout_keeps_element(const DropoutDraw& draw, std::int64_t row, std::int64_t element) {
  const auto within = static_cast<int>(element % (kDropoutNumbers * kDropoutLanes));
  const auto chunk = static_cast<std::uint32_t>(element / (kDropoutNumbers * kDropoutLanes));
  const std::uint32_t index = chunk * kDropoutLanes + static_cast<std::uint32_t>(within % kDropoutLanes);
  return dropout_keeps(draw, dropout_words(draw, row, index), within / kDropoutLanes);
}

// --- One element of softmax, of log_softmax, of losses behind it, and of their gradients; the order of a row ---

/// In PyTorch's order: one shift of largest + log would lose the digits of the log for large inputs.
DUET_HOST_DEVICE inline float log_softmax(float x, float largest, float log_total) { return x - largest - log_total; }

/// y: the output, dy: its gradient, total: the sum of the row's dy.
DUET_HOST_DEVICE inline float log_softmax_gradient(float y, float dy, float total) { return dy - expf(y) * total; }

/// y: softmax's output, dy: its gradient, total: the sum of the row's y * dy.
DUET_HOST_DEVICE inline float softmax_gradient(float y, float dy, float total) { return y * (dy - total); }

/// Targets of a loss with label smoothing: `spread` for every class, `label` for that of the row.
struct SmoothedTarget {
  float label, spread;
};
DUET_HOST_DEVICE inline SmoothedTarget smoothed_target(float smoothing, std::int64_t classes) {
  const float spread = smoothing / static_cast<float>(classes);
  return {1 - smoothing + spread, spread};
}
/// The gradient of a logit behind log_softmax (its output: y), where the rows of the loss weigh `weight`.
DUET_HOST_DEVICE inline float smoothed_nll_gradient(float y, bool at_label, const SmoothedTarget& target,
                                                    float weight) {
  return (expf(y) - (at_label ? target.label : target.spread)) * weight;
}

/// Whether entry i of a row, of value a, stands before entry j, of value b, in the row sorted from the largest: a NaN
/// is larger than any number, and of equal entries the first stands first.
DUET_HOST_DEVICE inline bool stands_before(float a, std::int64_t i, float b, std::int64_t j) {
  if (a != a) return b == b || i < j;
  return a > b || (a == b && i < j);
}

/// The gradient of a logit behind log_softmax (its output: y) and nll_loss, whose gradient at the row's label is
/// `gradient`. The sum of the row's gradients adds it to a zero, which matters where it is a zero with a sign.
DUET_HOST_DEVICE inline float log_softmax_nll_gradient(float y, bool at_label, float gradient) {
  return log_softmax_gradient(y, at_label ? gradient : 0.0f, 0.0f + gradient);
}

// --- One element of an update: SGD (torch.optim.SGD), Adam and AdamW ---

/// `keep` and `take` are the weights of the momentum buffer's old value and of the gradient: 0 and 1 in the first step,
/// else momentum and 1 - dampening. kPlain leaves out weight decay, dampening and Nesterov.
template <bool kPlain>
DUET_HOST_DEVICE inline void sgd_with_momentum(float& value, float gradient, float& buffer, float lr, float momentum,
                                               float keep, float take, float weight_decay, bool nesterov) {
  float g = gradient;
  if constexpr (!kPlain) g += weight_decay * value;
  const float b = keep * buffer + (kPlain ? g : take * g);
  buffer = b;
  if constexpr (!kPlain) g = nesterov ? g + momentum * b : b;
  value -= lr * (kPlain ? b : g);
}

DUET_HOST_DEVICE inline void sgd_without_momentum(float& value, float gradient, float lr, float weight_decay) {
  value -= lr * (gradient + weight_decay * value);
}

/// The numbers of a rule that are the same for all elements; computed in double, as PyTorch's Python code does.
struct AdamFactors {
  float keep = 1;   // factor of the value: 1 - lr * weight decay, in AdamW
  float decay = 0;  // weight decay that is added to the gradient, in Adam
  float take1 = 0;  // 1 - beta1
  float beta2 = 0, take2 = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
  float root = 1;       // sqrt(1 - beta2^step)
  float eps = 0;
};

/// torch.lerp: from a to b, by the formula that is exact at the nearer end.
template <class Fma>
DUET_HOST_DEVICE inline float lerp(float a, float b, float weight, Fma fma) {
  return weight < 0.5f ? fma(weight, b - a, a) : fma(weight - 1, b - a, b);
}

/// torch/optim/adam.py, _single_tensor_adam: m.lerp_(g, 1 - beta1); v.mul_(beta2).addcmul_(g, g, value=1 - beta2);
/// p.addcdiv_(m, v.sqrt() / root + eps, value=-step_size). `Fma` and `Sqrt` are the platform's.
template <class Fma, class Sqrt>
DUET_HOST_DEVICE inline void adam(float& value, float gradient, float& first, float& second, const AdamFactors& f,
                                  Fma fma, Sqrt root) {
  const float kept = value * f.keep;
  const float g = f.decay == 0 ? gradient : fma(f.decay, kept, gradient);
  const float m = lerp(first, g, f.take1, fma);
  const float v = fma(f.take2 * g, g, f.beta2 * second);
  first = m;
  second = v;
  value = fma(-f.step_size, m / (root(v) / f.root + f.eps), kept);
}

/// Rule: AdamRule.
template <class Rule>
DUET_HOST_DEVICE inline AdamFactors factors_of(const Rule& rule) {
  const auto step = static_cast<double>(rule.step);
  return {.keep = static_cast<float>(rule.decoupled ? 1 - rule.lr * rule.weight_decay : 1),
          .decay = static_cast<float>(rule.decoupled ? 0 : rule.weight_decay),
          .take1 = static_cast<float>(1 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .take2 = static_cast<float>(1 - rule.beta2),
          .step_size = static_cast<float>(rule.lr / (1 - std::pow(rule.beta1, step))),
          .root = static_cast<float>(std::sqrt(1 - std::pow(rule.beta2, step))),
          .eps = static_cast<float>(rule.eps)};
}

}  // namespace duet::arithmetic
