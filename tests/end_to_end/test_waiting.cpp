// Delays at known places: a rank that comes late is waited for, and a slow collective moves.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using duet_test::Approx;

namespace {

constexpr double kDelayUs = 100'000;  // far more than a step of the small network takes in a build of any kind

/// Two ranks with the delay "POINT:RANK"; the step of median time among 15.
Run train(const std::string& place, std::vector<std::string> more) {
  const TemporaryFolder folder;
  const std::string result = folder.path() + "/result";
  std::vector<std::string> all = {"train", "--devices", "2",  "--data",   "synthetic", "--train-images",
                                  "256",   "--batch",   "16", "--model",  "linear",    "--test-images",
                                  "20",    "--epochs",  "1",  "--result", result};
  all.insert(all.end(), more.begin(), more.end());
  ::setenv("DUET_DELAY", (place + ":" + std::to_string(static_cast<int>(kDelayUs))).c_str(), 1);
  const auto ran = duet_test::duet(all);
  ::unsetenv("DUET_DELAY");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return run_from_json(read_file(result));
}

/// The time of the events of a lane by name.
std::map<std::string, double> times_of(const Run& run, const std::string& lane) {
  std::map<std::string, double> times;
  for (const StepEvent& event : run.median_step)
    if (event.lane == lane) times[event.name] += event.end_us - event.begin_us;
  return times;
}

void check_fields(const Run& run) {
  REQUIRE(run.communication_waiting_us);
  CHECK(*run.communication_waiting_us + *run.communication_moving_us == Approx(run.communication_us));
  CHECK(run.rank_waiting_us.size() == 2);
  REQUIRE(run.step_waiting_us);
  CHECK(run.step_waiting_us->communication <= run.step_us.communication);
}

}  // namespace

TEST_CASE("a rank that is late in forward is waited for by the other, which moves no longer than usual") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--mode", "ddp"}, {"--mode", "ddp", "--backend", "tcp"}, {"--mode", "averaging"}}) {
    const Run run = train("forward:1", more);
    INFO(run.mode << " over " << run.backend);
    check_fields(run);
    auto early = times_of(run, "rank 0, communication"), late = times_of(run, "rank 1, communication");
    CHECK(early["waiting"] > 0.75 * kDelayUs);
    CHECK(early["all_reduce"] - early["waiting"] < 0.5 * kDelayUs);
    CHECK(late["all_reduce"] < 0.5 * kDelayUs);
    CHECK(times_of(run, "rank 0")["waiting"] > 0.75 * kDelayUs);  // computing stands still
  }
}

TEST_CASE("a delay inside of every collective is moving") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--mode", "ddp"}, {"--mode", "ddp", "--backend", "tcp"}}) {
    const Run run = train("collective:*", more);
    INFO("over " << run.backend);
    check_fields(run);
    for (const char* const rank : {"rank 0", "rank 1"}) {
      auto times = times_of(run, std::string(rank) + ", communication");
      CHECK(times["waiting"] < 0.5 * kDelayUs);
      CHECK(times["all_reduce"] - times["waiting"] >= kDelayUs - 1);
      CHECK(times_of(run, rank)["waiting"] < 0.5 * kDelayUs);
    }
  }
}

TEST_CASE("steps of one rank, and those that no trace takes apart, have no waiting") {
  const TemporaryFolder folder;
  const std::string result = folder.path() + "/result";
  REQUIRE(duet_test::duet({"train", "--mode", "ddp", "--data", "synthetic", "--train-images", "64", "--test-images",
                           "20", "--epochs", "1", "--batch", "16", "--model", "linear", "--result", result})
              .status == 0);
  const Run run = run_from_json(read_file(result));
  CHECK_FALSE(run.communication_waiting_us);
  CHECK_FALSE(run.communication_moving_us);
  CHECK_FALSE(run.step_waiting_us);
  CHECK_THAT(read_file(result), duet_test::ContainsSubstring("\"communication_waiting_us\":null"));
}
