#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using duet_test::Approx;

namespace {

using Parts = std::map<std::string, std::optional<double>>;

/// Of the run that is the last of these.
Parts parts_of(const Results& results) {
  const Overhead overhead = overhead_of(results, results.runs.back()).value();
  Parts parts;
  double sum = 0;
  for (const OverheadPart& part : overhead.parts) {
    parts[part.name] = part.us;
    sum += part.us.value_or(0);
  }
  CHECK(sum == Approx(overhead.step_us).epsilon(1e-12));
  return parts;
}

Run run_of(const std::string& mode, int devices, const StepParts& step) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.batch = 128;
  run.step_us = step;
  return run;
}

/// A run of ddp on two devices whose rank waits for 450 of the 540 us of its communication.
Results planted() {
  Results results;
  results.batch_sweep = {{64, 4700}};
  results.runs = {run_of("single", 1, {.forward = 9000}), run_of("copies", 2, {.forward = 5100}),
                  run_of("ddp", 2, {.scatter = 130, .forward = 5330, .communication = 540})};
  results.runs.back().step_waiting_us = StepParts{.communication = 450};
  return results;
}

}  // namespace

TEST_CASE("the parts of a loss are those that were planted, and add up to the step") {
  Parts parts = parts_of(planted());
  CHECK(parts.size() == 7);
  CHECK(*parts["ideal"] == 4500);
  CHECK(*parts["smaller_batch"] == 200);
  CHECK(*parts["machine"] == 400);
  CHECK(*parts["uneven"] == 450);
  CHECK(*parts["communication"] == 90);
  CHECK(*parts["wrapper"] == 130);
  CHECK(*parts["unexplained"] == Approx(230));
}

TEST_CASE("what was not measured is left out, and goes to what is next or unexplained") {
  Results results = planted();
  results.batch_sweep.clear();
  Parts parts = parts_of(results);
  CHECK_FALSE(parts["smaller_batch"]);
  CHECK(*parts["machine"] == 600);
  results.runs.erase(results.runs.begin() + 1);
  results.runs.back().step_waiting_us.reset();
  parts = parts_of(results);
  CHECK_FALSE(parts["machine"]);
  CHECK_FALSE(parts["uneven"]);
  CHECK(*parts["communication"] == 540);
  CHECK(*parts["unexplained"] == Approx(230 + 600));
  results = planted();
  results.runs[1].step_us = {.forward = 4600};  // two at once were faster than one alone
  CHECK(*parts_of(results)["machine"] == -100);
}

TEST_CASE("a part is a cause only if all rounds show it, and what is left over never is") {
  Results results = planted();
  for (Run& run : results.runs)
    for (const double noise : {-20.0, 0.0, 10.0, 15.0, 30.0}) {
      run.rounds_step_us.push_back(run.step_us);
      run.rounds_step_us.back().forward += noise * run.devices;
      run.rounds_us.push_back(run.rounds_step_us.back().sum());
      if (run.step_waiting_us) run.rounds_waiting_us.push_back(*run.step_waiting_us);
    }
  const auto causes = [&] {
    const Run& run = results.runs.back();
    std::vector<std::string> names;
    for (const OverheadPart& part : causes_of(results, run, overhead_of(results, run).value())) {
      if (part.interval()) CHECK_FALSE(part.interval()->excludes(*part.us));
      names.emplace_back(part.name);
    }
    return names;
  };
  CHECK(causes() == std::vector<std::string>{"uneven", "machine", "smaller_batch", "wrapper", "communication"});
  for (std::size_t round = 0; round < 5; ++round)
    results.runs.back().rounds_step_us[round].scatter += round % 2 == 0 ? -300 : 300;
  CHECK(causes() == std::vector<std::string>{"uneven", "machine", "smaller_batch", "communication"});
  for (std::size_t round = 0; round < 5; ++round) results.runs.back().rounds_us[round] += round % 2 == 0 ? -3000 : 3000;
  CHECK(causes().empty());  // the loss itself does not stand out
}

TEST_CASE("what a mode waits for a device that is slow in copies too is waiting") {
  Results results = planted();
  results.runs[1].rank_step_us = {4800, 5100};
  Parts parts = parts_of(results);
  CHECK(*parts["machine"] == Approx(100));
  CHECK(*parts["uneven"] == 450);
  results.runs.back().step_waiting_us.reset();  // not measured
  CHECK(*parts_of(results)["machine"] == 400);
}

TEST_CASE("a comparison's losses come from its runs") {
  Results results = duet_test::made_up();
  for (Run& run : results.runs) run.rounds_us.clear();  // so that steps are their own
  const auto loss_of = [&](std::size_t run, std::size_t part) {
    return overhead_of(results, results.runs[run]).value().parts.at(part).us;
  };
  constexpr std::size_t kIdeal = 0, kMachine = 2, kUneven = 3, kCommunication = 4, kWrapper = 5;
  CHECK_FALSE(overhead_of(results, results.runs[0]));
  CHECK_FALSE(overhead_of(results, results.runs[6]));  // failed
  CHECK(*loss_of(4, kIdeal) == Approx(4 / 60000.0 * 128e6));
  CHECK(overhead_of(results, results.runs[4])->step_us == Approx(5 / 60000.0 * 128e6));
  CHECK(*loss_of(4, kCommunication) == Approx(1500));
  CHECK_FALSE(loss_of(4, kUneven));
  CHECK(*loss_of(4, kWrapper) == Approx(75));  // input of 50 and update of 100 us, of which half is in the ideal
  results.runs[4].step_waiting_us = StepParts{.communication = 1200};
  CHECK(*loss_of(4, kCommunication) == Approx(300));
  CHECK(*loss_of(4, kUneven) == 1200);
  results.runs[4].rank_waiting_us = {2000, 400};  // on average; the second is the last most of the time
  CHECK(*loss_of(4, kUneven) == 2000);
  results.runs[4].rank_waiting_us.clear();
  results.runs[3].step_us.scatter = 7;
  results.runs[3].step_us.gather = 5;
  results.runs[3].samples_per_s = 128e6 / results.runs[3].step_us.sum();
  results.runs[3].speedup.reset();
  CHECK(*loss_of(3, kWrapper) == Approx(87));
  Run copies = results.runs[4];
  copies.mode = "copies";
  copies.step_us = StepParts{.input = 20, .forward = 8980, .update = 90};
  copies.samples_per_s = 0;  // its step is its parts'
  results.runs.push_back(copies);
  CHECK(*loss_of(4, kIdeal) + *loss_of(4, kMachine) == Approx(9090));
  CHECK(*loss_of(4, kWrapper) == Approx(40));
  CHECK_FALSE(overhead_of(results, results.runs.back()));

  std::vector<std::string> names;
  for (const Run* run : runs_with_overhead(results)) names.push_back(run->mode);
  CHECK(names == std::vector<std::string>{"averaging", "dp", "ddp"});  // on 2 devices: 4 share cores
  const auto json = nlohmann::json::parse(to_json(results));
  CHECK(json["runs"][0]["losses_us"].is_null());
  CHECK(json["runs"][4]["losses_us"]["uneven"] == 1200.0);
  CHECK(json["runs"][4]["losses_us"]["smaller_batch"].is_null());
}

TEST_CASE("the parts of a loss are shown only where they explain it") {
  Results results = duet_test::made_up_with_copies();
  const Chart chart = overhead_chart(results);
  CHECK(chart.rows == std::vector<std::string>{"smaller batch", "devices side by side", "waiting for the last",
                                               "communication", "wrapper", "unexplained"});
  REQUIRE(chart.series.size() == 3);
  CHECK(chart.series[2].name == "ddp 2");
  double lost_us = 0;
  for (const ChartPoint& point : chart.series[2].points) lost_us += point.low + point.high;
  CHECK(lost_us == Approx(overhead_of(results, results.runs[4])->lost_us()));
  CHECK(chart.series[2].points.at(1).high ==
        Approx(1500).epsilon(0.01));  // neither a smaller batch nor waiting was measured
  CHECK_THAT(chart.series[2].points[1].tip, duet_test::ContainsSubstring("ddp 2, communication: 1,500 us (1,4"));
  CHECK_THAT(chart.caption, duet_test::ContainsSubstring("Not measured: smaller batch"));
  results.runs[4].step_us.forward += 400;  // of a loss of about 2,200 us, in too few rounds to say where
  for (std::size_t i = 0; i < 3; ++i) results.runs[4].rounds_step_us.at(i).forward += 400;
  for (double& us : results.runs[4].rounds_us) us += 400;
  results.runs[4].samples_per_s = 128e6 / results.runs[4].step_us.sum();
  compare_with_single(results);
  results.runs[3].rounds_us.resize(4);
  const Chart fewer = overhead_chart(results);
  CHECK(fewer.series.size() == 1);
  CHECK_THAT(fewer.caption,
             duet_test::ContainsSubstring("Its parts are not drawn: 400 us are unexplained in 9 rounds."));
  CHECK_THAT(to_html(duet_test::made_up(), "", 1), !duet_test::ContainsSubstring("data-chart=\"losses\"") &&
                                                       duet_test::ContainsSubstring(" aren&#39;t drawn: "));
  CHECK(overhead_chart(Results{}).empty());
}
