// cross_entropy with label smoothing against the reference and PyTorch's numbers; rows counted in the top k.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/error.h"
#include "lib/ops/custom.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("cross_entropy equals the reference for every smoothing") {
  Mt19937 generator(61);
  for (int i = 0; i < 30; ++i) {
    const std::int64_t rows = generator.randint(1, 21), classes = i % 5 ? generator.randint(1, 70) : 1000;
    Array x = random_array({rows, classes}, generator);
    if (i % 3 == 0)
      for (double& value : x.values) value = std::round(value * 100);
    const std::vector<std::int64_t> labels = random_labels(rows, classes, generator);
    for (const double smoothing : {0.0, 0.1, 0.5, 1.0}) {
      CAPTURE(i, rows, classes, smoothing);
      const Variable vx = leaf(x), loss = ops::cross_entropy(vx, label_tensor(labels), smoothing);
      const double expected = reference::cross_entropy(x, labels, smoothing);
      CHECK(std::abs(static_cast<double>(loss.item()) - expected) <= kTolerance * std::max(1.0, std::abs(expected)));
      loss.backward();
      CHECK(relative_error(vx.grad(), reference::cross_entropy_backward(x, labels, smoothing)) < kTolerance);
    }
  }
}

// torch 2.15.0: F.cross_entropy(x, labels, label_smoothing=s).
TEST_CASE("cross_entropy has PyTorch's numbers") {
  struct Case {
    double smoothing, loss;
    std::vector<double> dx;
  };
  const Case cases[] = {{0,
                         3.7523748874664307,
                         {.07473594, -.13017999, .01011441, .04532964, .02105986, .00104851, .1556125, -.17772084,
                          .33327708, 6.8693595e-10, -.3333182, 4.112966e-05}},
                        {.1,
                         3.84820818901062,
                         {.06640259, -.10517999, .00178108, .03699629, .01272653, -.00728483, .14727914, -.15272082,
                          .32494372, -.00833333, -.30831817, -.0082922}},
                        {1,
                         4.710708141326904,
                         {-.00859739, .11982002, -.07321893, -.038003698, -.06227347, -.08228483, .07227916, .07227916,
                          .24994373, -.08333334, -.0833182, -.08329221}}};
  for (const Case& c : cases) {
    const Variable x(from_values<float>({3, 4}, {1, 2, -1, .5f, 0, -3, 2, 2, 10, -10, 0, 1}), true);
    const Variable loss = ops::cross_entropy(x, label_tensor({1, 3, 2}), c.smoothing);
    CAPTURE(c.smoothing);
    CHECK(static_cast<double>(loss.item()) == duet_test::Approx(c.loss).epsilon(1e-6));
    loss.backward();
    for (std::size_t i = 0; i < c.dx.size(); ++i)
      CHECK(std::abs(static_cast<double>(x.grad().data<float>()[i]) - c.dx[i]) < 1e-7);
  }
}

TEST_CASE("without smoothing, cross_entropy is nll_loss of log_softmax, to the bit") {
  Mt19937 generator(62);
  const Array x = random_array({9, 10}, generator);
  const Tensor labels = label_tensor(random_labels(9, 10, generator));
  const Variable a = leaf(x), b = leaf(x);
  const Variable one = ops::cross_entropy(a, labels), two = ops::nll_loss(ops::log_softmax(b), labels);
  CHECK(one.item() == two.item());
  one.backward();
  two.backward();
  CHECK(std::memcmp(a.grad().raw(), b.grad().raw(), a.grad().bytes()) == 0);
}

TEST_CASE("a gradient that reaches cross_entropy scales its own") {
  Mt19937 generator(63);
  const Array x = random_array({4, 5}, generator);
  const std::vector<std::int64_t> labels = random_labels(4, 5, generator);
  const Variable vx = leaf(x), loss = ops::cross_entropy(vx, label_tensor(labels), 0.2);
  ops::add(loss, loss).backward();
  Array dx = reference::cross_entropy_backward(x, labels, 0.2);
  for (double& value : dx.values) value *= 2;
  CHECK(relative_error(vx.grad(), dx) < kTolerance);
}

TEST_CASE("shards of a batch have the bits of its rows in the gradient of a smoothed loss") {
  Mt19937 generator(64);
  Tensor x = to_tensor(random_array({11, 10}, generator)), labels = label_tensor(random_labels(11, 10, generator));
  const auto gradient_of = [](const Tensor& rows, const Tensor& classes) {
    const Variable v(rows, true);
    ops::cross_entropy(v, classes, 0.1).backward();
    return v.grad();
  };
  x.set_stamp({3, 0, 11});
  labels.set_stamp({3, 0, 11});
  const Tensor whole = gradient_of(x, labels);
  for (const int shards : {2, 4, 8})
    for (int i = 0; i < shards; ++i) {
      const std::int64_t begin = block_begin(i, 11, shards), end = block_begin(i + 1, 11, shards);
      const Tensor part = gradient_of(x.rows(begin, end), labels.rows(begin, end));
      CHECK(std::memcmp(whole.rows(begin, end).raw(), part.raw(), part.bytes()) == 0);
    }
}

TEST_CASE("weights and ignored labels have PyTorch's values and gradients") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const Tensor x = from_values<float>({5, 3}, {1, 2, -1, .5f, 0, -3, 2, .2f, 1, -1, 0, 1, .3f, -inf, 2});
  const std::vector<std::int64_t> labels = {1, 0, 2, -7, 2};
  const std::vector<float> weights = {.5f, 2, 1.25f};
  const ops::LabelOptions table[] = {{.ignore_index = -7},
                                     {.ignore_index = -7, .weight = from_values<float>({3}, weights)},
                                     {.ignore_index = -7, .reduction = ops::Reduction::sum},
                                     {.label_smoothing = 0.2, .ignore_index = -7}};
  for (const ops::LabelOptions& options : table) {
    const double s = options.label_smoothing;
    const std::int64_t rows = s > 0 ? 4 : 5;  // smoothing of probability 0 is infinite
    double sum = 0, counts = 0;
    std::vector<double> dx(15);
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
      if (labels[i] < 0) continue;
      const auto label = static_cast<std::size_t>(labels[i]);
      const double w = options.weight.defined() ? static_cast<double>(weights[label]) : 1;
      double e[3], all = 0;
      for (std::size_t c = 0; c < 3; ++c) all += e[c] = std::exp(static_cast<double>(x.span<float>()[3 * i + c]));
      for (std::size_t c = 0; c < 3; ++c) {
        const double t = s / 3 + (c == label ? 1 - s : 0);
        if (t > 0) sum -= w * t * std::log(e[c] / all);
        dx[3 * i + c] = w * (e[c] / all - t);
      }
      counts += w;
    }
    if (options.reduction == ops::Reduction::sum) counts = 1;
    const Tensor given = label_tensor(labels).rows(0, rows);
    const Variable logits(x.rows(0, rows), true), log(ops::log_softmax(x.rows(0, rows)).value());
    const Variable loss = ops::cross_entropy(logits, given, options);
    CHECK(static_cast<double>(loss.item()) == duet_test::Approx(sum / counts).epsilon(1e-6));
    if (s == 0)
      CHECK(static_cast<double>(ops::nll_loss(log, given, options).item()) == duet_test::Approx(sum / counts));
    loss.backward();
    for (std::int64_t i = 0; i < 3 * rows; ++i)
      CHECK(std::abs(static_cast<double>(logits.grad().data<float>()[i]) - dx[static_cast<std::size_t>(i)] / counts) <
            1e-6);
    for (const bool of_logits : {true, false})
      if (of_logits || s == 0)
        ops::check_gradients(
            [&](const std::vector<Variable>& v) {
              return of_logits ? ops::cross_entropy(v[0], given.rows(0, 4), options)
                               : ops::nll_loss(v[0], given.rows(0, 4), options);
            },
            {x.rows(0, 4)});
  }
  const Variable none(x, true), loss = ops::cross_entropy(none, label_tensor({-7, -7, -7, -7, -7}), table[1]);
  CHECK(std::isnan(loss.item()));
  loss.backward();
  for (const float g : none.grad().span<float>()) CHECK(g == 0);
  CHECK_THROWS_WITH(ops::nll_loss(x, label_tensor({0, 0, 0, 0, -100}), table[0]), "Target -100 is out of bounds.");
  CHECK_THROWS_AS(ops::nll_loss(x, label_tensor({0, 0, 0, 0, 0}), table[3]), UsageError);
  CHECK_THROWS_AS(ops::cross_entropy(x, label_tensor(labels), {.weight = zeros({4})}), ShapeError);
}

TEST_CASE("cross_entropy of an empty batch is nan, and smoothing counts classes of probability 0") {
  CHECK(std::isnan(ops::cross_entropy(Variable(zeros({0, 10})), empty({0}, DType::i64), 0.1).item()));
  const Variable x(from_values<float>({1, 3}, {1, -kInfinity, 2}));
  CHECK(ops::cross_entropy(x, label_tensor({2}), 0.1).item() == kInfinity);
  CHECK(ops::cross_entropy(x, label_tensor({2})).item() == duet_test::Approx(0.3132617));
}

TEST_CASE("count_in_top counts the rows whose label is among the k largest") {
  const Tensor labels = label_tensor({0, 1, 2, 3});
  const Variable x(from_values<float>({4, 4}, {9, 1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3}));
  const std::int64_t expected[] = {1, 2, 3, 4};
  for (std::int64_t k = 1; k <= 4; ++k) CHECK(ops::count_in_top(x, labels, k) == expected[k - 1]);
  CHECK(ops::count_in_top(Variable(zeros({0, 4})), empty({0}, DType::i64), 2) == 0);
}

TEST_CASE("count_in_top prefers the lower class among equals and takes NaN for the largest") {
  const auto count = [](const std::vector<float>& row, std::int64_t label, std::int64_t k) {
    return ops::count_in_top(Variable(from_values<float>({1, static_cast<std::int64_t>(row.size())}, row)),
                             label_tensor({label}), k);
  };
  CHECK(count({5, 5, 5}, 0, 1) == 1);
  CHECK(count({5, 5, 5}, 1, 1) == 0);
  CHECK(count({5, 5, 5}, 1, 2) == 1);
  // torch.tensor([1, nan, inf, 3]).topk(4).indices: [1, 2, 3, 0]
  const std::vector<float> row = {1, kNan, kInfinity, 3};
  const std::int64_t place[] = {3, 0, 1, 2};
  for (std::int64_t label = 0; label < 4; ++label)
    for (std::int64_t k = 1; k <= 4; ++k) {
      CAPTURE(label, k);
      CHECK(count(row, label, k) == (place[label] < k ? 1 : 0));
    }
  CHECK(count({kNan, kNan, 7}, 1, 1) == 0);
  CHECK(count({kNan, kNan, 7}, 1, 2) == 1);
  CHECK(count({1, 2, 3}, 7, 3) == 0);
  CHECK(count({1, 2, 3}, -1, 3) == 0);
}
