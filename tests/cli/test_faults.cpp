// duet bench faults: the schedule of kills, the log of a training, and what becomes of it in the table.
#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "cli/fault_runs.h"
#include "cli/options/options.h"
#include "cli/system/files.h"
#include "cli/train/fault_log.h"
#include "lib/error.h"
#include "report/page/page.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;
using duet_test::ContainsSubstring;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

FaultEvent complete(std::int64_t attempt, int rank, std::int64_t step, double s) {
  return {.attempt = attempt, .rank = rank, .step = step, .ns = static_cast<std::int64_t>(s * kSecond)};
}

FaultEvent killed(std::int64_t attempt, int rank, std::int64_t step, double s) {
  FaultEvent event = complete(attempt, rank, step, s);
  event.killed = true;
  return event;
}

/// Three trainings of five steps, in two of which rank 1 is killed in step 4.
FaultResults made_up_trainings() {
  FaultResults results;
  results.settings.steps = 5;
  results.kills = {{.step = 4, .rank = 1}};
  const auto add = [&](const std::string& mode, const std::vector<FaultEvent>& events, const std::string& hash) {
    FaultRun run{.mode = mode, .devices = 2, .parameters_sha256 = hash, .hashes = {hash}, .colour = "ddp"};
    add_round(run, events, kSecond, 5);
    results.runs.push_back(run);
  };
  std::vector<FaultEvent> quiet;
  for (int step = 1; step <= 5; ++step) quiet.push_back(complete(0, 0, step, 1 + step));
  add("undisturbed", quiet, "a");
  // Rank 0 says that step 3 is complete when rank 1 is dead already: that is no step after the recovery.
  add("elastic",
      {complete(0, 0, 1, 2), complete(0, 1, 2, 3), complete(0, 1, 3, 4), killed(0, 1, 4, 4.5), complete(0, 0, 3, 4.6),
       complete(0, 0, 4, 5), complete(0, 1, 4, 5.1), complete(0, 0, 5, 6)},
      "a");
  add("restarts",
      {complete(0, 0, 1, 2), complete(0, 0, 2, 3), complete(0, 0, 3, 4), killed(0, 1, 4, 4.5), complete(1, 0, 3, 8),
       complete(1, 0, 4, 9), complete(1, 0, 5, 11)},
      "b");
  compare_with_undisturbed(results);
  return results;
}

std::string complaint_of_bench(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"bench", "faults"};
  words.insert(words.end(), more.begin(), more.end());
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("kills are drawn from the seed, in distinct steps behind the first") {
  const std::vector<RankKill> kills = draw_kills(9, 3, 10, 7);
  CHECK(kills == draw_kills(9, 3, 10, 7));
  CHECK(kills != draw_kills(9, 3, 10, 8));
  std::set<int> ranks;
  for (std::size_t i = 0; i < kills.size(); ++i) {
    CHECK(kills[i].step == static_cast<std::int64_t>(i) + 2);
    CHECK((kills[i].rank >= 0 && kills[i].rank < 3));
    ranks.insert(kills[i].rank);
  }
  CHECK(ranks.size() == 3);
  CHECK(kills_of(to_text(kills)) == kills);
  CHECK(kills_of("").empty());
  for (const char* const wrong : {"4", "4@", "@1", "4@1@2", "a@1", "4@1,"})
    CHECK_THROWS_WITH(kills_of(wrong), ContainsSubstring("expected STEP@RANK,..."));
}

TEST_CASE("ranks append to one log, and a kill that it has does not happen again") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/log";
  const FaultLog first(file, {}, 0), second(file, {}, 1);
  first.complete(1);
  second.complete(1);
  first.complete(2);
  std::vector<FaultEvent> events = fault_events(read_file(file));
  REQUIRE(events.size() == 3);
  CHECK((events[1].rank == 1 && events[1].step == 1 && !events[1].killed && events[1].attempt == 0));
  CHECK(events[0].ns <= events[2].ns);
  write_output(file, "killed 0 1 3 5\ncomplete 1 0 3 4\n");
  events = fault_events(read_file(file));
  CHECK((events[0].step == 3 && !events[0].killed && events[1].killed));  // by time
  FaultLog(file, {{.step = 3, .rank = 1}}, 1).reach(3, 1, 2);             // else this process would end here
  FaultLog(file, {{.step = 4, .rank = 1}}, 0).reach(4, 0, 2);             // another rank's
  CHECK_THROWS_WITH(fault_events("complete 0 1 3\n"), ContainsSubstring("holds 'complete 0 1 3', expected"));
  CHECK_THROWS_WITH(fault_events("ended 0 1 3 4\n"), ContainsSubstring("holds 'ended 0 1 3 4'"));
  CHECK_THROWS_AS(FaultLog(folder.path(), {}, 0), DataError);
}

TEST_CASE("a kill costs the steps that are computed again, and the time to the next complete one") {
  const FaultResults results = made_up_trainings();
  const FaultRun &elastic = results.runs[1], &restarts = results.runs[2];
  CHECK(elastic.lost_steps == std::vector<std::int64_t>{1});
  CHECK(elastic.recovery_s == std::vector<double>{0.5});
  CHECK(elastic.slowdown == Approx(1));
  CHECK(elastic.same_bits == true);
  CHECK(elastic.progress_step == std::vector<std::int64_t>{1, 2, 3, 4, 5});
  CHECK(elastic.kills_s == std::vector<double>{3.5});
  CHECK(restarts.lost_steps == std::vector<std::int64_t>{2});
  CHECK(restarts.recovery_s == std::vector<double>{3.5});
  CHECK(restarts.slowdown == Approx(2));
  CHECK(restarts.same_bits == false);
  CHECK(restarts.progress_step == std::vector<std::int64_t>{1, 2, 3, 3, 4, 5});
  CHECK_FALSE(all_survive(results));
  FaultRun run;
  CHECK_THROWS_WITH(add_round(run, {complete(0, 0, 1, 1), killed(0, 1, 2, 2), complete(0, 0, 1, 3)}, 0, 5),
                    "no step was complete after the kill in step 2");
  CHECK_THROWS_WITH(add_round(run, {complete(0, 0, 1, 1)}, 0, 5), "the training has ended before step 5");
}

TEST_CASE("the table, the sentence, the files and the picture say what each way costs") {
  FaultResults results = made_up_trainings();
  const auto rows = fault_table(results);
  using Row = std::vector<std::string>;
  CHECK(rows[0] == Row{"training", "5 steps", "ratio", "kills", "lost steps", "recovery", "worst", "same bits"});
  CHECK(rows[1] == Row{"undisturbed", "5.00 s", "-", "0", "-", "-", "-", "-"});
  CHECK(rows[2] == Row{"elastic", "5.00 s", "1.00x", "1", "1", "0.500 s", "0.500 s", "yes"});
  CHECK(rows[3] == Row{"restarts", "10.0 s", "2.00x", "1", "2", "3.50 s", "3.50 s", "no"});
  CHECK(fault_verdict(results) ==
        "1 kill in 5 steps: elastic takes 1.00 times as long as undisturbed and restarts 2.00 times.");
  CHECK_THAT(to_json(results), ContainsSubstring("\"mode\": \"elastic\"") && ContainsSubstring("\"same_bits\": true") &&
                                   ContainsSubstring("\"checkpoint_every\": 50") && ContainsSubstring("\"kernel\""));
  CHECK(to_csv(results) ==
        "mode,devices,ok,error,time_s,slowdown,kills,lost_steps,recovery_s,parameters_sha256,same_bits\n"
        "undisturbed,2,true,\"\",5,,0,0,,a,\nelastic,2,true,\"\",5,1,1,1,0.5,a,true\n"
        "restarts,2,true,\"\",10,2,1,2,3.5,b,false\n");
  if (!page_file("chart.js").empty())
    CHECK_THAT(to_html(results, "duet bench faults"), ContainsSubstring("elastic: rank 1 is killed in step 4") &&
                                                          ContainsSubstring("restarts: step 3 complete"));
  results.runs[1] = {.mode = "elastic", .ok = false, .error = "lost"};
  results.runs.push_back(results.runs[0]);
  results.runs.push_back(results.runs[2]);
  results.runs[3].mode = "torch undisturbed";
  results.runs[4].mode = "torch restarts";
  compare_with_undisturbed(results);
  CHECK(
      fault_verdict(results) ==
      "1 kill in 5 steps: restarts takes 2.00 times as long as undisturbed and torch restarts takes 2.00 times as long "
      "as torch undisturbed.");
  CHECK_FALSE(all_survive(results));
  results = made_up_trainings();
  results.runs[2].ok = false;
  results.runs[2].error = "no \"rank\"";
  CHECK(fault_table(results)[3] == Row{"restarts", "no \"rank\""});
  CHECK_THAT(to_csv(results), ContainsSubstring("restarts,2,false,\"no \"\"rank\"\"\","));
  results.runs.resize(2);
  CHECK(all_survive(results));
}

TEST_CASE("the options of bench faults") {
  const auto defaults = std::get<FaultOptions>(parse({"bench", "faults"}));
  CHECK((defaults.devices == 2 && defaults.steps == 400 && defaults.kills == 3 && defaults.out == "faults"));
  const auto given = std::get<FaultOptions>(parse({"bench", "faults", "--ranks", "3", "--steps", "20", "--kills", "19",
                                                   "--seed", "5", "--checkpoint-every", "4", "--rounds", "2"}));
  CHECK((given.devices == 3 && given.steps == 20 && given.kills == 19 && given.seed == 5));
  CHECK((given.checkpoint_every == 4 && given.rounds == 2));
  CHECK(complaint_of_bench({"--steps", "4", "--kills", "4"}) ==
        "--kills is 4, but of 4 steps all but the first, 3, can have one each");
  CHECK(complaint_of_bench({"--batch", "1"}) == "--batch is 1, smaller than the 2 ranks that share it");
  CHECK(complaint_of_bench({"--model", "linear", "--vs-torch", "python3"}) ==
        "--vs-torch: the peer is simple_cnn, not linear");
  CHECK_THAT(complaint_of_bench({"--devices", "1"}), ContainsSubstring("--devices is 1, expected 2 or more"));
  CHECK(complaint_of_bench({"--out", ""}) == "--out: empty name of a folder");
  CHECK_THAT(complaint_of_bench({"--kils", "1"}), ContainsSubstring("did you mean --kills?"));
  CHECK_THAT(complaint_of_bench({"--seed", "-1"}), ContainsSubstring("--seed is -1, expected 0 to 999999"));
}
