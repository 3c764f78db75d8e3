// German punctuation of numbers: 1000 is written "1.000", and 0.5 "0,5".
#pragma once

#include <locale>
#include <string>

namespace duet_test {

struct German : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

}  // namespace duet_test
