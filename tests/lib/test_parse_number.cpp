#include <cmath>
#include <cstdint>

#include "lib/parse_number.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("A number is the whole of a text, without blanks, signs of plus and bases") {
  CHECK(parse_number<int>("-12") == -12);
  CHECK(parse_number<double>("0.25") == 0.25);
  CHECK(std::isnan(parse_number<double>("nan").value()));
  for (const char* const text : {"", " 1", "1 ", "+1", "1,000", "0x10", "1e3", "2147483648"})
    CHECK_FALSE(parse_number<int>(text).has_value());
  CHECK_FALSE(parse_number<std::uint16_t>("-1").has_value());
  CHECK_FALSE(parse_number<std::uint16_t>("65536").has_value());
}
