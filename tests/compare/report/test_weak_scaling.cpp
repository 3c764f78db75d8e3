// Weak scaling on results that never ran: every device has a batch of 100, so that N of them train N x 100 rows a step.
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using namespace duet_test;
using duet_test::Approx;

namespace {

constexpr double kImages = 60000;

/// A step of `us`, of which 100 us are the update, in nine rounds.
Run run_of(const std::string& mode, int devices, double us, const std::string& hash) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.batch = 100 * devices;
  run.backend = mode == "ddp" && devices > 1 ? "shm" : "";
  run.parameters_sha256 = std::string(mode == "copies" ? 0 : 64, hash[0]);
  run.step_us = {.forward = 0.4 * (us - 100), .backward = 0.6 * (us - 100), .update = 100};
  run.samples_per_s = static_cast<double>(run.batch) / us * 1e6;
  for (const double factor : {1.0, 0.998, 1.002, 0.999, 1.001, 1.0, 1.003, 0.997, 1.0}) {
    run.rounds_us.push_back(us * factor);
    run.rounds_step_us.push_back(run.step_us.scaled_to(us * factor));
    run.epoch_s.push_back(us * factor / 1e6 * kImages / static_cast<double>(run.batch));
  }
  return run;
}

/// Steps of single 10,000 us, dp 2 12,500, ddp 2 11,000, copies 2 10,500.
Results weak_results() {
  Results results = duet_test::made_up();
  results.machine.cores = 4;
  results.weak = true;
  results.settings.batch = 100;
  results.runs = {run_of("single", 1, 10000, "a"), run_of("averaging", 2, 12000, "b"), run_of("dp", 1, 10100, "a"),
                  run_of("dp", 2, 12500, "c"),     run_of("ddp", 2, 11000, "c"),       run_of("copies", 2, 10500, "")};
  compare_with_single(results);
  return results;
}

}  // namespace

TEST_CASE("under weak scaling speed-up, interval and efficiencies are of samples a second") {
  Results results = weak_results();
  const Run &dp = results.runs[3], &ddp = results.runs[4], &copies = results.runs[5];
  CHECK(results.runs[2].speedup.value() == Approx(10000 / 10100.0));
  CHECK(dp.speedup.value() == Approx(1.6));
  CHECK(dp.efficiency.value() == Approx(0.8));
  CHECK(dp.speedup_low.value() == Approx(1.6 * 0.999).epsilon(0.001));
  CHECK(dp.speedup_high.value() == Approx(1.6 * 1.001).epsilon(0.001));
  CHECK(ddp.speedup.value() == Approx(20 / 11.0));
  CHECK(copies.speedup.value() == Approx(20 / 10.5));
  CHECK(ddp.ceiling_efficiency.value() == Approx(10.5 / 11));  // as many rows
  CHECK(above_limit(results, ddp).empty());
  for (Run& run : results.runs) run.rounds_us.clear();
  compare_with_single(results);
  CHECK(dp.speedup.value() == Approx(1.6));
}

TEST_CASE("the losses of weak scaling begin with single's step, whose rows each device has") {
  const Results results = weak_results();
  const Overhead losses = overhead_of(results, results.runs[4]).value();
  CHECK(losses.parts[0].us.value() == Approx(10000));
  CHECK(losses.parts[1].us.value() == Approx(0));               // smaller_batch: a device has single's
  CHECK(losses.parts[2].us.value() == Approx(500));             // machine
  CHECK(losses.parts[5].us.value() == Approx(0).margin(1e-6));  // wrapper
  CHECK(losses.unexplained_us() == Approx(500));
  CHECK_THAT(overhead_chart(results).caption,
             ContainsSubstring("Ideal is single's step, of as many rows for its device."));
}

TEST_CASE("sentences of weak scaling name what is compared") {
  const Results results = weak_results();
  const std::string text = duet_test::findings_text(results);
  CHECK_THAT(text, ContainsSubstring(
                       "At batch 100 of each of 2 devices, where 2x would be ideal and 2 copies that exchange nothing "
                       "reach 1.90x ±0.01, the speed-up over single in samples a second is dp 1.60x ±0.01 and ddp "
                       "1.82x ±0.01."));
  CHECK_THAT(text, ContainsSubstring("dp on 2 devices takes 2,500 us ±"));
  CHECK_THAT(text,
             ContainsSubstring(
                 " a step more than single's step of as many rows for its device; of it 500 us ±1: devices slow"));
  CHECK_THAT(text, !ContainsSubstring("divide"));
  CHECK_THAT(answer(results),
             ContainsSubstring(
                 "2 devices train 1.82 times as many samples a second as one (1.82..1.82), with ddp; with dp 1.60"));
  CHECK_THAT(to_html(results, "", 1), ContainsSubstring("batch 100 of each device (weak scaling)"));
}

TEST_CASE("an interval against single on all cores counts samples, too") {
  Results results = weak_results();
  Run all_cores = run_of("single", 1, 6000, "a");  // 1.67x: less than ddp's 1.82x
  all_cores.threads_per_device = 4;
  results.runs.insert(results.runs.begin() + 1, all_cores);
  compare_with_single(results);
  CHECK_THAT(answer(results), ContainsSubstring("2 devices train 1.82 times") &&
                                  ContainsSubstring("One device on all 4 cores reaches 1.67 times"));
}

TEST_CASE("under weak scaling ddp's parameters are compared with dp's of the same batch") {
  Results results = weak_results();
  const auto same = [&](std::size_t run) { return same_result(results, results.runs[run]); };
  CHECK(same(0) == "-");
  CHECK(same(1) == "own data split");
  CHECK(same(2) == "yes");  // dp 1 has single's batch
  CHECK(same(3) == "-");
  CHECK(same(4) == "yes");
  CHECK_THAT(duet_test::findings_text(results), ContainsSubstring("ddp ended with the same bits as dp on 2 devices."));
  CHECK_THAT(duet_test::findings_text(results), !ContainsSubstring("does not end with"));
  results.runs[4].parameters_sha256 = std::string(64, 'd');
  CHECK(same(4) == "no");
  CHECK_THAT(duet_test::findings_text(results), ContainsSubstring("ddp on 2 devices does not end with dp's bits."));
  results.runs[3].ok = false;
  CHECK(same(4) == "-");
  CHECK(same(1) == "-");
}

TEST_CASE("the pictures of weak scaling: an epoch's ideal is divided, a step's is not") {
  Results results = weak_results();
  CHECK_THAT(to_json({epoch_chart(results)}), ContainsSubstring("dp on 2: 3.75 s"));  // single: 6 s
  CHECK_THAT(epoch_chart(results).caption, ContainsSubstring("single's time divided by the number of devices"));
  CHECK_THAT(parts_chart(results).caption, ContainsSubstring("A step on N devices trains N times single's rows."));
  CHECK_THAT(parts_chart(duet_test::made_up()).caption, !ContainsSubstring("N times"));
  const std::vector<std::string> columns = table_columns(results), row = table_row(results, results.runs[4]);
  for (std::size_t i = 0; i < results.runs.size(); ++i)
    results.runs[i].train_loss = {2.3, 1 - 0.1 * static_cast<double>(i)};
  CHECK_THAT(to_json({loss_chart(results)}), ContainsSubstring("\"dp 2\"") && ContainsSubstring("\"ddp 2\""));
  CHECK_THAT(to_html(results, "", 1),
             ContainsSubstring("equal single&#39;s, of ddp dp&#39;s on as many devices, bit for bit"));
  REQUIRE(columns.size() == row.size());
  CHECK(columns[2] == "batch");
  CHECK(row[2] == "200");
}

TEST_CASE("a model's rows are measured where their batches are, and predicted at their own batch") {
  Results results = weak_results();
  results.model = duet_test::fitting_model();
  results.model->step = {.per_sample_us = 100, .worst_error_share = 0.25};
  results.runs[4].backend = "shm";
  const auto measured = [&](bool weak) {
    const std::vector<ScalingRow> rows = scaling_rows(results, {.devices = {1, 2}, .weak = weak});
    return std::count_if(rows.begin(), rows.end(), [](const ScalingRow& row) { return row.measured; });
  };
  CHECK(measured(true) == 4);
  CHECK(measured(false) == 1);
  const ScalingRow ddp = scaling_rows(results, {.modes = {duet::cli::Mode::ddp}, .devices = {2}, .weak = true}).back();
  CHECK(ddp.batch == 200);
  CHECK(ddp.step_us == Approx(11000));
  CHECK(ddp.speedup == Approx(20 / 11.0));
  CHECK(step_us(results.runs[4]) == Approx(11000));
  CHECK(predicted_step(results, results.runs[4])->total_us() ==
        simulate_step(*results.model, {.mode = Mode::ddp, .devices = 2, .batch = 200}).total_us());
  if (!page_file("chart.js").empty())
    CHECK_THAT(to_html(results, "", 1), ContainsSubstring("ddp on 8 devices, batch 800"));
}
