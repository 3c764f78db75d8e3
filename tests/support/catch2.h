// One include for Catch2 2.13 (Debian 12) and 3.x (Debian 13).
#pragma once

#include <string>

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#define DUET_CATCH 3
namespace duet_test {
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
}  // namespace duet_test
#else
#include <catch2/catch.hpp>
#define DUET_CATCH 2
namespace duet_test {
using Catch::Detail::Approx;
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
}  // namespace duet_test
#endif

namespace duet_test {

/// Ends the running test case as skipped: the reason is printed, and counted by the listener in count.cpp.
void note_skip(const char* reason);
/// Calls it when all tests of the program have run.
void when_tests_end(void (*call)());

}  // namespace duet_test

/// Skips the rest of the test case and says why. In a test body only.
#define DUET_SKIP(reason)           \
  do {                              \
    duet_test::note_skip(reason);   \
    SUCCEED("skipped: " << reason); \
    return;                         \
  } while (0)

/// A test case that is skipped, with the reason, unless the text `why_not` is empty; then come its name and its tags.
#define DUET_TEST_UNLESS(why_not, ...) DUET_NUMBERED_TEST(__COUNTER__, why_not, __VA_ARGS__)
#define DUET_NUMBERED_TEST(number, ...) DUET_TEST_OF(number, __VA_ARGS__)  // so that the number is there
#define DUET_TEST_OF(number, why_not, ...)          \
  static void duet_test_body_##number();            \
  TEST_CASE(__VA_ARGS__) {                          \
    const std::string reason = why_not;             \
    if (!reason.empty()) DUET_SKIP(reason.c_str()); \
    duet_test_body_##number();                      \
  }                                                 \
  static void duet_test_body_##number()
