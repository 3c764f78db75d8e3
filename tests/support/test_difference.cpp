// The comparison with a tolerance: what it must not let pass.
#include <limits>
#include <vector>

#include "tests/support/catch2.h"
#include "tests/support/difference.h"

using namespace duet_test;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

TEST_CASE("differences are those of the worst number, absolute and relative") {
  CHECK(largest_difference(Floats{1, -2, 3}, Doubles{1, -2.5, 3.25}) == 0.5);
  CHECK(relative_difference(Floats{1, -2, 3}, Doubles{1, -2.5, -4}) == 7.0 / 4);
  CHECK(relative_difference(Floats{0.5f}, Floats{0}) == 0.5);
  CHECK(largest_difference(Floats{}, Floats{}) == 0);
  CHECK(relative_difference(Floats{}, Floats{}) == 0);
}

TEST_CASE("no number that is not finite passes a tolerance, wherever it stands") {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (std::size_t at = 0; at < 3; ++at) {
      CAPTURE(bad, at);
      const Floats good = {1, 2, 3};
      Floats spoiled = good;
      spoiled[at] = bad;
      CHECK(largest_difference(spoiled, good) == kInfinite);
      CHECK(largest_difference(good, spoiled) == kInfinite);
      CHECK(largest_difference(spoiled, spoiled) == kInfinite);
      CHECK(relative_difference(spoiled, good) == kInfinite);
      CHECK(relative_difference(good, spoiled) == kInfinite);
      CHECK(relative_difference(spoiled, spoiled) == kInfinite);
    }
}

TEST_CASE("numbers that are missing or too many differ") {
  CHECK(largest_difference(Floats{1, 2}, Floats{1, 2, 3}) > 1e300);
  CHECK(relative_difference(Floats{1, 2, 3}, Floats{1, 2}) > 1e300);
}
