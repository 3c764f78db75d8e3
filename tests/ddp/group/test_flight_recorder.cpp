// A rank's flight recorder, and the report made of it when a job fails.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/group/process_group.h"
#include "lib/error.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/launch/launches.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

RecordedCall call(std::int32_t sequence, Progress progress, std::int16_t bucket = -1) {
  return {.group = 1,
          .sequence = sequence,
          .op = static_cast<std::uint8_t>(Collective::all_reduce),
          .bucket = bucket,
          .count = 10 * sequence,
          .progress = progress,
          .called_ns = 1'000'000,
          .ended_ns = progress == Progress::failed ? 3'500'000 : 0};
}

FlightRecord in_backward(std::vector<RecordedCall> calls) {
  return {.phase = Phase::backward, .step = 17, .group = 1, .calls = std::move(calls)};
}

}  // namespace

TEST_CASE("a record keeps the last calls, in their order and with their ends") {
  const auto record = FlightRecorder::make();
  CHECK(record->snapshot().calls.empty());
  const std::uint32_t group = record->begin_group();
  std::vector<CallMark> marks;
  for (int i = 0; i < 300; ++i) {
    record->enter(Phase::backward, i);
    if (i == 299) record->next_bucket(2);
    marks.push_back(record->add({.group = group, .sequence = i, .count = 2 * i}));
  }
  marks[0].ended(true);  // overwritten: must not end the one that has its place now
  marks[297].running();
  marks[298].running();
  marks[298].ended(false);
  marks[299].ended(true);
  const FlightRecord all = record->snapshot();
  CHECK(all.group == group);
  CHECK(all.phase == Phase::backward);
  CHECK(all.step == 299);
  REQUIRE(all.calls.size() == FlightRecorder::kCalls);
  for (std::size_t i = 0; i < all.calls.size(); ++i) {
    const auto number = static_cast<std::int64_t>(300 - FlightRecorder::kCalls + i);
    CHECK(all.calls[i].sequence == number);
    CHECK(all.calls[i].step == number);
    CHECK(all.calls[i].count == 2 * number);
    CHECK(all.calls[i].bucket == (number == 299 ? 2 : -1));
    const Progress expected = number == 299   ? Progress::failed
                              : number == 298 ? Progress::ended
                              : number == 297 ? Progress::running
                                              : Progress::called;
    CHECK(all.calls[i].progress == expected);
    CHECK((all.calls[i].began_ns > 0) == (number == 297 || number == 298));
    CHECK((all.calls[i].ended_ns > 0) == (number >= 298));
  }
}

TEST_CASE("a record may be read and written by many threads") {
  // Rounds so short that a thread stopped within its last calls is overtaken by all that the record holds.
  for (int round = 0; round < 1500; ++round) {
    const auto record = FlightRecorder::make();
    const auto write = [&] {
      for (int i = 0; i < 200; ++i) {
        const CallMark mark = record->add({.sequence = i, .count = i, .step = 0});
        mark.running();
        mark.ended(false);
      }
    };
    std::vector<std::thread> writers;
    for (int i = 0; i < 8; ++i) writers.emplace_back(write);
    for (const RecordedCall& read : record->snapshot().calls) CHECK(read.sequence == read.count);
    for (std::thread& writer : writers) writer.join();
    const std::vector<RecordedCall> calls = record->snapshot().calls;
    REQUIRE(calls.size() == FlightRecorder::kCalls);
    CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call.progress == Progress::ended; }));
  }
}

TEST_CASE("groups note their collectives as their errors number them, on every backend") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  std::vector<std::shared_ptr<FlightRecorder>> records = {FlightRecorder::make(), FlightRecorder::make()};
  const auto failures = try_ranks(over, 2, {.timeout = 60s, .leave_timeout = 10ms}, [&](ProcessGroup& group) {
    const auto& record = records[static_cast<std::size_t>(group.rank())];
    group.set_flight_recorder(record, record->begin_group());
    std::vector<float> values(group.rank() == 0 ? 8 : 4, 1.0f);
    group.barrier().wait();
    if (group.rank() == 0)
      group.send(std::span(values).first(4), 1).wait();
    else
      group.recv(std::span(values), 0).wait();
    group.all_reduce(std::span(values)).wait();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK_THAT(text_of(failures[rank]), ContainsSubstring("all_reduce #1 failed on rank"));
    const auto calls = records[rank]->snapshot().calls;
    REQUIRE(calls.size() == 3);
    CHECK(describe(calls[0]) == "barrier #0");
    CHECK(calls[0].progress == Progress::ended);
    CHECK(describe(calls[1]) == (rank == 0 ? "send of 4 f32 to rank 1" : "recv of 4 f32 from rank 0"));
    CHECK(calls[1].progress == Progress::ended);
    CHECK(describe(calls[2]) == concat("all_reduce #1 of ", rank == 0 ? 8 : 4, " f32 (sum)"));
    CHECK(calls[2].progress == Progress::failed);
  }
}

TEST_CASE("times of a record that was written over are from 0 on") {
  const Scratch scratch;
  const std::string path = scratch.path("record");
  write_text(path, std::string(FlightRecorder::bytes(), '\0'));
  ::setenv(kFlightRecorderVariable, path.c_str(), 1);
  const auto record = FlightRecorder::make();
  ::unsetenv(kFlightRecorderVariable);
  record->enter(Phase::backward, 1);
  record->add({.group = record->begin_group(), .sequence = 0, .count = 1});
  // Calls lie at the end, 64 bytes each, the first of them with number 1; its times last.
  std::string bytes = read_text(path);
  const std::size_t times = bytes.size() - (FlightRecorder::kCalls - 2) * 64 - 3 * sizeof(std::int64_t);
  REQUIRE(FlightRecorder::read(path).calls.at(0).called_ns > 0);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), wrong[] = {-most, -most, -most};
  bytes.replace(times, sizeof wrong, reinterpret_cast<const char*>(wrong), sizeof wrong);
  write_text(path, bytes);
  const FlightRecord read = FlightRecorder::read(path);
  REQUIRE(read.calls.size() == 1);
  CHECK(read.calls[0].called_ns == 0);
  CHECK(read.calls[0].began_ns == 0);
  CHECK(read.calls[0].ended_ns == 0);
  CHECK_THAT(failure_report({{0, read}, {1, {}}}, 1, most), ContainsSubstring("waiting for rank 1"));  // no overflow
}

TEST_CASE("a record is read to its end whatever number of calls was written over it") {
  const Scratch scratch;
  const std::string path = scratch.path("record");
  write_text(path, std::string(FlightRecorder::bytes(), '\0'));
  ::setenv(kFlightRecorderVariable, path.c_str(), 1);
  FlightRecorder::make();
  ::unsetenv(kFlightRecorderVariable);
  std::string bytes = read_text(path);
  bytes.replace(sizeof(std::uint64_t), sizeof(std::uint64_t), sizeof(std::uint64_t), '\xff');  // after the magic number
  write_text(path, bytes);
  CHECK(FlightRecorder::read(path).calls.empty());
}

TEST_CASE("a failure report names which rank waited for which") {
  const auto waiting =
      in_backward({call(34, Progress::ended), call(35, Progress::failed, 1), call(36, Progress::failed)});
  CHECK(
      failure_report(
          {{0, waiting}, {1, waiting}, {2, in_backward({call(33, Progress::ended), call(34, Progress::ended)})}}, 2,
          0) ==
      "  rank 2 was in backward of step 17; its last call, all_reduce #34 of 340 f32 (sum), had ended\n"
      "  ranks 0, 1 were in backward of step 17, waiting for rank 2 in all_reduce #35 of 350 f32 (sum), bucket 1, for "
      "2.5 ms");
  // Killed inside the collective, and one that is late without having failed.
  const FlightRecord late{.phase = Phase::after, .step = 16, .group = 1, .calls = {}};
  CHECK(
      failure_report({{0, in_backward({call(35, Progress::running)})}, {1, in_backward({call(35, Progress::failed)})}},
                     0, 9'000'000) ==
      "  rank 0 was in backward of step 17, in all_reduce #35 of 350 f32 (sum)\n"
      "  rank 1 was in backward of step 17, waiting for rank 0 in all_reduce #35 of 350 f32 (sum), for 2.5 ms");
  CHECK(failure_report({{0, in_backward({call(35, Progress::running)})}, {1, late}}, 0, 9'000'000) ==
        "  rank 0 was in backward of step 17, waiting for rank 1 in all_reduce #35 of 350 f32 (sum), for 8.0 ms\n"
        "  rank 1 was after backward of step 16");
  CHECK(failure_report({{0, {}}, {1, {.phase = Phase::joining}}}, 1, 0) ==
        "  rank 1 was joining the others\n  rank 0 had not begun to join the others");
  CHECK(failure_report({{0, {}}, {1, {}}}, 1, 0).empty());
}

TEST_CASE("a long wait is remarked on when it begins to last, and when it is over") {
  const std::int64_t ms = 1'000'000;
  const auto waits = [&](std::int32_t sequence, std::int64_t step_ms) {
    FlightRecord record = in_backward({call(sequence, Progress::running)});
    record.median_step_ns = step_ms * ms;
    return RankRecord{0, record};
  };
  const RankRecord late{1, in_backward({call(6, Progress::ended)})};
  const auto both = [&](std::int32_t sequence) {
    return std::vector<RankRecord>{{0, in_backward({call(sequence, Progress::running)})},
                                   {1, in_backward({call(sequence, Progress::running)})}};
  };
  WaitWatch watch(2000ms, "");
  CHECK(watch.look({waits(7, 5), late}, 2000 * ms).empty());  // called at 1 ms
  CHECK(watch.look({waits(7, 5), late}, 2101 * ms) ==
        "rank 0 has waited 2.1 s for rank 1 in all_reduce #7 of 70 f32 (sum)");
  CHECK(watch.look({waits(7, 5), late}, 5001 * ms).empty());
  CHECK(watch.look(both(8), 5002 * ms) == "all_reduce #7 of 70 f32 (sum) continues after 5.0 s");
  CHECK(watch.look({waits(9, 5), late}, 10'000 * ms).empty());  // less than twice as long
  CHECK_FALSE(watch.look({waits(9, 5), late}, 10'002 * ms).empty());
  WaitWatch slow(2000ms, "");
  CHECK(slow.look({waits(7, 900), late}, 9000 * ms).empty());  // less than ten steps
  CHECK_FALSE(slow.look({waits(7, 900), late}, 9002 * ms).empty());
  CHECK(WaitWatch(2000ms, "").look(both(7), 9000 * ms).empty());  // they compute, or are just done
  CHECK(WaitWatch(2000ms, "other hosts (ranks 2, 3)").look(both(7), 9001 * ms) ==
        "ranks 0, 1 have waited 9.0 s for other hosts (ranks 2, 3) in all_reduce #7 of 70 f32 (sum)");
}

TEST_CASE("no call is limited to less than ten of its rank's median steps") {
  const auto record = FlightRecorder::make();
  CHECK(CallMark().limit(5ms) == 5ms);
  const CallMark mark = record->add({.group = record->begin_group(), .sequence = 0});
  CHECK(mark.limit(5ms) == 5ms);  // there was no step
  for (int step = 1; step <= 4; ++step) {
    record->enter(Phase::forward, step);
    std::this_thread::sleep_for(20ms);
    record->enter(Phase::backward, step);
  }
  CHECK(record->snapshot().median_step_ns >= 20'000'000);
  CHECK(mark.limit(5ms) >= 200ms);
  CHECK(mark.limit(1h) == 1h);
}

TEST_CASE("a rank that is silent is named, first in a remark and then as what the others failed for") {
  const Outcome outcome = run_worker(3, {"silent"}, {.timeout = 6s, .remark_after = 1s});
  CHECK(outcome.result.exit_code == 1);
  CHECK_THAT(outcome.result.message, ContainsSubstring("rank 1 did not come in time"));
  std::string remarks;
  for (const std::string& text : outcome.remarks) remarks += text + "\n";
  CHECK_THAT(remarks, ContainsSubstring(" s for rank 1 in all_reduce #20 of 50000 f32 (max)"));
  CHECK(outcome.took < 60s);
}

TEST_CASE("a launch that fails reports where the ranks were, the killed one included") {
  // SIGTERM does not end these, so they must detect it by themselves.
  const Outcome killed = run_worker(3, {"die", "shm", "all_reduce"}, {.grace = 20s});
  CHECK(killed.result.message == "rank 1 was killed by signal 9 (SIGKILL)");
  CHECK_THAT(killed.result.report,
             ContainsSubstring("  rank 1 had entered no step, in all_reduce #5 of 240000 f32 (sum)\n"
                               "  ranks 0, 2 had entered no step, waiting for rank 1 in all_reduce #5 of "
                               "240000 f32 (sum), for "));
  CHECK(run(2, {"/bin/sh", "-c", "exit $RANK"}).result.report.empty());
}

TEST_CASE("a launch that fails in training names step, phase and bucket") {
  const Outcome outcome =
      run_worker(3, {"train", "64", "100000"}, {.environment = {{"DUET_FAULT", "all_reduce:1:3:9"}}});
  CHECK(outcome.result.message == "rank 1 was killed by signal 9 (SIGKILL)");
  CHECK_THAT(outcome.result.report, ContainsSubstring("  rank 1 was in backward of step 2; its last call, all_reduce "
                                                      "#5 of 18816 f32 (sum), bucket 1, had ended\n"));
}

TEST_CASE("a rank leaves its report to other launchers too") {
  const Outcome outcome =
      run(2, {"/bin/sh", "-c", "trap '' TERM; unset DUET_JOB; exec " DUET_DDP_WORKER " throw"}, {.grace = 20s});
  REQUIRE(outcome.err.count(0) == 1);
  REQUIRE(outcome.err.at(0).size() == 2);
  CHECK_THAT(outcome.err.at(0)[0], ContainsSubstring("rank 0: all_reduce #20 failed"));
  CHECK_THAT(outcome.err.at(0)[1], ContainsSubstring("  rank 0 had entered no step, in all_reduce #20 of 50000"));
  CHECK(outcome.err.at(1) == std::vector<std::string>{"rank 1: label 10 of image 7"});
}
