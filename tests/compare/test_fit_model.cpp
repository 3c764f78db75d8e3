// The cost model fitted to made-up rounds, of a machine whose speed drifts.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compare/cells.h"
#include "compare/comparison.h"
#include "compare/cost_model/cost_model.h"
#include "compare/cost_model/simulate_step.h"
#include "compare/overhead.h"
#include "compare/report/scaling.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/measure/json_fields.h"

using namespace duet::cli;
using duet_test::Approx;

namespace {

constexpr double kFixed = 300, kPerSample = 50, kSlowdown = 1.2, kLatency = 40, kBytesPerUs = 2000,
                 kAveragedPerUs = 500, kGradients = 1.6e6;
constexpr std::size_t kRounds = 9;

double alone_us(double batch) { return kFixed + kPerSample * batch; }

/// The machine is up to 40 % slower in some rounds than in others.
double drift(std::size_t round) { return 1 + 0.4 * static_cast<double>((round * 5) % kRounds) / kRounds; }

CellRounds timed(const Cell& cell, double us) {
  CellRounds rounds{.cell = cell};
  for (std::size_t i = 0; i < kRounds; ++i) {
    Run& burst = rounds.bursts.emplace_back();
    burst.rounds_us = {us * drift(i)};
    burst.spread_share = 0.03;
  }
  return rounds;
}

CellRounds collectives(int ranks) {
  CellRounds rounds{.cell = {.mode = Mode::ddp, .devices = ranks, .use = Cell::Use::collectives}};
  for (std::size_t i = 0; i < kRounds; ++i) {
    CollectiveTimes& times = rounds.collectives.emplace_back();
    times.buckets = {{.bytes = 1e6, .ready_share = 0.5}, {.bytes = kGradients - 1e6, .ready_share = 1}};
    times.parameter_bytes = {kGradients / 2, kGradients / 2};
    for (const double bytes : {4.0, 1e6, kGradients})
      times.all_reduces.push_back({.bytes = bytes, .us = drift(i) * (kLatency + bytes / kBytesPerUs)});
    times.averaging = {.bytes = kGradients, .us = drift(i) * (2 * kLatency + kGradients / kAveragedPerUs)};
    times.addition = {.bytes = kGradients, .us = 80};
  }
  return rounds;
}

Run run_of(const std::string& mode, int devices, double us) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.batch = 128;
  run.samples_per_s = 128 / us * 1e6;
  run.step_us.forward = 0.4 * us;
  run.step_us.backward = 0.6 * us;
  if (mode == "ddp") run.backend = "shm";
  for (std::size_t i = 0; i < kRounds; ++i) run.rounds_us.push_back(us * drift(i));
  return run;
}

struct Made {
  Results results;
  std::vector<CellRounds> cells;
};

Made made() {
  Made out;
  out.results.machine.cores = 2;
  out.results.settings.batch = 128;
  out.results.runs = {run_of("single", 1, alone_us(128)), run_of("ddp", 2, 7000),
                      run_of("copies", 2, kSlowdown * alone_us(64))};
  for (const std::int64_t batch : {16, 32, 64, 256})
    out.cells.push_back(timed({.mode = Mode::single, .batch = batch, .use = Cell::Use::batch_sweep},
                              alone_us(static_cast<double>(batch))));
  out.cells.push_back(timed({.mode = Mode::copies, .devices = 2}, kSlowdown * alone_us(64)));
  out.cells.push_back(collectives(2));
  return out;
}

}  // namespace

TEST_CASE("the terms that rounds of a drifting machine were made with are found again") {
  Made made_up = made();
  fit_model(made_up.results, made_up.cells);
  const Results& results = made_up.results;
  CHECK(results.model_notes.empty());
  REQUIRE(results.model);
  const CostModel& model = *results.model;
  const double middle = drift(8);  // of all rounds, which no ratio holds
  CHECK(model.step.fixed_us == Approx(middle * kFixed).epsilon(0.01));
  CHECK(model.step.per_sample_us == Approx(middle * kPerSample).epsilon(0.01));
  REQUIRE(model.slowdown.size() == 1);
  CHECK(model.slowdown[0].factor == Approx(kSlowdown));
  CHECK(model.step_spread_share == Approx(0.03));
  CHECK(model.backward_share == Approx(0.6));
  REQUIRE(model.links.size() == 1);
  CHECK(model.links[0].backend == "shm");
  CHECK(model.links[0].cost.latency_us == Approx(middle * kLatency).epsilon(0.01));
  CHECK(model.links[0].cost.bytes_per_us == Approx(kBytesPerUs / middle).epsilon(0.01));
  REQUIRE(model.links[0].averaging);
  CHECK(model.links[0].averaging->bytes_per_us == Approx(kAveragedPerUs / middle).epsilon(0.01));
  REQUIRE(model.buckets.size() == 2);
  CHECK(model.buckets[0].ready_share == Approx(0.5));
  REQUIRE(model.dp);
  CHECK(model.dp->cost.us(model.dp->reduce_bytes) == Approx(80));
  CHECK(model.break_even_batch.has_value());
}

TEST_CASE("steps that were taken apart give no second slow-down") {
  Made made_up = made();
  const Cell parts{.mode = Mode::copies, .devices = 2, .use = Cell::Use::parts};
  made_up.cells.push_back(timed(parts, 3 * alone_us(64)));
  fit_model(made_up.results, made_up.cells);
  REQUIRE(made_up.results.model);
  REQUIRE(made_up.results.model->slowdown.size() == 1);
  CHECK(made_up.results.model->slowdown[0].factor == Approx(kSlowdown));
}

TEST_CASE("copies that outnumber the cores are no part of the model, and a note says so") {
  Made with = made(), without = made();
  CellRounds crowded = timed({.mode = Mode::copies, .devices = 4}, 9 * alone_us(32));
  for (Run& burst : crowded.bursts) burst.spread_share = 0.9;
  with.cells.push_back(std::move(crowded));
  with.results.runs.push_back(run_of("copies", 4, 9 * alone_us(32)));
  fit_model(with.results, with.cells);
  fit_model(without.results, without.cells);
  REQUIRE(with.results.model);
  CHECK(JsonWriter::json_of(*with.results.model) == JsonWriter::json_of(*without.results.model));
  CHECK(with.results.model_notes == std::vector<std::string>{"copies on 4 devices, which share 2 cores, are left out"});
  const auto predicted = [](const Results& results) { return scaling_rows(results, {.devices = {4}})[1].speedup; };
  CHECK(predicted(with.results) == predicted(without.results));
}

TEST_CASE("what dp takes on smaller batches beyond its other terms is its overhead") {
  Made plain = made();
  fit_model(plain.results, plain.cells);
  const auto others = [&](double batch) {
    return simulate_step(*plain.results.model, {.mode = Mode::dp, .devices = 2, .batch = batch}).total_us();
  };
  const auto overhead = [&](double of_32, double of_64) {
    Made one = made();
    one.cells.push_back(timed({.mode = Mode::dp, .devices = 2, .batch = 32, .use = Cell::Use::overhead}, of_32));
    one.cells.push_back(timed({.mode = Mode::dp, .devices = 2, .batch = 64, .use = Cell::Use::overhead}, of_64));
    fit_model(one.results, one.cells);
    return one.results.model->dp->overhead;
  };
  const StepOverhead found = overhead((others(32) + 40) / drift(8), (others(64) + 60) / drift(8));
  CHECK(found.us(32) == Approx(40).epsilon(0.02));
  CHECK(found.us(128) == Approx(100).epsilon(0.02));
  CHECK(overhead(others(32) / 2, others(64) / 2).us(128) == 0);
}

TEST_CASE("under weak scaling copies have single's batch each") {
  Made made_up = made();
  made_up.results.weak = true;
  made_up.cells[4] = timed({.mode = Mode::copies, .devices = 2, .batch = 256}, kSlowdown * alone_us(128));
  fit_model(made_up.results, made_up.cells);
  REQUIRE(made_up.results.model);
  REQUIRE(made_up.results.model->slowdown.size() == 1);
  CHECK(made_up.results.model->slowdown[0].factor == Approx(kSlowdown));
}

TEST_CASE("a sweep's time at a device's batch is the smaller batch of its losses") {
  Made made_up = made();
  fit_model(made_up.results, made_up.cells);
  REQUIRE(made_up.results.batch_sweep.size() == 5);
  CHECK(made_up.results.batch_sweep[0].batch == 16);
  CHECK(made_up.results.batch_sweep[2].step_us == Approx(drift(8) * alone_us(64)));
  const auto losses = overhead_of(made_up.results, made_up.results.runs[1]);
  REQUIRE(losses);
  REQUIRE(losses->parts[1].us);
  CHECK(losses->ideal_us() + *losses->parts[1].us == Approx(drift(8) * alone_us(64)));
}

TEST_CASE("a prediction does not use what was measured of the predicted cell") {
  Made first = made(), second = made();
  second.results.runs[1].rounds_us.assign(kRounds, 1);
  second.results.runs[1].step_us = {};
  fit_model(first.results, first.cells);
  fit_model(second.results, second.cells);
  CHECK(predicted_step(first.results, first.results.runs[1])->total_us() ==
        predicted_step(second.results, first.results.runs[1])->total_us());
}

TEST_CASE("without single's rounds, or with too few batches, there is no model, and a note says why") {
  Made made_up = made();
  made_up.results.runs[0].rounds_us.clear();
  fit_model(made_up.results, made_up.cells);
  CHECK_FALSE(made_up.results.model);
  CHECK(made_up.results.model_notes == std::vector<std::string>{"single was not timed in rounds"});
  Made few = made();
  few.cells.erase(few.cells.begin(), few.cells.begin() + 3);
  fit_model(few.results, few.cells);
  CHECK_FALSE(few.results.model);
  CHECK(few.results.model_notes ==
        std::vector<std::string>{"the cost of a step: times at 2 different batches, expected 3 or more"});
}

TEST_CASE("a step whose cost no line describes gives no model") {
  Made made_up = made();
  for (Run& burst : made_up.cells[1].bursts) burst.rounds_us[0] *= 4;
  fit_model(made_up.results, made_up.cells);
  CHECK_FALSE(made_up.results.model);
  REQUIRE_FALSE(made_up.results.model_notes.empty());
  CHECK_THAT(made_up.results.model_notes.back(), duet_test::ContainsSubstring("no line comes nearer"));
  CHECK(made_up.results.batch_sweep.size() == 5);
}

TEST_CASE("times of collectives are read back as they were written") {
  const CollectiveTimes times = collectives(2).collectives[0], back = collective_times_from_json(to_json(times));
  CHECK(to_json(back) == to_json(times));
  CHECK(back.buckets[1].bytes == times.buckets[1].bytes);
  CHECK(back.all_reduces[2].us == times.all_reduces[2].us);
  CHECK_THROWS_AS(collective_times_from_json("{}"), duet::DataError);
}

TEST_CASE("the model needs single on other batches, and all-reduces of as many ranks as have cores") {
  CompareOptions options = std::get<CompareOptions>(
      parse({"compare", "--devices", "1,2,3,4", "--backend", "shm,gloo", "--batch", "100", "--time-budget", "1"}));
  std::vector<std::string> titles;
  for (const Cell& cell : model_cells_of(options, 2)) titles.push_back(title(options, cell));
  CHECK(titles == std::vector<std::string>{"single, batch 12", "single, batch 25", "single, batch 34",
                                           "single, batch 35", "single, batch 50", "single, batch 200",
                                           "all-reduces, 2", "all-reduces, 2, gloo", "dp 2, batch 25",
                                           "dp 2, batch 50"});
  for (const Cell& cell : model_cells_of(options, 2)) {
    const auto train = std::get<TrainOptions>(parse([&] {
      std::vector<std::string> arguments = cell_arguments(options, cell);
      arguments.insert(arguments.end(), {"--bursts", "f"});
      return arguments;
    }()));
    CHECK(train.untrained);
    CHECK(train.batch == (cell.batch > 0 ? cell.batch : 100));
    CHECK(train.mode == cell.mode);
    CHECK(train.collectives == (cell.use == Cell::Use::collectives));
  }
  options.workers = "thread";
  for (const Cell& cell : model_cells_of(options, 2)) CHECK(cell.use != Cell::Use::collectives);
  options.time_budget_s = 0;
  CHECK(model_cells_of(options, 2).empty());
}
