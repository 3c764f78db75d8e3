#include <chrono>
#include <string>
#include <vector>

#include "ddp/group/compare_ranks.h"
#include "lib/error.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

TEST_CASE("ranks with different settings fail on every rank, before they train") {
  const auto try_settings = [](const std::vector<std::vector<Setting>>& settings) {
    return try_ranks(Over::memory, static_cast<int>(settings.size()), {.timeout = 60s}, [&](ProcessGroup& group) {
      require_same_settings(group, settings[static_cast<std::size_t>(group.rank())]);
    });
  };
  const std::vector<Setting> usual = {{"--lr", "0.05"}, {"--seed", "1"}};
  for (const auto& failure : try_settings({usual, usual, usual})) CHECK(text_of(failure).empty());
  for (const auto& failure : try_settings({usual, usual, {{"--lr", "0.05"}, {"--seed", "2"}}}))
    CHECK(text_of(failure) == "the ranks disagree: --seed is 2 on rank 2, --seed is 1 on rank 0");
  for (const auto& failure : try_settings({usual, {{"--lr", "0.05"}}}))
    CHECK(text_of(failure) == "the ranks disagree: rank 1 has 1 settings, rank 0 2");
}
