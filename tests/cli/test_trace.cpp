#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/measure/events.h"

using namespace duet;
using namespace duet::cli;
using Kind = TraceEvent::Kind;

namespace {

constexpr std::int64_t kOrigin = 1'000'000'000;

/// Three steps of a rank, of 90, 100 and 110 us and the first of 500, `late_us` after rank 0.
RankEvents rank(std::int64_t late_us) {
  std::vector<TraceEvent> events;
  std::int64_t begin = kOrigin + late_us * 1000;
  std::int64_t number = 0;
  for (const std::int64_t us : {500, 110, 100, 90}) {
    const std::int64_t end = begin + us * 1000;
    events.push_back({"step", Kind::step, {}, number++, begin, end});
    events.push_back({"backward", Kind::work, {}, 0, begin, end});
    events.push_back({"all_reduce", Kind::communication, {}, 64, begin + 2000, begin + 3000});
    begin = end;
  }
  return events_of(trace_text(events));
}

StepEvent made_event(const std::string& lane, const std::string& name) { return {lane, name, 10, 20}; }

std::vector<StepEvent> median_of(const std::vector<RankEvents>& traced) {
  std::vector<RankSteps> ranks;
  for (const RankEvents& events : traced) ranks.push_back(steps_of(events));
  return median_step(ranks, false);
}

}  // namespace

TEST_CASE("the median step is that of rank 0, as all ranks ran it") {
  const std::vector<StepEvent> step = median_of({rank(0), rank(5)});
  REQUIRE(step.size() == 4);
  CHECK(step[0].lane == "rank 0");
  CHECK(step[0].name == "backward");
  CHECK(step[0].begin_us == 0);
  CHECK(step[0].end_us == 100);
  CHECK(step[1].lane == "rank 0, communication");
  CHECK(step[3].lane == "rank 1, communication");
  CHECK(step[3].begin_us == 7);
  CHECK(median_of({rank(0)})[0].lane == "cpu:0");
  CHECK(median_of({RankEvents()}).empty());
}

TEST_CASE("Chrome's trace has a process per rank, and threads for devices and communication") {
  const auto trace = nlohmann::json::parse(chrome_trace({rank(0), rank(5)}));
  std::map<std::string, int> count;
  double first = 1e9;
  for (const auto& item : trace.at("traceEvents")) {
    if (item.at("ph") == "M") {
      ++count[item.at("name").get<std::string>() + " " + item.at("args").at("name").get<std::string>()];
      continue;
    }
    CHECK(item.at("ph") == "X");
    ++count[item.at("name").get<std::string>()];
    first = std::min(first, item.at("ts").get<double>());
    if (item.at("name") == "all_reduce") CHECK(item.at("args").at("bytes") == 64);
    if (item.at("name") == "step 2" && item.at("pid") == 1) CHECK(item.at("ts") == 615.0);
    if (item.at("name") == "step 2") CHECK(item.at("dur") == 100.0);
  }
  CHECK(first == 0);
  CHECK(count["process_name rank 0"] == 1);
  CHECK(count["process_name rank 1"] == 1);
  CHECK(count["thread_name cpu:0"] == 2);
  CHECK(count["thread_name communication"] == 2);
  CHECK(count["backward"] == 8);
}

TEST_CASE("the picture of a step has lanes for single, dp and ddp, in their order") {
  Results results = duet_test::made_up();
  CHECK(step_chart(results).empty());
  for (Run& run : results.runs) {
    if (run.mode == "single") run.median_step = {made_event("cpu:0", "forward")};
    if (run.mode == "dp") run.median_step = {made_event("cpu:1", "scatter"), made_event("cpu:0", "gather")};
    if (run.mode == "ddp")
      run.median_step = {made_event("rank 10", "loss"), made_event("rank 9, communication", "all_reduce"),
                         made_event("rank 9", "update")};
  }
  const Chart chart = step_chart(results);
  CHECK(chart.rows == std::vector<std::string>{"single, cpu:0", "dp, cpu:0", "dp, cpu:1", "ddp, rank 9",
                                               "communication", "ddp, rank 10"});
  for (const ChartSeries& series : chart.series)
    if (series.name == "communication") {
      REQUIRE(series.points.size() == 1);
      CHECK(series.points[0].at == 4);
    }
  CHECK_THAT(duet::cli::to_json({chart}), duet_test::ContainsSubstring("dp, cpu:0: gather 10 us"));
}
