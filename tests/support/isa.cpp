// A test program runs once per instruction set (DUET_ISA): where the machine lacks the one asked for, it says so and
// ends as skipped.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#if DUET_CATCH == 3
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif

namespace {

#if DUET_CATCH == 3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

struct IsaListener : Listener {
  using Listener::Listener;
  void testRunStarting(const Catch::TestRunInfo&) override {
    constexpr int kSkipped = 77;  // Meson's word for it
    try {
      std::fprintf(stderr, "instruction set: %s\n", duet::cpu::kernels().name);
    } catch (const duet::UsageError& failure) {
      std::fprintf(stderr, "skipped: %s\n", failure.what());
      std::_Exit(kSkipped);
    }
  }
};

CATCH_REGISTER_LISTENER(IsaListener)

}  // namespace

TEST_CASE("DUET_ISA chooses the instruction set") {
  const char* const wish = std::getenv("DUET_ISA");
  if (wish == nullptr || *wish == 0) DUET_SKIP("DUET_ISA is not set: the best instruction set runs");
  std::string written;  // "AVX-512" as DUET_ISA has it
  for (const char* c = duet::cpu::kernels().name; *c != 0; ++c)
    if (*c != '-') written += static_cast<char>(std::tolower(*c));
  CHECK(written == wish);
}
