#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/backend/arithmetic.h"
#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

/// Places of up to four arrays past a multiple of 16 bytes: alike ones are worked on by fours.
struct Offsets {
  int value, gradient, first, second;
};
constexpr Offsets kOffsets[] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}, {0, 1, 0, 0}, {2, 2, 3, 2}};

/// lr, momentum, dampening, weight decay, nesterov, first step; without momentum there is no buffer for it.
constexpr kernels::SGDFactors kFactors[] = {{0.1f, 0, 0, 0, false, false},      {0.1f, 0, 0, 0.01f, false, false},
                                            {0.1f, 0.9f, 0, 0, false, false},   {0.1f, 0.9f, 0, 0, false, true},
                                            {0.1f, 0.9f, 0, 0, true, false},    {0.1f, 0.9f, 0.3f, 0.01f, false, false},
                                            {0.1f, 0.9f, 0, 0.01f, true, true}, {0.1f, 0.9f, 0.5f, 0.01f, false, true}};

void sgd_cases(std::int64_t n, const Offsets& at) {
  const std::size_t count = size_of(n);
  for (const kernels::SGDFactors& f : kFactors) {
    Case c("sgd", {n, at.value, at.gradient, at.first, &f - kFactors});
    const Floats v = c.normal("value", count, at.value), g = c.normal("gradient", count, at.gradient);
    Floats m;
    if (f.momentum != 0)
      m = c.input<float>("momentum", count, at.first, [&](std::size_t) { return f.first ? kNaN : c.normal(); });
    c.run([&] { kernels::sgd(v.data(), g.data(), m.data(), n, f, nullptr); });
    for (std::size_t i = 0; i < count; ++i) {
      const double value = v.first(i), gradient = g.first(i) + double{f.weight_decay} * value;
      double step = gradient;
      if (m) {
        const double buffer =
            f.first ? gradient : double{f.momentum} * m.first(i) + (1 - double{f.dampening}) * gradient;
        c.expect("momentum", i, m[i], {buffer, 1 + std::fabs(gradient)}, 4);
        step = f.nesterov ? gradient + double{f.momentum} * buffer : buffer;
      }
      c.expect("value", i, v[i], {value - double{f.lr} * step, std::fabs(value) + std::fabs(step) + 1}, 4);
    }
  }
}

enum class Decay { none, coupled, decoupled };

void adam_case(std::int64_t n, const Offsets& at, Decay decay) {
  constexpr double kRate = 0.01, kBeta2 = 0.99, kStep = 3;
  const double beta1 = decay == Decay::decoupled ? 0.3 : 0.9, lambda = decay == Decay::none ? 0 : 0.1;
  const double correction1 = 1 - std::pow(beta1, kStep), correction2 = 1 - std::pow(kBeta2, kStep);
  const bool decoupled = decay == Decay::decoupled;
  duet::arithmetic::AdamFactors f;
  f.keep = static_cast<float>(decoupled ? 1 - kRate * lambda : 1);
  f.decay = static_cast<float>(decoupled ? 0 : lambda);
  f.take1 = static_cast<float>(1 - beta1);
  f.beta2 = static_cast<float>(kBeta2);
  f.take2 = static_cast<float>(1 - kBeta2);
  f.step_size = static_cast<float>(kRate / correction1);
  f.root = static_cast<float>(std::sqrt(correction2));
  f.eps = 1e-8f;
  const std::size_t count = size_of(n);
  Case c("adam", {n, at.value, at.gradient, at.first, at.second, static_cast<int>(decay)});
  const Floats v = c.normal("value", count, at.value), g = c.normal("gradient", count, at.gradient);
  const Floats m = c.normal("first", count, at.first), s = c.uniform("second", count, 0, 2, at.second);
  c.run([&] { kernels::adam(v.data(), g.data(), m.data(), s.data(), n, f, nullptr); });
  for (std::size_t i = 0; i < count; ++i) {
    const double value = v.first(i) * (decoupled ? 1 - kRate * lambda : 1);
    const double gradient = g.first(i) + (decoupled ? 0 : lambda * value);
    const double first = beta1 * m.first(i) + (1 - beta1) * gradient;
    const double second = kBeta2 * s.first(i) + (1 - kBeta2) * gradient * gradient;
    const double step = kRate / correction1 * first / (std::sqrt(second / correction2) + 1e-8);
    c.expect("first", i, m[i], {first, 1 + std::fabs(gradient) + std::fabs(m.first(i))}, 4);
    c.expect("second", i, s[i], {second, 1 + gradient * gradient}, 4);
    c.expect("value", i, v[i], {value - step, std::fabs(value) + std::fabs(step) + 1}, 6);
  }
}

void squares_case(std::int64_t n) {
  Case c("sum_of_squares", {n});
  const Floats x = c.normal("x", size_of(n), 1);
  const auto partials = c.output<double>("partials", kernels::kSquarePartials);
  c.run([&] { kernels::sum_of_squares(x.data(), n, partials.data(), nullptr); });
  double got = 0, expected = 0;
  for (std::size_t i = 0; i < partials.size(); ++i) got += partials[i];
  for (std::size_t i = 0; i < x.size(); ++i) expected += double{x.first(i)} * x.first(i);
  if (!(std::fabs(got - expected) <= 1e-12 * expected)) c.fail("wrong value", "the sum is " + std::to_string(got));
}

}  // namespace

TEST_CASE("ptx: updates of parameters") {
  for (const std::int64_t n : {0, 1, 2, 3, 4, 5, 7, 257, 1027, 20002})
    for (const Offsets& at : kOffsets) {
      sgd_cases(n, at);
      for (const Decay decay : {Decay::none, Decay::coupled, Decay::decoupled}) adam_case(n, at, decay);
    }
  for (const std::int64_t n : {0, 1, 255, 256, 257, 65536, 65537, 200003}) squares_case(n);
  check_all_launched("update", {"sum_parts_kernel", "all_reduce_kernel"});
}
