// With DUET_TEST_LOCALE set, a test program runs as a program does that has set a locale: 1000 is written "1.000", and
// 0.5 "0,5".
#include <cstdlib>
#include <locale>
#include <string>

namespace {

struct German : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

[[maybe_unused]] const bool set = [] {
  if (std::getenv("DUET_TEST_LOCALE") == nullptr) return false;
  std::locale::global(std::locale(std::locale::classic(), new German));
  return true;
}();

}  // namespace
