// Pairs of ways through the kernels that promise the same bits, each with products and sums as they are compiled and
// with every product fused that ptxas may fuse.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "lib/backend/arithmetic.h"
#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"
#include "tests/support/ptx/cudart.h"
#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/registry.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

using Values = std::vector<float>;

Values draw(Case& c, std::size_t count) {
  Values values(count);
  for (float& value : values) value = c.normal();
  return values;
}
/// An array of these values.
Floats copy(Case& c, const char* name, const Values& values, int offset = 0) {
  return c.input<float>(name, values.size(), offset, [&](std::size_t i) { return values[i]; });
}

/// Runs both ways, plain and contracted.
struct Pair : Case {
  Pair(const std::string& what, std::initializer_list<std::int64_t> shape) : Case("pair: " + what, shape) {}
  template <class T>
  void compare(const Array<T>& a, const Array<T>& b) {
    compared.push_back([this, a, b] {
      for (std::size_t i = 0; i < a.size(); ++i) {
        const T x = a[i], y = b[i];
        if (std::memcmp(&x, &y, sizeof x) != 0)
          return fail("bits of two ways differ", "bits differ at " + std::to_string(i));
      }
    });
  }
  void run_both(const std::function<void()>& work) {
    for (const bool contract : {false, true}) {
      duet_ptx::device().options.contract = contract;
      run(work, true);
      for (const auto& check : compared) check();
    }
    duet_ptx::device().options.contract = false;
  }
  std::vector<std::function<void()>> compared;
};

void sgd_pair(const kernels::SGDFactors& f, int kind) {
  constexpr std::int64_t n = 4000;
  Pair c("sgd by fours, one by one", {kind});
  const Values v = draw(c, n), g = draw(c, n), m = draw(c, n);
  Floats values[2], momenta[2], gradients[2];
  for (const int way : {0, 1}) {
    values[way] = copy(c, "value", v);
    gradients[way] = copy(c, "gradient", g, way);
    if (f.momentum != 0) momenta[way] = copy(c, "momentum", m);
  }
  c.compare(values[0], values[1]);
  c.compare(momenta[0], momenta[1]);
  c.run_both([&] {
    for (const int way : {0, 1})
      kernels::sgd(values[way].data(), gradients[way].data(), momenta[way].data(), n, f, nullptr);
  });
}

void adam_pair() {
  constexpr std::int64_t n = 4000;
  const duet::arithmetic::AdamFactors f{0.99f, 0, 0.1f, 0.999f, 0.001f, 0.01f, 0.05f, 1e-8f};
  Pair c("adam by fours, one by one", {});
  const Values v = draw(c, n), g = draw(c, n), m = draw(c, n);
  Values s = draw(c, n);
  for (float& value : s) value *= value;
  Floats values[2], gradients[2], firsts[2], seconds[2];
  for (const int way : {0, 1}) {
    values[way] = copy(c, "value", v);
    gradients[way] = copy(c, "gradient", g, way);
    firsts[way] = copy(c, "first", m);
    seconds[way] = copy(c, "second", s);
  }
  c.compare(values[0], values[1]);
  c.compare(firsts[0], firsts[1]);
  c.compare(seconds[0], seconds[1]);
  c.run_both([&] {
    for (const int way : {0, 1})
      kernels::adam(values[way].data(), gradients[way].data(), firsts[way].data(), seconds[way].data(), n, f, nullptr);
  });
}

void sum_pairs(int count) {
  constexpr std::int64_t n = 4000;
  Pair c("all_reduce by fours, one by one, sum_parts", {count});
  kernels::Parts aligned{}, mixed{};
  kernels::Sums by_fours{}, one_by_one{};
  std::vector<Floats> kept;
  for (int i = 0; i < count; ++i) {
    const Values part = draw(c, n);
    for (const Floats& array :
         {copy(c, "part", part), copy(c, "part", part, i % 2), c.output("sum", n), c.output("sum", n)})
      kept.push_back(array);
    aligned.at[i] = kept[kept.size() - 4].data();
    mixed.at[i] = kept[kept.size() - 3].data();
    by_fours.at[i] = kept[kept.size() - 2].data();
    one_by_one.at[i] = kept[kept.size() - 1].data();
  }
  const Floats y = c.output("y", n);
  c.compare(kept[2], kept[3]);
  c.compare(kept[2], y);
  c.run_both([&] {
    kernels::all_reduce(aligned, by_fours, count, n, nullptr);
    kernels::all_reduce(mixed, one_by_one, count, n, nullptr);
    kernels::sum_parts(aligned, count, false, y.data(), n, nullptr);
  });
}

void loss_pairs(int classes) {
  constexpr std::int64_t kRows = 40;
  constexpr float kFactor = 1.0f / 3;
  Pair c("gradients of nll and log_softmax", {classes});
  const std::size_t n = size_of(kRows * classes);
  const Floats y = c.uniform("y", n, -9, 0), one = c.constant("dloss", 1), loss = c.output("loss", 1);
  const auto labels = c.input<std::int64_t>(
      "labels", kRows, 0, [&](std::size_t) { return static_cast<std::int64_t>(c.below(size_of(classes))); });
  const auto fault = c.input<kernels::LabelFault>("fault", 1, 0, [](std::size_t) { return kernels::LabelFault{}; });
  const Floats forward = c.output("dx", n), fused = c.output("dx", n), nll = c.output("dx", n),
               apart = c.output("dx", n);
  c.compare(forward, fused);
  c.compare(fused, apart);
  c.run_both([&] {
    const std::int64_t* const l = labels.data();
    kernels::nll_forward(y.data(), l, kFactor, loss.data(), {forward.data(), kFactor}, kRows, classes, fault.data(),
                         nullptr);
    kernels::log_softmax_nll_backward(one.data(), y.data(), l, kFactor, fused.data(), kRows, classes, nullptr);
    kernels::nll_backward(one.data(), l, kFactor, nll.data(), kRows, classes, nullptr);
    kernels::log_softmax_backward(y.data(), nll.data(), apart.data(), kRows, classes, nullptr);
  });
}

void log_softmax_pair(int classes) {
  constexpr std::int64_t kRows = 40;
  Pair c("log_softmax with bias, add_row_bias and log_softmax", {classes});
  const Values logits = draw(c, size_of(kRows * classes));
  const Floats x = copy(c, "x", logits), z = copy(c, "x", logits), bias = c.normal("bias", size_of(classes));
  const Floats a = c.output("y", logits.size()), b = c.output("y", logits.size());
  c.compare(a, b);
  c.run_both([&] {
    kernels::log_softmax_forward(x.data(), bias.data(), a.data(), kRows, classes, nullptr);
    kernels::add_row_bias(z.data(), bias.data(), kRows, classes, nullptr);
    kernels::log_softmax_forward(z.data(), nullptr, b.data(), kRows, classes, nullptr);
  });
}

void small_linear_pair(int classes) {
  constexpr int kRows = 40, kInputs = 128;
  Pair c("small_linear with log_softmax, both apart", {classes});
  const kernels::SmallLinear g{kRows, kInputs, classes, false};
  const Floats x = c.normal("x", kRows * kInputs), w = c.normal("w", size_of(classes * kInputs)),
               bias = c.normal("bias", size_of(classes));
  const std::size_t n = size_of(kRows * classes);
  const Floats fused = c.output("y", n), linear = c.output("y", n), apart = c.output("y", n);
  c.compare(fused, apart);
  c.run_both([&] {
    kernels::small_linear_forward(x.data(), w.data(), bias.data(), fused.data(), true, g, nullptr);
    kernels::small_linear_forward(x.data(), w.data(), bias.data(), linear.data(), false, g, nullptr);
    kernels::log_softmax_forward(linear.data(), nullptr, apart.data(), kRows, classes, nullptr);
  });
}

void epilogue_pairs() {
  const kernels::TiledPool g{3, 4, 8, 8, 4, 4, 2, 2};
  Pair c("bias_pool_relu and add_channel_bias by vectors, one by one", {});
  const Values values = draw(c, 3 * 4 * 64);
  const Floats bias = c.normal("bias", 4);
  Floats images[2], sums[2], y[2];
  Array<std::uint8_t> index[2];
  for (const int way : {0, 1}) {
    images[way] = copy(c, "image", values, way);
    sums[way] = copy(c, "y", values, way);
    y[way] = c.output("y", 192);
    index[way] = c.output<std::uint8_t>("index", 192);
  }
  c.compare(y[0], y[1]);
  c.compare(index[0], index[1]);
  c.compare(sums[0], sums[1]);
  c.run_both([&] {
    for (const int way : {0, 1}) {
      kernels::bias_pool_relu_forward(images[way].data(), bias.data(), y[way].data(), index[way].data(), g, nullptr, 1,
                                      nullptr);
      kernels::add_channel_bias(sums[way].data(), bias.data(), 3, 4, 64, nullptr);
    }
  });
}

}  // namespace

TEST_CASE("ptx: ways that promise equal bits have them, contracted or not") {
  int kind = 0;
  for (const kernels::SGDFactors& f : {kernels::SGDFactors{0.1f, 0.9f, 0, 0, false, false},
                                       {0.1f, 0.9f, 0, 0, false, true},
                                       {0.1f, 0.9f, 0, 0.01f, false, false},
                                       {0.1f, 0.9f, 0, 0.01f, true, false},
                                       {0.1f, 0.9f, 0.1f, 0.01f, false, false},
                                       {0.1f, 0, 0, 0.01f, false, false}})
    sgd_pair(f, kind++);
  adam_pair();
  for (const int count : {2, 3, 4, 8, 16, 32}) sum_pairs(count);
  for (const int classes : {10, 33}) {
    loss_pairs(classes);
    log_softmax_pair(classes);
  }
  small_linear_pair(10);
  epilogue_pairs();
}

TEST_CASE("ptx: ptxas may fuse no product of the kernels") {
  for (const duet_ptx::RegisteredKernel& kernel : duet_ptx::registered_kernels()) {
    INFO("kernel " << kernel.name);
    CHECK(duet_ptx::fusible_products(*kernel.kernel) == 0);
  }
}
