#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

double operand(const kernels::SmallLinear& g, float x) { return g.rounds ? bfloat16(x) : double{x}; }

void forward_case(const kernels::SmallLinear& g, bool log_softmax, bool biased) {
  Case c("small_linear_forward", {g.rows, g.in, g.out, g.rounds, log_softmax, biased});
  const std::size_t rows = size_of(g.rows), in = size_of(g.in), outputs = size_of(g.out);
  const Floats x = c.normal("x", rows * in, 1), w = c.normal("w", in * outputs, 2),
               y = c.output("y", rows * outputs, 3);
  const Floats bias = biased ? c.normal("bias", outputs, 1) : Floats();
  c.run([&] { kernels::small_linear_forward(x.data(), w.data(), bias.data(), y.data(), log_softmax, g, nullptr); });
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<Expected> sums(outputs);
    double largest = -std::numeric_limits<double>::infinity(), total = 0, scale = 0;
    for (std::size_t o = 0; o < outputs; ++o) {
      if (biased) sums[o].add(bias.first(o));
      for (std::size_t i = 0; i < in; ++i)
        sums[o].add(operand(g, x.first(row * in + i)) * operand(g, w.first(o * in + i)));
      largest = std::max(largest, sums[o].value);
      scale = std::max(scale, sums[o].scale);
    }
    for (const Expected& sum : sums) total += std::exp(sum.value - largest);
    for (std::size_t o = 0; o < outputs; ++o) {
      const std::size_t at = row * outputs + o;
      if (log_softmax)
        c.expect("y", at, y[at], {sums[o].value - largest - std::log(total), scale + 2}, 60);
      else
        c.expect("y", at, y[at], sums[o], 40);
    }
  }
}

/// Which gradients are wanted.
struct Wanted {
  bool dx, dw, db;
};

void backward_case(const kernels::SmallLinear& g, const Wanted& wanted) {
  Case c("small_linear_backward", {g.rows, g.in, g.out, g.rounds, wanted.dx, wanted.dw, wanted.db});
  const std::size_t rows = size_of(g.rows), in = size_of(g.in), outputs = size_of(g.out);
  const Floats dy = c.normal("dy", rows * outputs, 1), x = c.normal("x", rows * in), w = c.normal("w", in * outputs, 1);
  const Floats dx = wanted.dx ? c.output("dx", rows * in, 1) : Floats();
  const Floats dw = wanted.dw ? c.output("dw", in * outputs, 1) : Floats();
  const Floats db = wanted.db ? c.output("db", outputs, 1) : Floats();
  c.run([&] {
    kernels::small_linear_backward(dy.data(), x.data(), w.data(), dx.data(), dw.data(), db.data(), g, nullptr);
  });
  for (std::size_t i = 0; i < dx.size(); ++i) {
    Expected sum;
    for (std::size_t o = 0; o < outputs; ++o)
      sum.add(operand(g, dy.first(i / in * outputs + o)) * operand(g, w.first(o * in + i % in)));
    c.expect("dx", i, dx[i], sum, 40);
  }
  for (std::size_t i = 0; i < dw.size(); ++i) {
    Expected sum;
    for (std::size_t row = 0; row < rows; ++row)
      sum.add(operand(g, dy.first(row * outputs + i / in)) * operand(g, x.first(row * in + i % in)));
    c.expect("dw", i, dw[i], sum, 40);
  }
  for (std::size_t o = 0; o < db.size(); ++o) {
    Expected sum;
    for (std::size_t row = 0; row < rows; ++row) sum.add(dy.first(row * outputs + o));
    c.expect("db", o, db[o], sum, 40);
  }
}

}  // namespace

TEST_CASE("ptx: small linear layers") {
  for (const bool rounds : {false, true})
    for (const kernels::SmallLinear& g : {kernels::SmallLinear{1, 1, 1, rounds},
                                          {5, 128, 10, rounds},
                                          {4, 31, 16, rounds},
                                          {7, 33, 17, rounds},
                                          {37, 128, 32, rounds},
                                          {3, 4096, 1, rounds},
                                          {130, 128, 10, rounds},
                                          {0, 5, 3, rounds},
                                          {2, 0, 4, rounds},
                                          {9, 65, 31, rounds},
                                          {1024, 40, 10, rounds},
                                          {1000, 33, 16, rounds},
                                          {520, 5, 20, rounds}}) {
      for (const bool log_softmax : {false, true})
        for (const bool biased : {false, true}) forward_case(g, log_softmax, biased);
      for (const Wanted& wanted :
           {Wanted{true, true, true}, {false, true, true}, {true, false, false}, {true, true, false}})
        backward_case(g, wanted);
    }
  check_launched({"small_linear_"});
}
