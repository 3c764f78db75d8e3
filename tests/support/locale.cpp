// With DUET_TEST_LOCALE set, a test program runs as a program does that has set a locale: 1000 is written "1.000", and
// 0.5 "0,5".
#include <cstdlib>
#include <locale>

#include "tests/support/german.h"

namespace {

[[maybe_unused]] const bool set = [] {
  if (std::getenv("DUET_TEST_LOCALE") == nullptr) return false;
  std::locale::global(std::locale(std::locale::classic(), new duet_test::German));
  return true;
}();

}  // namespace
