// Rows and pictures of other numbers of devices.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "compare/cost_model/simulate_step.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "train/system/display.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;
using duet_test::Approx;

namespace {

Results modelled() {
  Results results = duet_test::made_up();
  results.model = duet_test::made_up_model();
  return results;
}

const ScalingRow& row_of(const std::vector<ScalingRow>& rows, Mode mode, int devices) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const ScalingRow& row) { return row.mode == mode && row.devices == devices; });
  REQUIRE(found != rows.end());
  return *found;
}

int count(const std::string& text, const std::string& word) {
  int times = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++times;
  return times;
}

}  // namespace

TEST_CASE("rows that were measured are marked, all others are computed") {
  const Results results = modelled();  // single, dp 2 and ddp 2 on 2 cores, ddp 4 oversubscribed
  const std::vector<ScalingRow> rows = scaling_rows(results, {.devices = {1, 2, 4}});
  CHECK(rows.size() == 7);
  const ScalingRow& single = rows.front();
  CHECK(single.mode == Mode::single);
  CHECK(single.measured);
  CHECK(single.step_us == Approx(8.0 / 60000 * 128 * 1e6));
  CHECK(single.speedup == 1);
  const ScalingRow& dp = row_of(rows, Mode::dp, 2);
  CHECK(dp.measured);
  CHECK(dp.speedup == Approx(8 / 4.2));
  CHECK(dp.efficiency() == Approx(4 / 4.2));
  CHECK(dp.error() == Approx(dp.computed.total_us() / (4.2 / 60000 * 128 * 1e6) - 1));
  const ScalingRow& four = row_of(rows, Mode::ddp, 4);
  CHECK_FALSE(four.measured);
  CHECK(four.step_us == four.computed.total_us());
  CHECK(four.speedup == Approx(single.computed.total_us() / four.step_us));
}

TEST_CASE("another batch, link or scaling is computed") {
  const Results results = modelled();
  const auto measured = [&](const ScalingPlan& plan) {
    const std::vector<ScalingRow> rows = scaling_rows(results, plan);
    return std::count_if(rows.begin(), rows.end(), [](const ScalingRow& row) { return row.measured; });
  };
  CHECK(measured({.devices = {1, 2}}) == 4);
  CHECK(measured({.devices = {1, 2}, .batch = 256}) == 0);
  CHECK(measured({.devices = {1, 2}, .link = named_link("10gbe").link}) == 1);
  CHECK(measured({.devices = {1, 2}, .weak = true}) == 1);
  // The network is between hosts; 2 devices of one are the comparison's own.
  CHECK(measured({.devices = {1, 2}, .hosts = {1, 2}, .link = named_link("10gbe").link}) == 4);
}

TEST_CASE("weak scaling gives every device a batch") {
  const std::vector<ScalingRow> rows = scaling_rows(modelled(), {.modes = {Mode::ddp}, .batch = 64, .weak = true});
  const ScalingRow& eight = row_of(rows, Mode::ddp, 8);
  CHECK(eight.batch == 512);
  CHECK(eight.speedup == Approx(8 * rows.front().step_us / eight.step_us));
  CHECK(rows.back().devices == 64);
  // Strong scaling ends where a device has no row.
  CHECK(scaling_rows(modelled(), {.modes = {Mode::ddp}, .batch = 8}).back().devices == 8);
}

TEST_CASE("hosts have the most devices each, and dp stays on one") {
  const std::vector<ScalingRow> rows = scaling_rows(
      modelled(), {.devices = {1, 2, 8}, .hosts = {1, 2, 128}, .link = named_link("100gbe").link, .batch = 2048});
  CHECK(row_of(rows, Mode::ddp, 1024).hosts == 128);
  CHECK(row_of(rows, Mode::averaging, 16).hosts == 2);
  for (const ScalingRow& row : rows) CHECK((row.mode != Mode::dp || row.hosts == 1));
  // The network between hosts does not connect the devices of one.
  const double here = row_of(rows, Mode::ddp, 8).computed.communication_us;
  const std::vector<ScalingRow> alone = scaling_rows(modelled(), {.devices = {1, 2, 8}, .batch = 2048});
  CHECK(here == row_of(alone, Mode::ddp, 8).computed.communication_us);
}

TEST_CASE("modes without their terms are left out, or named where they were asked for") {
  Results results = modelled();
  results.model->dp.reset();
  for (const ScalingRow& row : scaling_rows(results, {})) CHECK(row.mode != Mode::dp);
  CHECK_THROWS_WITH(scaling_rows(results, {.modes = {Mode::dp}}), ContainsSubstring("model.dp is null"));
  std::erase_if(results.runs, [](const Run& run) { return run.mode == "ddp"; });
  for (const ScalingRow& row : scaling_rows(results, {})) CHECK(row.mode != Mode::ddp);
  row_of(scaling_rows(results, {.modes = {Mode::ddp}}), Mode::ddp, 8);
  results.model.reset();
  CHECK_THROWS_AS(scaling_rows(results, {}), DataError);
  CHECK_THROWS_WITH(scaling_rows(results, {}), ContainsSubstring("duet compare with a time budget"));
  results.model_notes = {"the cost of a step: no line comes near"};
  CHECK_THROWS_WITH(scaling_rows(results, {}), "results: model is null: the cost of a step: no line comes near");
}

TEST_CASE("numbers that give a step no time, or an absurd one, are refused") {
  const auto why = [](const Results& results) {
    return error_of<duet::DataError>([&] { scaling_rows(results, {.devices = {1, 2}}); });
  };
  Results results = modelled();
  CHECK(why(results).empty());
  results.model->step = {};
  CHECK_THAT(why(results), ContainsSubstring("by model a step of single on 1 devices and a batch of 128 takes 0 us"));
  results = modelled();
  results.model->step.per_sample_us = 1e15;
  CHECK_THAT(why(results), ContainsSubstring("takes 1.28e+17 us, expected 1e-06 to 1e+15"));
  results = modelled();
  results.runs[0].samples_per_s = 1e-300;
  CHECK_THAT(why(results), ContainsSubstring("by samples_per_s a step of single"));
}

TEST_CASE("why there is no model, or what it lacks, is said") {
  Results results = modelled();
  results.model_notes = {"copies on 4 devices, which share 2 cores, are left out"};
  CHECK(prediction_lines(results).back() == "Of the model: copies on 4 devices, which share 2 cores, are left out.");
  results.model.reset();
  CHECK(prediction_lines(results) ==
        std::vector<std::string>{"No model: copies on 4 devices, which share 2 cores, are left out."});
  CHECK_THAT(to_html(results, "", 1), ContainsSubstring("<li>No model: copies on 4"));
  results.model_notes.clear();
  CHECK(prediction_lines(results).empty());
  CHECK_THAT(to_html(results, "", 1), !ContainsSubstring("Predicted from"));
}

TEST_CASE("a cell is predicted from the model, without what was measured of it") {
  Results results = modelled();
  const auto dp = predicted_step(results, results.runs[3]);
  REQUIRE(dp);
  CHECK(dp->total_us() == simulate_step(*results.model, {.mode = Mode::dp, .devices = 2, .batch = 128}).total_us());
  results.runs[3].samples_per_s *= 2;
  CHECK(predicted_step(results, results.runs[3])->total_us() == dp->total_us());
  results.runs[4].backend = "gloo";
  const double gloo = predicted_step(results, results.runs[4])->communication_us;
  results.runs[4].backend = "shm";
  CHECK(predicted_step(results, results.runs[4])->communication_us < gloo);
  results.runs[4].backend = "tcp";  // the model has no link of it
  CHECK_FALSE(predicted_step(results, results.runs[4]));
  CHECK_FALSE(predicted_step(results, results.runs[5]));  // oversubscribed
  CHECK_FALSE(predicted_step(results, results.runs[6]));  // failed
  results.model.reset();
  CHECK_FALSE(predicted_step(results, results.runs[3]));
}

TEST_CASE("the report has predicted, measured and their difference") {
  Results results = modelled();
  results.model = duet_test::fitting_model();
  const std::vector<std::string> lines = prediction_lines(results);
  REQUIRE(lines.size() == 5);  // averaging, dp and ddp on 2; ddp 4 is oversubscribed, dp 4 has failed
  CHECK(lines[0] == "A step of single costs 1,066 us and 125.0 us a sample, within 25.0 % at every batch measured.");
  CHECK_THAT(lines[1], ContainsSubstring("Below a batch of "));
  const double predicted = predicted_step(results, results.runs[3])->total_us();
  CHECK(lines[3] == "dp on 2 devices: predicted " + grouped(std::llround(predicted)) +
                        " us a step, measured 8,960 us, +" + fixed(100 * (predicted / 8960 - 1), 1) + " %.");
  CHECK_THAT(to_html(results, "", 1), ContainsSubstring("Predicted from its parts"));
  results.model->break_even_batch.reset();
  CHECK(prediction_lines(results)[1] == "A second device saves time at no batch here, by this model.");
  results.model.reset();
  CHECK(prediction_lines(results).empty());
  CHECK(to_html(results, "", 1).find("Predicted") == std::string::npos);
}

TEST_CASE("a model that misses a measured row by more than its interval predicts nothing") {
  Results results = modelled();
  results.model = duet_test::fitting_model();
  REQUIRE(prediction_error(results));
  CHECK(*prediction_error(results) >= 0.25);
  Results without_intervals = results;
  for (Run& run : without_intervals.runs) run.speedup_low = run.speedup_high = std::nullopt;
  without_intervals.runs[3].samples_per_s *= 1.5;  // 50 % faster than the model's
  CHECK(*prediction_error(without_intervals) > 0.5);
  results.model->step.worst_error_share = 0.001;
  std::string why;
  CHECK_FALSE(prediction_error(results, &why));
  CHECK_THAT(why, ContainsSubstring("the model's step of averaging on 2 devices is ") &&
                      ContainsSubstring(" % longer than measured"));
  CHECK(prediction_lines(results)[0] == "Nothing is predicted for other numbers of devices: " + why + ".");
  CHECK_THAT(first_screen(results, {}), ContainsSubstring("Nothing is predicted: the model's step of "));
  CHECK_THAT(to_html(results, "", 1), !ContainsSubstring("Efficiency against devices"));
}

TEST_CASE("predictions have the blocks that training would have") {
  Results results = modelled();
  results.settings.blocks = 8;
  const auto rows_of = [&](int devices) {
    return row_of(scaling_rows(results, {.devices = {devices}}), Mode::ddp, devices).computed;
  };
  CHECK(rows_of(4).smaller_batch_us == Approx(rows_of(8).smaller_batch_us / 4 * 3).epsilon(0.2));
  for (const int devices : {3, 5, 6, 7}) {  // of 32 blocks, the largest share is less than a seventh above the mean
    const double rows = std::ceil(128 * std::ceil(32.0 / devices) / 32);
    CHECK(rows_of(devices).ideal_us + rows_of(devices).smaller_batch_us == Approx(results.model->step.us(rows)));
  }
}

TEST_CASE("computed rows are marked in the pictures of scaling") {
  const std::vector<ScalingRow> rows = scaling_rows(modelled(), {.modes = {Mode::ddp}, .devices = {1, 2, 4, 8}});
  for (const Chart& chart : {efficiency_chart(rows), step_time_chart(rows)}) {
    const ChartSeries& ddp = chart.series.at(1);
    CHECK(ddp.name == "ddp");
    std::vector<bool> computed;  // of single, then of 2, 4 and 8
    for (const ChartPoint& point : ddp.points) computed.push_back(point.computed);
    CHECK(computed == std::vector<bool>{false, false, true, true});
    CHECK_THAT(ddp.points[1].tip, ContainsSubstring(", measured"));
    CHECK_THAT(ddp.points[2].tip, ContainsSubstring(", computed"));
  }
  CHECK(efficiency_chart(rows).series[1].points[1].value == Approx(100 * rows[1].efficiency()));
  CHECK_THAT(to_json({bounds_chart(rows)}), ContainsSubstring("communication"));
  CHECK(efficiency_chart(scaling_rows(modelled(), {.devices = {1}})).empty());
  CHECK(bounds_chart(scaling_rows(modelled(), {.devices = {1}})).empty());
}

TEST_CASE("bars of what bounds a step end at 100 % where a smaller batch is a gain") {
  Results results = modelled();
  results.model->step = {.per_sample_us = 5, .measured = {{64, 320}, {128, 3520}}};
  const std::vector<ScalingRow> rows = scaling_rows(results, {.modes = {Mode::ddp}, .devices = {2}});
  REQUIRE(rows.back().computed.smaller_batch_us < 0);
  double right = 0;
  for (const ChartSeries& series : bounds_chart(rows).series)
    for (const ChartPoint& point : series.points) right = std::max(right, point.high);
  CHECK(right == Approx(100));
}

TEST_CASE("rows as JSON") {
  const std::string json = to_json(scaling_rows(modelled(), {.modes = {Mode::ddp}, .devices = {1, 2, 4}}));
  for (const char* name : {"mode", "devices", "hosts", "batch", "measured", "step_us", "speedup", "efficiency",
                           "bounded_by", "computed_us", "parts_us", "communication_us"})
    CHECK(count(json, "\"" + std::string(name) + "\":") == 3);
}

TEST_CASE(
    "ddp over a named link is predicted where all-reduces weren't timed, as on GPUs, and what is unknown is marked") {
  Results results = modelled();
  results.parameters = 25557032;
  results.model->buckets.clear();
  results.model->links.clear();
  results.model->slowdown.clear();
  CHECK_THAT(to_json(scaling_rows(results, {})), !ContainsSubstring("\"ddp\""));
  const std::vector<ScalingRow> rows = scaling_rows(results, {.link = named_link("nvlink4").link});
  const ScalingRow& four = row_of(rows, Mode::ddp, 4);
  CHECK(four.computed.communication_us > 0);
  CHECK_FALSE(four.slowdown_known);
  CHECK(rows.front().slowdown_known);
  CHECK(row_of(scaling_rows(modelled(), {}), Mode::ddp, 4).slowdown_known);
}
