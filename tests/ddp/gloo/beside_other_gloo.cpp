// Ranks over Gloo in a program that is linked to another Gloo.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "ddp/rank_threads.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "tests/support/sanitizers.h"

using namespace duet;

void link_other_gloo();

int main() try {
  link_other_gloo();
#ifdef DUET_SANITIZED
  // Nothing can keep the two apart there.
  const std::string why = ddp::why_no_gloo();
  require(why.find("RTLD_DEEPBIND") != std::string::npos, "got '", why, "', expected that the module is refused");
#else
  std::atomic<int> sums{0};
  const auto sum = [&](ddp::ProcessGroup& group) {
    std::int32_t value = group.rank() + 1;
    group.all_reduce({&value, 1, DType::i32}).wait();
    sums += value;
  };
  ddp::run_rank_threads(2, sum, {.backend = "gloo"});
  require(sums == 6, "got ", sums, ", expected 6");
#endif
  std::puts("1 passed, 0 failed, 0 skipped");
} catch (const std::exception& error) {
  std::printf("%s\n0 passed, 1 failed, 0 skipped\n", error.what());
  return 1;
}
