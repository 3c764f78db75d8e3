// Functions of elements over vectors; updates of parameters by Adam.
#include <cstdint>
#include <utility>

#include "lib/backend/cpu/kernels/functions.h"

namespace duet::cpu::DUET_ISA {
namespace {

/// arithmetic::pointwise, which has the formulas' sources, for each lane.
template <Pointwise kFunction>
[[gnu::always_inline]] inline Vec apply(Vec a, Vec b, Vec c) {
  const Vec one = broadcast(1);
  const auto at_least = [](Vec x, float least) { return x < broadcast(least) ? broadcast(least) : x; };
  switch (kFunction) {
    case Pointwise::copy: return a;
    case Pointwise::add: return a + b;
    case Pointwise::sub: return a - b;
    case Pointwise::mul: return a * b;
    case Pointwise::div: return a / b;
    case Pointwise::div_right_gradient: return -c * (a / b / b);
    case Pointwise::exp: return exp(a);
    case Pointwise::exp_gradient: return c * a;
    case Pointwise::log: return log(a);
    case Pointwise::log_gradient: return c / a;
    case Pointwise::sqrt: return square_root(a);
    case Pointwise::sqrt_gradient: return c / (a + a);
    case Pointwise::sigmoid: return sigmoid(a);
    case Pointwise::sigmoid_gradient: return c * (one - a) * a;
    case Pointwise::tanh: return tanh(a);
    case Pointwise::tanh_gradient: return c * (one - a * a);
    case Pointwise::gelu: return gelu(a);
    case Pointwise::gelu_gradient: return c * gelu_slope(a);
    case Pointwise::leaky_relu: return a > Vec{} ? a : a * b;
    case Pointwise::leaky_relu_gradient: return a > Vec{} ? c : c * b;
    case Pointwise::absolute_error: return magnitude(a - b);
    case Pointwise::absolute_error_gradient: return a - b > Vec{} ? c : a - b < Vec{} ? -c : Vec{} * c;
    case Pointwise::cross_entropy: return (b - one) * at_least(log1p(-a), -100) - b * at_least(log(a), -100);
    case Pointwise::cross_entropy_gradient: return c * (a - b) / at_least((one - a) * a, 1e-12f);
    case Pointwise::logit_cross_entropy: return (one - b) * a - ((a < Vec{} ? a : Vec{}) - log1p(exp(-magnitude(a))));
    case Pointwise::logit_cross_entropy_gradient: return c * (sigmoid(a) - b);
  }
  return a;
}

using Function = void (*)(const Operand (&operands)[3], float* y, std::int64_t n);

template <Pointwise kFunction>
void apply_to_all(const Operand (&operands)[3], float* y, std::int64_t n) {
  const float *a = operands[0].memory, *b = operands[1].memory, *c = operands[2].memory;
  const bool goes_on[] = {!operands[0].repeats, !operands[1].repeats, !operands[2].repeats};
  for (; n >= kWidth; n -= kWidth, y += kWidth) {
    store(y, apply<kFunction>(load(a), load(b), load(c)));
    a += goes_on[0] * kWidth, b += goes_on[1] * kWidth, c += goes_on[2] * kWidth;
  }
  if (n == 0) return;
  const auto rest = [n](const float* from, bool on) { return on ? load_first(from, n) : load(from); };
  store_first(y, apply<kFunction>(rest(a, goes_on[0]), rest(b, goes_on[1]), rest(c, goes_on[2])), n);
}

template <int... kFunctions>
Function function_of(Pointwise f, std::integer_sequence<int, kFunctions...>) {
  static constexpr Function kAll[] = {apply_to_all<static_cast<Pointwise>(kFunctions)>...};
  return kAll[static_cast<int>(f)];
}

}  // namespace

void pointwise(Pointwise f, const Operand (&operands)[3], float* y, std::int64_t n) {
  function_of(f, std::make_integer_sequence<int, kPointwiseFunctions>())(operands, y, n);
}

/// arithmetic::adam, which has the formula's source, over vectors: compilers leave its branches inside AVX2's loop.
void adam(float* value, const float* gradient, float* first, float* second, std::int64_t n,
          const arithmetic::AdamFactors& f) {
  const bool starts_from_mean = f.take1 < 0.5f;
  for_each_vector(n, [&, f](std::int64_t i, int lanes) {
    const auto load_at = [&](const float* from) { return load_first(from + i, lanes); };
    const Vec kept = load_at(value) * broadcast(f.keep), mean = load_at(first);
    const Vec g = f.decay == 0 ? load_at(gradient) : exact_fma(broadcast(f.decay), kept, load_at(gradient));
    const Vec m = starts_from_mean ? exact_fma(broadcast(f.take1), g - mean, mean)
                                   : exact_fma(broadcast(f.take1 - 1), g - mean, g);
    const Vec v = exact_fma(broadcast(f.take2) * g, g, broadcast(f.beta2) * load_at(second));
    const Vec change = m / (square_root(v) / broadcast(f.root) + broadcast(f.eps));
    store_first(first + i, m, lanes);
    store_first(second + i, v, lanes);
    store_first(value + i, exact_fma(broadcast(-f.step_size), change, kept), lanes);
  });
}

}  // namespace duet::cpu::DUET_ISA
