#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/catch2.h"
#include "train/measure/events.h"
#include "train/measure/statistics.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;
using Kind = TraceEvent::Kind;

namespace {

constexpr std::int64_t kFirstBegin = 5'000'000'000;

/// A stretch of a step of 1,000 us, in microseconds from its begin.
struct Stretch {
  const char* name;
  Kind kind;
  int device;
  std::int64_t begin, end;
};

/// A rank that repeats the same step.
RankSteps rank_of(const std::vector<Stretch>& stretches, int steps = 1) {
  std::vector<TraceEvent> events;
  for (int number = 0; number <= steps; ++number) {
    const std::int64_t begin = kFirstBegin + number * 1'000'000;
    const auto add = [&](const Stretch& stretch, std::int64_t amount) {
      events.push_back({stretch.name,
                        stretch.kind,
                        {DeviceKind::cpu, stretch.device},
                        amount,
                        begin + stretch.begin * 1000,
                        begin + stretch.end * 1000});
    };
    add({"step", Kind::step, 0, 0, 1000}, number);
    for (const Stretch& stretch : stretches) add(stretch, 0);
  }
  return steps_of(events_of(trace_text(events)));
}

Run run_of(const char* mode, int devices) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.step_us.forward = run.step_us.backward = run.step_us.communication = 300;
  run.communication_us = 400;
  return run;
}

const Stretch kBackward{"backward", Kind::work, 0, 100, 900};

}  // namespace

TEST_CASE("a rank that comes later is waited for, and moving begins when it has come") {
  // Rank 1 begins 200 us later; then both move for 50 us. Computing of rank 0 stands still from 500 us on.
  const auto early = rank_of(
      {kBackward, {"all_reduce", Kind::communication, 0, 400, 650}, {"communication", Kind::work, 0, 500, 650}});
  const auto late = rank_of(
      {kBackward, {"all_reduce", Kind::communication, 1, 600, 650}, {"communication", Kind::work, 0, 600, 650}});
  Run run = run_of("ddp", 2);
  fill_waiting(run, {early, late});
  REQUIRE(run.communication_waiting_us);
  CHECK(*run.communication_waiting_us == Approx(100));  // the mean over both ranks
  CHECK(*run.communication_moving_us == Approx(300));   // the rest of the 400 us that were measured
  CHECK(run.rank_waiting_us == std::vector<double>{200, 0});
  CHECK(run.step_waiting_us->communication == Approx(50));  // 500 to 600 us, on one rank of two
  CHECK(run.step_waiting_us->sum() == Approx(50));
  CHECK(run.waiting_interval_us.empty());  // of one step

  const std::vector<StepEvent> step = median_step({early, late}, true);
  std::vector<StepEvent> waiting;
  for (const StepEvent& event : step)
    if (event.name == kWaiting) waiting.push_back(event);
  REQUIRE(waiting.size() == 2);
  CHECK(waiting[0].lane == "rank 0, communication");
  CHECK(waiting[0].begin_us == 400);
  CHECK(waiting[0].end_us == 600);
  CHECK(waiting[1].lane == "rank 0");
  CHECK(waiting[1].begin_us == 500);
  CHECK(waiting[1].end_us == 600);
  for (const StepEvent& event : median_step({early, late}, false)) CHECK(event.name != kWaiting);
}

TEST_CASE("a collective that takes long on ranks that came together is moving") {
  const auto rank = [](int index, std::int64_t begin) {
    return rank_of({kBackward, {"all_reduce", Kind::communication, index, begin, 900}});
  };
  Run run = run_of("ddp", 3);
  fill_waiting(run, {rank(0, 300), rank(1, 303), rank(2, 300)});
  CHECK(*run.communication_waiting_us == Approx(2));
  CHECK(*run.communication_moving_us == Approx(398));
  CHECK(run.step_waiting_us->sum() == 0);  // computing stood still nowhere
}

TEST_CASE("waiting ends with the rank's own collective, and every collective has its own last rank") {
  // Rank 1 comes last to the first, rank 0 to the second; the root of the broadcast ends it before rank 1 begins.
  const auto first = rank_of({{"all_reduce", Kind::communication, 0, 100, 200},
                              {"all_reduce", Kind::communication, 0, 500, 600},
                              {"broadcast", Kind::communication, 0, 700, 710}});
  const auto second = rank_of({{"all_reduce", Kind::communication, 1, 150, 200},
                               {"all_reduce", Kind::communication, 1, 420, 600},
                               {"broadcast", Kind::communication, 1, 800, 830}});
  Run run = run_of("averaging", 2);
  fill_waiting(run, {first, second});
  CHECK(run.rank_waiting_us == std::vector<double>{60, 80});
}

TEST_CASE("replicas that have ended wait for the last one, within forward and backward") {
  // The first device also traces the whole of forward and backward, around its own replica's.
  const auto process = rank_of({{"forward", Kind::work, 0, 10, 400},
                                {"scatter", Kind::work, 0, 10, 20},
                                {"forward", Kind::work, 0, 30, 300},
                                {"forward", Kind::work, 1, 35, 380},
                                {"gather", Kind::work, 0, 380, 400},
                                {"backward", Kind::work, 0, 400, 900},
                                {"backward", Kind::work, 0, 410, 850},
                                {"backward", Kind::work, 1, 410, 800},
                                {"communication", Kind::work, 0, 860, 900}});
  Run run = run_of("dp", 2);
  fill_waiting(run, {process});
  REQUIRE(run.step_waiting_us);
  CHECK(run.step_waiting_us->forward == Approx(40));
  CHECK(run.step_waiting_us->backward == Approx(25));
  CHECK(run.step_waiting_us->communication == 0);
  CHECK(*run.communication_waiting_us == Approx(65));
  CHECK(*run.communication_moving_us == Approx(400));
  CHECK(run.rank_waiting_us == std::vector<double>{80, 50});
}

TEST_CASE("what no trace holds is null, not 0") {
  const auto fields_of = [](Run run, const std::vector<RankSteps>& ranks) {
    fill_waiting(run, ranks);
    CHECK(run.communication_waiting_us.has_value() == run.communication_moving_us.has_value());
    CHECK(run.communication_waiting_us.has_value() == run.step_waiting_us.has_value());
    return run.communication_waiting_us.has_value();
  };
  const auto silent = rank_of({kBackward});
  const auto rank = rank_of({kBackward, {"all_reduce", Kind::communication, 0, 300, 400}});
  const auto other = rank_of({kBackward, {"broadcast", Kind::communication, 0, 300, 400}});
  CHECK(fields_of(run_of("ddp", 2), {rank, rank}));
  CHECK_FALSE(fields_of(run_of("ddp", 2), {}));
  CHECK_FALSE(fields_of(run_of("ddp", 2), {silent, silent}));  // a recorded graph, or NCCL
  CHECK_FALSE(fields_of(run_of("ddp", 2), {rank, other}));
  CHECK_FALSE(fields_of(run_of("ddp", 2), {rank, silent}));
  CHECK_FALSE(fields_of(run_of("ddp", 2), {rank, rank_of({}, 0)}));  // no step of both
  CHECK_FALSE(fields_of(run_of("dp", 2), {silent}));
  CHECK_FALSE(fields_of(run_of("single", 1), {silent}));
}

TEST_CASE("the interval of a mean holds the mean, and is as wide as the blocks differ") {
  CHECK_FALSE(half_interval(std::vector<double>(19, 1.0)));
  CHECK(half_interval(std::vector<double>(20, 7.0)) == 0.0);
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) values.push_back(i < 36 ? 1 : 11);  // one block of ten is 10 higher
  CHECK(*half_interval(values) == Approx(2.262));
  Run run = run_of("ddp", 2);
  const std::vector<Stretch> early = {{"all_reduce", Kind::communication, 0, 100, 300}};
  const std::vector<Stretch> late = {{"all_reduce", Kind::communication, 1, 140, 300}};
  fill_waiting(run, {rank_of(early, 20), rank_of(late, 20)});
  CHECK(run.waiting_interval_us == std::vector<double>{20, 20});
  CHECK(run.moving_interval_us == std::vector<double>{380, 380});
}
