#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "compare/report/evidence.h"
#include "lib/random.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;

namespace {

/// About normal, with mean 1: the sum of twelve uniform numbers.
double noisy(Philox& draws, double deviation) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(draws.uniform());
  return 1 + deviation * sum;
}

/// The share of `trials` intervals of `count` values that hold the true median. Every fifth value is `slow` times as
/// large or as small, as when another program had the core.
double coverage(std::size_t count, double slow, int trials = 400) {
  Philox draws(7);
  int held = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> values;
    for (std::size_t i = 0; i < count; ++i) {
      const double value = noisy(draws, 0.02), at = static_cast<double>(draws.uniform());
      values.push_back(at < 0.1 ? value * slow : at < 0.2 ? value / slow : value);
    }
    held += !interval_of(values).value().excludes(1);
  }
  return static_cast<double>(held) / trials;
}

}  // namespace

TEST_CASE(
    "an interval holds the true median in at least 90 % of all cases, also where a fifth of the rounds is disturbed") {
  for (const std::size_t count : {3U, 4U, 5U, 6U, 7U, 8U, 9U, 10U, 11U, 12U, 25U, 60U}) {
    const double calm = coverage(count, 1), disturbed = coverage(count, 1.8);
    INFO(count << " rounds");
    CHECK(calm >= 0.9);
    CHECK(disturbed >= 0.9);
  }
}

TEST_CASE("more rounds make an interval narrower") {
  Philox draws(3);
  std::vector<double> values;
  while (values.size() < 8) values.push_back(noisy(draws, 0.05));
  const double few = interval_of(values)->half_width();
  while (values.size() < 200) values.push_back(noisy(draws, 0.05));
  CHECK(interval_of(values)->half_width() < few / 2);
}

TEST_CASE("an interval of hand-made values") {
  const Interval five = interval_of({1, 2, 3, 4, 5}).value();
  CHECK(five.middle == 3);  // and 3 +- 2.776 * sqrt(2.5 / 5)
  CHECK(five.low == Approx(1.037).epsilon(0.001));
  CHECK(five.high == Approx(4.963).epsilon(0.001));
  const std::vector<double> nine = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Interval resampled = interval_of(nine).value();
  CHECK(resampled.middle == 5);
  CHECK(resampled.low == 2);  // as the order statistics 2 and 8, which hold the median in 96 % of all cases
  CHECK(resampled.high == 8);
  CHECK(interval_of(nine)->low == resampled.low);  // the seed is fixed
  CHECK(interval_of({9, 8, 7, 6, 5, 4, 3, 2, 1})->middle == 5);
}

TEST_CASE("too few rounds, or one without a time, give no interval; equal rounds give one that is not empty") {
  CHECK_FALSE(interval_of({}));
  CHECK_FALSE(interval_of({1}));
  CHECK_FALSE(interval_of({1, 1}));
  CHECK_FALSE(interval_of({1, 2, 3, std::numeric_limits<double>::infinity()}));
  CHECK_FALSE(interval_of({1, 2, 3, std::nan("")}));
  for (const std::size_t count : {3U, 5U, 6U, 20U}) {
    const Interval equal = interval_of(std::vector<double>(count, 2)).value();
    CHECK(equal.low < 2);
    CHECK(equal.high > 2);
    CHECK(equal.half_width() == Approx(0.002));
  }
}

TEST_CASE("the ratio of two cells is taken inside each round") {
  // The machine was half as fast in the second round, and a cell failed before the fifth.
  const Interval ratio = ratio_interval(ratios_of({190, 400, 220, 210, 9}, {100, 200, 110, 100})).value();
  CHECK(ratio.middle == Approx(2));
  CHECK(ratio.half_width() < 0.2);
  CHECK(ratio.excludes(1));
  CHECK_FALSE(ratio_interval(ratios_of({190, 400}, {100, 200, 110})));
}

TEST_CASE("an interval of ratios is above 0, and the inverse of that of the inverse ratios") {
  Philox draws(11);
  for (const std::size_t count : {3U, 5U, 7U, 9U, 25U}) {
    std::vector<double> ratios, inverse;
    for (std::size_t i = 0; i < count; ++i) {
      ratios.push_back(std::exp(6 * static_cast<double>(draws.uniform()) - 3));
      inverse.push_back(1 / ratios.back());
    }
    const Interval one = ratio_interval(ratios).value(), other = ratio_interval(inverse).value();
    INFO(count << ": " << one.low << " to " << one.high);
    CHECK(one.low > 0);
    CHECK(one.low * other.high == Approx(1));
    CHECK(one.high * other.low == Approx(1));
    CHECK(one.middle * other.middle == Approx(1));
  }
  CHECK_FALSE(ratio_interval({1, 2, 0}));
  CHECK_FALSE(ratio_interval({1, 2, -1}));
  CHECK(ratio_interval({8, 8, 8})->half_width() == Approx(0.008));
}

TEST_CASE("the ratio of two medians that were measured apart lies in its interval in at least 90 % of all cases") {
  for (const std::size_t count_a : {3U, 5U, 9U, 25U})
    for (const std::size_t count_b : {3U, 9U, 25U}) {
      Philox draws(13);
      int held = 0;
      constexpr int kTrials = 200;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::vector<double> a, b;
        while (a.size() < count_a) a.push_back(2 * noisy(draws, 0.02));
        while (b.size() < count_b) b.push_back(noisy(draws, 0.05));
        held += !ratio_of_medians(a, b).value().excludes(2);
      }
      INFO(count_a << " and " << count_b << " rounds: " << held);
      CHECK(held >= 0.9 * kTrials);
    }
}

TEST_CASE("an interval of two medians is a little wider than that of the wider one, and turns with the ratio") {
  const std::vector<double> wide = {1, 2, 3, 4, 5, 6, 7, 8, 9}, narrow = {9.9, 10, 10.1};
  const Interval one = ratio_of_medians(narrow, wide).value(), other = ratio_of_medians(wide, narrow).value();
  CHECK(one.middle == 2);
  CHECK(one.low < 10.0 / 8);
  CHECK(one.low > 10.0 / 8.1);
  CHECK(one.high > 10.0 / 2);
  CHECK(one.high < 10.0 / 1.9);
  CHECK(one.low * other.high == Approx(1));
  CHECK(one.high * other.low == Approx(1));
  CHECK(ratio_of_medians({3, 3, 3}, {1, 1, 1})->half_width() == Approx(0.003));
  CHECK_FALSE(ratio_of_medians({1, 2}, wide));
  CHECK_FALSE(ratio_of_medians(wide, {}));
  CHECK_FALSE(ratio_of_medians(wide, {1, 2, 0}));
  CHECK_FALSE(ratio_of_medians({1, 2, std::nan("")}, wide));
}

TEST_CASE("one number stands for both sides of an interval only where both are as long") {
  CHECK(times_text({1.79, 1.77, 1.81}) == "1.79x ±0.02");
  CHECK(times_text({1.79, 1.775, 1.81}) == "1.79x ±0.02");
  CHECK(times_text({1.79, 1.789, 1.791}) == "1.79x ±0.01");
  CHECK(times_text({1.79, 1.60, 1.81}) == "1.79x (1.60..1.81)");
  CHECK(times_text({1.65, 0.6, 4.63}) == "1.65x (0.60..4.63)");
  CHECK(us_text({1217, 525, 1909}) == "1,217 us ±692");
  CHECK(us_text({1217, 525, 1402}) == "1,217 us (525..1,402)");
  CHECK(us_text({3, 2, 5}) == "3 us ±2");
  CHECK(times_range({1, 0.98, 1.05}) == "0.98x..1.05x");
}
