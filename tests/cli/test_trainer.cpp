#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "tests/support/catch2.h"
#include "train/system/signals.h"
#include "train/trainer.h"

using namespace duet;
using namespace duet::cli;

namespace {

TrainOptions small() {
  TrainOptions options;
  options.mode = Mode::ddp;
  options.model = "linear";
  options.data = "synthetic";
  options.train_images = 40;
  options.test_images = 10;
  options.batch = 16;
  options.epochs = 1;
  return options;
}

/// Trains as two ranks whose models, made apart, begin as the seeds say. Returns the run of rank 0.
Run train_both(std::uint64_t first_seed, std::uint64_t second_seed) {
  Run run;
  ddp::run_rank_threads(2, [&](ddp::ProcessGroup& group) {
    TrainOptions options = small();
    options.seed = group.rank() == 0 ? first_seed : second_seed;
    const Images images = find_images(options);
    ddp::SoloGroup alone;
    Setup setup = make_setup(options, images, alone);
    const Outcome outcome = train_and_report(options, images, setup, group);
    if (group.rank() == 0) run = outcome.run;
  });
  return run;
}

}  // namespace

TEST_CASE("all ranks end after the same step for the same signal, at whatever step it arrives") {
  using Numbers = std::array<double, 3>;  // the signal of each rank, and rank 0's choice of the interval
  const auto of = [](Numbers& numbers, const Numbers& other) {
    return CommonEnd([&numbers, other](std::span<double> own) {
      std::transform(own.begin(), own.end(), other.begin(), own.begin(), std::plus<>());
      std::copy(own.begin(), own.end(), numbers.begin());
    });
  };
  Numbers leader_sum{}, other_sum{};
  CommonEnd leader = of(leader_sum, {});
  CHECK(leader.due());
  leader.exchange(0, 0, 2);
  CHECK(leader.signal() == 0);
  CHECK(leader_sum[2] >= 1);
  CommonEnd other = of(other_sum, {0, 0, 3});
  CHECK(other.due());
  other.exchange(0, 1, 2);
  CHECK_FALSE(other.due());
  CHECK_FALSE(other.due());
  CHECK(other.due());
  other.exchange(SIGINT, 1, 2);
  CHECK(other.signal() == SIGINT);
  CHECK(other_sum == Numbers{0, SIGINT, 3});
  CommonEnd alone([](std::span<double>) {});
  for (int step = 0; step < 3; ++step) {
    CHECK(alone.due());  // at every step: nothing is exchanged
    alone.exchange(0, 0, 1);
  }
}

TEST_CASE("all ranks name the same ranks as those that received the signal") {
  const auto with = [](const std::vector<int>& received, int rank) {
    CommonEnd end([&](std::span<double> numbers) {
      for (std::size_t other = 0; other < received.size(); ++other)
        if (static_cast<int>(other) != rank) numbers[other] += received[other];
    });
    end.exchange(received[static_cast<std::size_t>(rank)], rank, static_cast<int>(received.size()));
    return std::pair(end.signal(), end.signalled());
  };
  using Ranks = std::vector<int>;
  CHECK(with({0, 0, 0}, 1) == std::pair(0, Ranks{}));
  CHECK(with({0, 0, SIGTERM}, 0) == std::pair(SIGTERM, Ranks{2}));
  CHECK(with({0, SIGTERM, SIGTERM}, 2) == std::pair(SIGTERM, Ranks{1, 2}));
  CHECK(with({SIGPIPE, 0, 0}, 2) == std::pair(SIGPIPE, Ranks{0}));
  CHECK(with({SIGINT, 0, SIGTERM}, 0) == std::pair(SIGTERM, Ranks{2}));  // where ranks got different ones
  CHECK(with({SIGINT, SIGPIPE, 0}, 1) == std::pair(SIGINT, Ranks{0}));
}

TEST_CASE("ranks that drifted apart are found at the end of the epoch") {
  CHECK(train_both(1, 1).peak_memory_mb.size() == 2);
  CHECK_THROWS_WITH(train_both(1, 2),
                    duet_test::ContainsSubstring("after step 3 of the epoch rank 1 holds parameters with sha256"));
}
