// Prints "N passed, N failed, N skipped" when a test program ends, and each skip with its reason.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/catch2.h"
#if DUET_CATCH == 3
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

namespace duet_test {
namespace {

std::vector<std::string>& skips() {
  static std::vector<std::string> list;
  return list;
}

std::vector<void (*)()>& calls() {
  static std::vector<void (*)()> list;
  return list;
}

#if DUET_CATCH == 3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct CountListener : Listener {
  using Listener::Listener;
  void testRunEnded(const Catch::TestRunStats& stats) override {
    const auto& cases = stats.totals.testCases;
    if (!cases.total()) return;
    for (const auto call : calls()) call();
    for (const std::string& reason : skips()) std::fprintf(stderr, "skipped: %s\n", reason.c_str());
    const auto skipped = static_cast<unsigned long>(skips().size());
    std::fprintf(stderr, "%lu passed, %lu failed, %lu skipped\n", static_cast<unsigned long>(cases.passed) - skipped,
                 static_cast<unsigned long>(cases.failed + cases.failedButOk), skipped);
  }
};

CATCH_REGISTER_LISTENER(CountListener)

}  // namespace

void note_skip(const char* reason) { skips().emplace_back(reason); }
void when_tests_end(void (*call)()) { calls().push_back(call); }

}  // namespace duet_test
