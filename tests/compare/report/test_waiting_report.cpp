// What a report says and shows of waiting and moving.
#include <string>
#include <vector>

#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

/// A comparison in which the ranks of ddp and the replicas of dp on 2 devices wait for each other.
Results waiting_made_up() {
  Results results = duet_test::made_up();
  Run& dp = results.runs[3];
  dp.communication_waiting_us = 60;
  dp.communication_moving_us = dp.communication_us;
  dp.waiting_interval_us = {50, 70};
  dp.moving_interval_us = {180, 220};
  dp.step_waiting_us = StepParts{.forward = 40, .backward = 20};
  dp.rank_waiting_us = {70, 50};
  Run& ddp = results.runs[4];
  ddp.communication_waiting_us = 1800;
  ddp.communication_moving_us = ddp.communication_us - 1800;
  ddp.waiting_interval_us = {1700, 1900};
  ddp.moving_interval_us = {1150, 1250};
  ddp.step_waiting_us = StepParts{.communication = 900};
  ddp.rank_waiting_us = {3500, 100};
  return results;
}

/// Those about waiting and moving of dp and ddp on 2 devices.
std::vector<std::string> sentences(const Results& results) {
  std::vector<std::string> found;
  for (const std::string& sentence : findings(results))
    if (sentence.starts_with("A step of d")) found.push_back(sentence);
  return found;
}

}  // namespace

TEST_CASE("the table has waiting and moving in columns of their own") {
  const Results results = waiting_made_up();
  const auto columns = table_columns(results);
  REQUIRE(columns[7] == "waiting");
  REQUIRE(columns[8] == "moving");
  const auto dp = table_row(results, results.runs[3]), ddp = table_row(results, results.runs[4]);
  CHECK(dp[7] == "0.7 %");   // 60 of 8,955 us
  CHECK(dp[8] == "1.1 %");   // of replicas no part of it is waiting
  CHECK(ddp[7] == "8.4 %");  // 900 of 10,661 us
  CHECK(ddp[8] == "5.6 %");  // the other 600 us in which computing stands still
}

TEST_CASE("sentences name waiting and moving with their sizes and intervals") {
  Results results = waiting_made_up();
  CHECK(
      sentences(results) ==
      std::vector<std::string>{
          "A step of dp on 2 devices waits for 60 us (50..70) for the last replica, within forward and backward, and "
          "scatters, replicates, gathers and adds up gradients for 200 us (180..220).",
          "A step of ddp on 2 devices communicates for 3,000 us: 1,800 us (1,700..1,900) is waiting for the last "
          "rank, 1,200 us (1,150..1,250) moving and adding. 50 % of it is hidden behind backward. Rank 1 is the last: "
          "it waits for 100 us, the other for 3,500 us."});
  SECTION("every backend has its own") {
    results.runs[4].backend = "shm";
    Run over_gloo = results.runs[4];
    over_gloo.backend = "gloo";
    over_gloo.rank_waiting_us = {1800, 1800};
    results.runs.push_back(over_gloo);
    const auto list = sentences(results);
    REQUIRE(list.size() == 3);
    CHECK(list[1].starts_with("A step of ddp, shm on 2 devices communicates"));
    CHECK(list[2].starts_with("A step of ddp, gloo on 2 devices communicates"));
    CHECK(list[2].find("is the last") == std::string::npos);
  }
}

TEST_CASE("waiting whose interval includes none is not named") {
  Results results = waiting_made_up();
  results.runs[3].waiting_interval_us = results.runs[4].waiting_interval_us = {-10, 4000};
  CHECK(sentences(results) ==
        std::vector<std::string>{
            "A step of dp on 2 devices scatters, replicates, gathers and adds up gradients for 200 us (180..220).",
            "A step of ddp on 2 devices communicates for 3,000 us: 1,200 us (1,150..1,250) of it is moving and adding. "
            "50 % of it is hidden behind backward."});
  for (Run& run : results.runs) run.moving_interval_us.clear();  // too few steps
  CHECK(sentences(results).empty());
}

TEST_CASE("a loss is put down to waiting only where it is waiting") {
  const auto lost = [](const Results& results) {
    for (const std::string& sentence : findings(results))
      if (sentence.starts_with("ddp on 2 devices takes")) return sentence;
    return std::string();
  };
  Results results = waiting_made_up();
  results.runs[4].rank_waiting_us = {1800, 1800};  // both are the last as often
  results.runs[4].rounds_waiting_us.assign(results.runs[4].rounds_us.size(), StepParts{.communication = 750});
  CHECK_THAT(lost(results), !duet_test::ContainsSubstring("of it:"));  // no cause is clearly ahead
  const auto waits = [&](double us) {
    results.runs[4].rounds_waiting_us.assign(results.runs[4].rounds_us.size(), StepParts{.communication = us});
  };
  waits(1400);
  CHECK_THAT(lost(results), duet_test::ContainsSubstring("of it 1,400 us ±1: waiting for the slower rank."));
  results.runs[4].rank_waiting_us = {3600, 0};  // one computes longer than the other, which waits
  waits(900);
  CHECK_THAT(lost(results), duet_test::ContainsSubstring("of it 1,800 us ±2: waiting for the slower rank, "));
  results.runs[4].rank_waiting_us = {1800, 1800};
  waits(100);
  CHECK_THAT(lost(results), duet_test::ContainsSubstring("of it 1,400 us ±8: 0 kB of gradients are moved and added."));
}

TEST_CASE("pictures show waiting apart from moving") {
  Results results = waiting_made_up();
  const std::string parts = to_json({parts_chart(results)});
  CHECK_THAT(parts, duet_test::ContainsSubstring("ddp 2: waiting for the last rank 900 us"));
  CHECK_THAT(parts, duet_test::ContainsSubstring("ddp 2: communication 600 us"));
  CHECK_THAT(parts, duet_test::ContainsSubstring("dp 2: waiting for the last replica 40 us"));
  results.runs[3].median_step = {{"cpu:0", "forward", 0, 50}, {"cpu:0", kWaiting, 40, 50}};
  results.runs[4].median_step = {{"rank 0, communication", "all_reduce", 10, 50},
                                 {"rank 0, communication", kWaiting, 10, 40}};
  const std::string step = to_json({step_chart(results)});
  CHECK_THAT(step, duet_test::ContainsSubstring("ddp, rank 0, communication: waiting for the last rank 30 us"));
  CHECK_THAT(step, duet_test::ContainsSubstring("dp, cpu:0: waiting for the last replica 10 us"));
  CHECK_THAT(step, duet_test::ContainsSubstring("\"colour\":\"waiting\""));
}
