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

struct Shape {
  std::int64_t rows;
  int classes;
  std::size_t size() const { return size_of(rows * classes); }
  std::size_t width() const { return size_of(classes); }
  std::size_t count() const { return size_of(rows); }
};
constexpr float kFactor = 1.0f / 128;

/// The largest logit of a row, and the sum of the exponentials of what lies below it.
struct RowSum {
  double largest = -std::numeric_limits<double>::infinity(), total = 0;
};
template <class Logit>
RowSum row_sum(std::size_t classes, Logit logit) {
  RowSum sum;
  for (std::size_t j = 0; j < classes; ++j) sum.largest = std::max(sum.largest, logit(j));
  for (std::size_t j = 0; j < classes; ++j) sum.total += std::exp(logit(j) - sum.largest);
  return sum;
}

void log_softmax_case(const Shape& g, double size, bool biased, bool in_place) {
  Case c("log_softmax_forward", {g.rows, g.classes, biased, in_place});
  const Floats x = c.uniform("x", g.size(), -size, size, 1), y = in_place ? x : c.output("y", g.size());
  const Floats bias = biased ? c.normal("bias", g.width(), 1) : Floats();
  c.run([&] { kernels::log_softmax_forward(x.data(), bias.data(), y.data(), g.rows, g.classes, nullptr); });
  for (std::size_t row = 0; row < g.count(); ++row) {
    const auto logit = [&](std::size_t j) {
      return double{x.first(row * g.width() + j)} + (biased ? double{bias.first(j)} : 0);
    };
    const RowSum sum = row_sum(g.width(), logit);
    for (std::size_t j = 0; j < g.width(); ++j)
      c.expect("y", row * g.width() + j, y[row * g.width() + j],
               {logit(j) - sum.largest - std::log(sum.total), std::fabs(logit(j)) + std::fabs(sum.largest) + 2}, 8);
  }
}

void softmax_case(const Shape& g) {
  Case c("softmax_forward", {g.rows, g.classes});
  const Floats x = c.uniform("x", g.size(), -8, 8, 1), y = c.output("y", g.size());
  c.run([&] { kernels::softmax_forward(x.data(), y.data(), g.rows, g.classes, nullptr); });
  for (std::size_t row = 0; row < g.count(); ++row) {
    const auto logit = [&](std::size_t j) { return double{x.first(row * g.width() + j)}; };
    const RowSum sum = row_sum(g.width(), logit);
    for (std::size_t j = 0; j < g.width(); ++j)
      c.expect("y", row * g.width() + j, y[row * g.width() + j], std::exp(logit(j) - sum.largest) / sum.total, 45);
  }
}

void backward_cases(const Shape& g) {
  for (const bool log : {false, true}) {
    Case c(log ? "log_softmax_backward" : "softmax_backward", {g.rows, g.classes});
    const Floats y = log ? c.uniform("y", g.size(), -8, 0) : c.uniform("y", g.size(), 0, 2.0 / g.classes);
    const Floats dy = c.normal("dy", g.size(), 1), dx = c.output("dx", g.size());
    c.run([&] {
      (log ? kernels::log_softmax_backward : kernels::softmax_backward)(y.data(), dy.data(), dx.data(), g.rows,
                                                                        g.classes, nullptr);
    });
    for (std::size_t row = 0; row < g.count(); ++row) {
      Expected sum;
      const auto at = [&](std::size_t j) { return row * g.width() + j; };
      for (std::size_t j = 0; j < g.width(); ++j) sum.add((log ? 1 : double{y.first(at(j))}) * dy.first(at(j)));
      for (std::size_t j = 0; j < g.width(); ++j) {
        const double p = log ? std::exp(double{y.first(at(j))}) : double{y.first(at(j))}, d = dy.first(at(j));
        const double size = log ? std::fabs(d) + p * sum.scale : p * (std::fabs(d) + sum.scale);
        c.expect("dx", at(j), dx[at(j)], {log ? d - p * sum.value : p * (d - sum.value), size}, 45);
      }
    }
  }
}

/// Labels of which one is out of bounds, and some behind it: the first is what is reported.
enum class Fault { none, negative, too_large };

struct Labels {
  Array<std::int64_t> array;
  std::int64_t bad = -1;  // row of the first that is out of bounds
};
Labels make_labels(Case& c, const Shape& g, Fault fault) {
  Labels labels;
  if (fault != Fault::none && g.rows > 0) labels.bad = static_cast<std::int64_t>(c.below(g.count()));
  labels.array = c.input<std::int64_t>("labels", g.count(), 0, [&](std::size_t i) {
    const auto row = static_cast<std::int64_t>(i);
    if (row == labels.bad) return fault == Fault::negative ? std::int64_t{-1} : std::int64_t{g.classes};
    if (labels.bad >= 0 && row > labels.bad && i % 3 == 0) return std::int64_t{1} << 40;
    return static_cast<std::int64_t>(c.below(g.width()));
  });
  return labels;
}
bool known(const Shape& g, std::int64_t label) { return label >= 0 && label < g.classes; }

void nll_forward_case(const Shape& g, bool with_gradient, Fault fault) {
  constexpr float kGradientFactor = 0.25f;
  Case c("nll_forward", {g.rows, g.classes, with_gradient, static_cast<int>(fault)});
  const Floats y = c.uniform("y", g.size(), -8, 0, 1), loss = c.output("loss", 1);
  const Floats dx = with_gradient ? c.output("dx", g.size(), 1) : Floats();
  const Labels labels = make_labels(c, g, fault);
  const auto seen = c.input<kernels::LabelFault>("fault", 1, 0, [](std::size_t) { return kernels::LabelFault{}; });
  c.run([&] {
    kernels::nll_forward(y.data(), labels.array.data(), kFactor, loss.data(), {dx.data(), kGradientFactor}, g.rows,
                         g.classes, seen.data(), nullptr);
  });
  Expected sum;
  for (std::size_t row = 0; row < g.count(); ++row) {
    const std::int64_t label = labels.array.first(row);
    if (known(g, label)) sum.add(-double{kFactor} * y.first(row * g.width() + size_of(label)));
    for (std::size_t j = 0; with_gradient && j < g.width(); ++j) {
      const std::size_t at = row * g.width() + j;
      const double p = std::exp(double{y.first(at)}) - (static_cast<std::int64_t>(j) == label ? 1 : 0);
      c.expect("dx", at, dx[at], {known(g, label) ? p * double{kGradientFactor} : 0, 0.5}, 4);
    }
  }
  if (labels.bad >= 0) sum.value = kNaN;
  c.expect("loss", 0, loss[0], sum, 30);
  c.expect_equal("seen", 0, seen[0].seen, labels.bad >= 0);
  if (labels.bad < 0) return;
  c.expect_equal("row", 0, seen[0].row, labels.bad);
  c.expect_equal("label", 0, seen[0].label, labels.array.first(size_of(labels.bad)));
  c.expect_equal("classes", 0, seen[0].classes, g.classes);
}

void nll_backward_case(const Shape& g, Fault fault) {
  constexpr float kSmoothing = 0.1f, kLossGradient = 1.5f;
  Case c("nll_backward", {g.rows, g.classes, static_cast<int>(fault)});
  const Floats dloss = c.constant("dloss", kLossGradient), y = c.uniform("y", g.size(), -8, 0, 1);
  const Floats alone = c.output("dx", g.size()), fused = c.output("dx", g.size()), smoothed = c.output("dx", g.size());
  const Labels labels = make_labels(c, g, fault);
  c.run([&] {
    const std::int64_t* const l = labels.array.data();
    kernels::nll_backward(dloss.data(), l, kFactor, alone.data(), g.rows, g.classes, nullptr);
    kernels::log_softmax_nll_backward(dloss.data(), y.data(), l, kFactor, fused.data(), g.rows, g.classes, nullptr);
    kernels::smoothed_nll_backward(dloss.data(), y.data(), l, kSmoothing, kFactor, smoothed.data(), g.rows, g.classes,
                                   nullptr);
  });
  constexpr double kGradient = double{kLossGradient} * double{kFactor};
  for (std::size_t i = 0; i < g.size(); ++i) {
    const std::int64_t label = labels.array.first(i / g.width());
    const bool here = static_cast<std::int64_t>(i % g.width()) == label;
    const double p = std::exp(double{y.first(i)}), even = double{kSmoothing} / g.classes;
    c.expect("nll", i, alone[i], here ? -kGradient : 0, 2);
    c.expect("log_softmax and nll", i, fused[i], {known(g, label) ? (p - here) * kGradient : 0, kGradient}, 6);
    c.expect("smoothed", i, smoothed[i],
             {known(g, label) ? (p - (here ? 1 - double{kSmoothing} : 0) - even) * kGradient : 0, kGradient}, 6);
  }
}

void count_in_top_case(const Shape& g, std::int64_t k) {
  Case c("count_in_top", {g.rows, g.classes, k});
  const Floats x = c.odd("x", g.size(), 1);
  const auto found = c.output<std::int64_t>("found", 1);
  const auto labels = c.input<std::int64_t>("labels", g.count(), 0, [&](std::size_t i) {
    return i % 11 == 7 ? std::int64_t{g.classes} : static_cast<std::int64_t>(c.below(g.width()));
  });
  c.run([&] { kernels::count_in_top(x.data(), labels.data(), k, found.data(), g.rows, g.classes, nullptr); });
  std::int64_t expected = 0;
  for (std::size_t row = 0; row < g.count(); ++row) {
    if (!known(g, labels.first(row))) continue;
    std::vector<std::size_t> order(g.width());
    for (std::size_t j = 0; j < order.size(); ++j) order[j] = j;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const float u = x.first(row * g.width() + a), v = x.first(row * g.width() + b);
      return std::isnan(u) ? !std::isnan(v) : u > v;
    });
    const auto top = order.begin() + std::min<std::int64_t>(k, g.classes);
    expected += std::find(order.begin(), top, size_of(labels.first(row))) != top ? 1 : 0;
  }
  c.expect_equal("found", 0, found[0], expected);
}

void mse_case(std::int64_t n) {
  constexpr float kMseFactor = 0.01f, kLossGradient = 0.5f;
  Case c("mse_forward", {n});
  const Floats x = c.normal("x", size_of(n), 1), target = c.normal("target", size_of(n)), loss = c.output("loss", 1);
  const Floats partials = c.output("partials", kernels::kMsePartials);
  const Floats dloss = c.constant("dloss", kLossGradient), dx = c.output("dx", size_of(n));
  c.run([&] {
    kernels::mse_forward(x.data(), target.data(), kMseFactor, loss.data(), partials.data(), n, nullptr);
    kernels::mse_backward(dloss.data(), x.data(), target.data(), kMseFactor, dx.data(), n, nullptr);
  });
  Expected sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = double{x.first(i)} - target.first(i);
    sum.add(difference * difference * double{kMseFactor});
    c.expect("dx", i, dx[i], {2 * double{kLossGradient} * double{kMseFactor} * difference, 0.02}, 4);
  }
  c.expect("loss", 0, loss[0], sum, 60);
}

void add_sum_case(std::int64_t n) {
  Case c("add_sum", {n});
  const Floats x = c.normal("x", size_of(n), 1), total = c.constant("total", 3);
  const Floats partials = c.output("partials", kernels::kSumPartials);
  c.run([&] { kernels::add_sum(x.data(), 0.125f, total.data(), partials.data(), n, nullptr); });
  Expected sum;
  sum.add(3);
  for (std::size_t i = 0; i < x.size(); ++i) sum.add(0.125 * x.first(i));
  c.expect("total", 0, total[0], sum, 60);
}

}  // namespace

TEST_CASE("ptx: losses") {
  for (const std::int64_t rows : {0, 1, 3, 4, 5, 129, 300, 1100, 2050})
    for (const int classes : {1, 2, 10, 31, 32, 33, 100, 1000}) {
      const Shape g{rows, classes};
      if (g.size() > 40000) continue;
      log_softmax_case(g, 3, false, false);
      log_softmax_case(g, 30, true, false);
      log_softmax_case(g, 3, true, true);
      softmax_case(g);
      backward_cases(g);
      for (const Fault fault : {Fault::none, Fault::negative, Fault::too_large}) {
        nll_forward_case(g, fault != Fault::negative, fault);
        nll_backward_case(g, fault);
      }
      nll_forward_case(g, false, Fault::none);
      for (const std::int64_t k : {1, 5})
        if (rows > 0) count_in_top_case(g, k);
    }
  for (const std::int64_t n : {0, 1, 255, 2048, 2049, 40000, 300001}) {
    mse_case(n);
    add_sum_case(n);
  }
  check_all_launched("loss");
}
