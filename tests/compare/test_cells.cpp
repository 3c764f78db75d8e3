#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "compare/cells.h"
#include "lib/base/trace.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/training_loop.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;

TEST_CASE("the cells of a comparison") {
  CompareOptions options;
  options.modes = {Mode::dp, Mode::single};
  options.devices = {1, 2};
  options.time_budget_s = 0;
  CHECK(cells_of(options, 4) ==
        std::vector<Cell>{{Mode::dp, 1, 1}, {Mode::dp, 2, 1}, {Mode::single, 1, 1}, {Mode::single, 1, 4}});
  CHECK(cells_of(options, 1).size() == 3);
}

TEST_CASE("under weak scaling every device of a cell has a batch") {
  const CompareOptions options = std::get<CompareOptions>(
      parse({"compare", "--scaling", "weak", "--batch", "50", "--modes", "single,dp,ddp", "--devices", "1,4"}));
  for (const Cell& cell : cells_of(options, 8)) {
    const auto train =
        std::get<TrainOptions>(parse(cell_arguments(options, {cell.mode == Mode::copies ? Mode::ddp : cell.mode,
                                                              cell.devices, cell.threads_per_device, "", cell.batch})));
    INFO(title(options, cell));
    CHECK(train.batch == 50 * cell.devices);
  }
  CHECK(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::dp, 4, 1}))).batch == 50);
}

TEST_CASE("ranks are compared over every backend that was asked for") {
  const CompareOptions options = std::get<CompareOptions>(
      parse({"compare", "--modes", "averaging,ddp", "--devices", "1,2", "--backend", "shm,gloo"}));
  CHECK(options.backend == "shm");
  CHECK(cells_of(options, 2) == std::vector<Cell>{{Mode::averaging, 1, 1},
                                                  {Mode::averaging, 2, 1},
                                                  {Mode::ddp, 1, 1},
                                                  {Mode::ddp, 2, 1},
                                                  {Mode::ddp, 2, 1, "gloo"}});
  CHECK(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::ddp, 2, 1}))).backend == "shm");
  CHECK(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::ddp, 2, 1, "gloo"}))).backend == "gloo");
}

TEST_CASE("cells have the network and the images that were asked for") {
  const CompareOptions options = std::get<CompareOptions>(
      parse({"compare", "--model", "resnet50", "--image-size", "64", "--classes", "7", "--stem", "cifar",
             "--loader-workers", "3", "--skip-broken", "--data", "folder", "--precision", "bf16"}));
  const auto train = std::get<TrainOptions>(parse(cell_arguments(options, {Mode::dp, 2, 1})));
  CHECK(train.model == "resnet50");
  CHECK(train.image_size == 64);
  CHECK(train.classes == 7);
  CHECK(train.stem == "cifar");
  CHECK(train.loader_workers == 3);
  CHECK(train.skip_broken);
  CHECK(train.data == "folder");
  CHECK(train.precision == Precision::bf16);
}

TEST_CASE("the cells of averaging have no synchronised batch norm") {
  const CompareOptions options = std::get<CompareOptions>(parse({"compare", "--model", "resnet18", "--sync-bn"}));
  CHECK(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::ddp, 2, 1}))).sync_bn);
  CHECK_FALSE(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::averaging, 2, 1}))).sync_bn);
}

TEST_CASE("cells of a comparison have titles of their own") {
  const CompareOptions options =
      std::get<CompareOptions>(parse({"compare", "--devices", "1,2", "--backend", "shm,gloo"}));
  std::vector<std::string> titles;
  for (const Cell& cell : cells_of(options, 4)) titles.push_back(title(options, cell));
  CHECK(titles == std::vector<std::string>{"single 1", "single, all cores", "averaging 1", "averaging 2", "dp 1",
                                           "dp 2", "ddp 1", "ddp 2", "ddp 2, gloo", "copies 2"});
}

TEST_CASE("a cell's command line has the options of the comparison") {
  CompareOptions options = std::get<CompareOptions>(
      parse({"compare",    "--lr",          "0.05",   "--batch",  "64",       "--seed",  "7",
             "--momentum", "0.9",           "--data", "a b",      "--epochs", "3",       "--train-images",
             "100",        "--test-images", "50",     "--compat", "torch",    "--model", "linear"}));
  auto arguments = cell_arguments(options, {Mode::ddp, 4, 2});
  const auto train = std::get<TrainOptions>(parse(arguments));
  CHECK(train.mode == Mode::ddp);
  CHECK(train.devices == 4);
  CHECK(train.threads_per_device == 2);
  CHECK(train.lr == 0.05);
  CHECK(train.batch == 64);
  CHECK(train.seed == 7);
  CHECK(train.momentum == 0.9);
  CHECK(train.data == "a b");
  CHECK(train.epochs == 3);
  CHECK(train.train_images == 100);
  CHECK(train.test_images == 50);
  CHECK(train.compat == Compat::torch);
  CHECK(train.model == "linear");
  CHECK(train.quiet);
  options.quiet = true;
  options.threads_per_device = 2;
  CHECK(arguments_of(train) == arguments_of(options));
  options = std::get<CompareOptions>(parse({"compare", "--optimizer", "adamw", "--weight-decay", "0.1"}));
  const auto adamw = std::get<TrainOptions>(parse(cell_arguments(options, {Mode::dp, 2, 1})));
  CHECK(adamw.optimizer == "adamw");
  CHECK(adamw.weight_decay == 0.1);
}

TEST_CASE("threads as ranks are for the modes that have ranks") {
  const CompareOptions options = std::get<CompareOptions>(parse({"compare", "--workers", "thread"}));
  CHECK(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::ddp, 2, 1}))).workers == "thread");
  CHECK(std::get<TrainOptions>(parse(cell_arguments(options, {Mode::dp, 2, 1}))).workers == "process");
}

TEST_CASE("bursts become one row of medians, whose parts add up to its step") {
  Run row = duet_test::made_up().runs[3];
  row.batch = 50;
  row.rounds_us.clear();
  row.rounds_step_us.clear();
  std::vector<Run> bursts(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const double us = 100.0 * static_cast<double>(i + 1);
    bursts[i].rounds_us = {us};
    bursts[i].rank_step_us = {us, us - 1};
    bursts[i].step_us.forward = us * 0.75;
    bursts[i].step_us.update = i == 1 ? 1000 : us * 0.25;
    bursts[i].waiting_share = us / 1000;
    bursts[i].other_programs_share = i == 0 ? 0.3 : 0;
  }
  const Run timed = with_rounds(row, bursts, 500);
  CHECK(timed.rounds_us == std::vector<double>{100, 200, 300});
  CHECK(timed.rank_step_us == std::vector<double>{200, 199});
  CHECK(timed.epoch_s == std::vector<double>{0.001, 0.002, 0.003});
  CHECK(timed.samples_per_s == Approx(250'000));
  CHECK(timed.step_us.sum() == Approx(200));
  CHECK(timed.step_us.forward == Approx(200 * 150 / 225.0));  // the disturbed update of one round does not count
  CHECK(timed.waiting_share == 0.2);
  CHECK(timed.other_programs_share.value() == Approx(0.1));
  CHECK_FALSE(timed.cpu_share);
  CHECK(timed.startup_s == row.startup_s);
  CHECK(to_json(with_rounds(row, {}, 500)) == to_json(row));
}

TEST_CASE("copies are timed where single and another mode are, and rounds run") {
  const auto cells = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"compare", "--devices", "1,2,4"};
    all.insert(all.end(), more.begin(), more.end());
    std::vector<Cell> copies;
    for (const Cell& cell : cells_of(std::get<CompareOptions>(parse(all)), 2))
      if (cell.mode == Mode::copies) copies.push_back(cell);
    return copies;
  };
  CHECK(cells({}) == std::vector<Cell>{{Mode::copies, 2, 1}, {Mode::copies, 4, 1}});
  CHECK(cells({"--modes", "dp,ddp"}).empty());
  CHECK(cells({"--modes", "single"}).empty());
  CHECK(cells({"--time-budget", "0"}).empty());
  CompareOptions options = std::get<CompareOptions>(parse({"compare", "--workers", "thread", "--backend", "memory"}));
  std::vector<std::string> arguments = cell_arguments(options, {Mode::copies, 2, 1});
  arguments.insert(arguments.end(), {"--bursts", "file"});
  const TrainOptions train = std::get<TrainOptions>(parse(arguments));
  CHECK(train.untrained);
  CHECK(train.mode == Mode::copies);
}

TEST_CASE("the first difference of two lists of fingerprints") {
  CHECK_FALSE(first_difference({"a", "b"}, {"a", "b"}));
  CHECK(first_difference({"a", "b", "c"}, {"a", "x", "c"}) == 1);
  CHECK(first_difference({"a", "b"}, {"a"}) == 1);
  CHECK_FALSE(first_difference({}, {"a"}));
}

/// Traces what happened in the last `us` microseconds.
void trace(const char* name, double us, TraceEvent::Kind kind = TraceEvent::Kind::work, Device device = {}) {
  const std::int64_t now = monotonic_ns();
  Trace::add({.name = name, .kind = kind, .device = device, .begin_ns = now - std::llround(us * 1e3), .end_ns = now});
}

TEST_CASE("the parts of a step add up to it, without the first step of the run") {
  constexpr double kStartedAgo = 3600;  // in seconds: far more than the steps below take, however slow the machine
  StepClock clock(monotonic_ns() - static_cast<std::int64_t>(kStartedAgo * 1e9), {.rank = 1});
  clock.begin_epoch(3, 0);
  for (int step = 0; step < 3; ++step) {
    clock.lap(&StepParts::input);
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    trace("scatter", step == 0 ? 3000 : 1000);
    trace("scatter", 1000, TraceEvent::Kind::work, {DeviceKind::cpu, 1});  // of another process's device
    trace("another name", 500);
    clock.lap(&StepParts::forward);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    trace("communication", step == 0 ? 1000 : 500);
    clock.lap(&StepParts::backward);
    trace("all_reduce", step == 0 ? 2000 : 600, TraceEvent::Kind::communication, {DeviceKind::cpu, 1});
    trace("all_reduce", 900, TraceEvent::Kind::communication, {DeviceKind::cpu, 0});  // of another rank
    clock.end_step(step, step == 2 ? 0 : 4, 8);
  }
  Run run;
  clock.fill(run);
  CHECK(run.step_us.scatter == Approx(1000));
  CHECK(run.step_us.communication == Approx(500));
  CHECK(run.communication_us == Approx(1600));
  CHECK(run.step_us.forward >= 3000);
  CHECK(run.step_us.backward >= 1500);
  CHECK(run.step_us.sum() * 2 / 1e6 == Approx(clock.epoch_seconds()));
  CHECK(run.waiting_share * run.step_us.sum() == Approx(1500));
  const std::vector<float>& steps_us = clock.steps_us();
  REQUIRE(steps_us.size() == 2);
  CHECK(run.startup_s >= kStartedAgo - *std::max_element(steps_us.begin(), steps_us.end()) / 1e6);
  CHECK(clock.loss_sums() == std::vector<double>{0, 4, 0});
  CHECK(clock.loss_rows() == std::vector<double>{8, 8, 8});
  CHECK(clock.epoch_loss() == 0.5);
}

TEST_CASE("what happens between epochs is of no step") {
  const auto collective = [](double us) { trace("all_reduce", us, TraceEvent::Kind::communication); };
  collective(1e6);  // of settings that were compared before the first
  StepClock clock(monotonic_ns());
  const auto step = [&] {
    std::this_thread::sleep_for(std::chrono::microseconds(5));
    trace("communication", 1);
    clock.lap(&StepParts::backward);
    collective(3);
    clock.end_step(1, 8, 8);
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    clock.begin_epoch(2, 0);
    step();
    step();
    // Accuracies are added up, and signals exchanged.
    collective(1e6);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    clock.lap(&StepParts::communication);
  }
  Run run;
  clock.fill(run);
  CHECK(run.communication_us == Approx(3));
  CHECK(run.step_us.communication == Approx(1));
  clock.begin_epoch(3, 0);  // of which one step has run
  step();
  clock.fill(run);
  CHECK(run.communication_us == Approx(3));
  double all_us = 3;
  for (const auto us : clock.steps_us()) all_us += us;
  CHECK(run.step_us.sum() < all_us);
}

TEST_CASE("what is done between two steps, such as writing a checkpoint, is of none") {
  StepClock clock(monotonic_ns());
  clock.begin_epoch(4, 0);
  for (int step = 0; step < 4; ++step) {
    clock.lap(&StepParts::backward);
    clock.end_step(1, 8, 8);
    trace("all_reduce", 1e6, TraceEvent::Kind::communication);  // ranks wait for the one that writes
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    clock.skip();
  }
  Run run;
  clock.fill(run);
  CHECK(run.communication_us == 0);
  CHECK(*std::min_element(clock.steps_us().begin(), clock.steps_us().end()) < 20000);
}

TEST_CASE("steps are not reported together beyond a stop") {
  StepClock clock(monotonic_ns());
  clock.begin_epoch(100, 0, [](std::int64_t done) { return done % 7 == 0; });
  std::int64_t pending = 0;
  std::set<std::int64_t> reported;
  for (int step = 0; step < 100; ++step) {
    if (!clock.needs_loss(++pending)) continue;
    clock.end_steps(std::exchange(pending, 0), 1, 4, 8);
    reported.insert(clock.epoch_step());
  }
  for (std::int64_t stop = 7; stop < 100; stop += 7) CHECK(reported.contains(stop));
  CHECK(reported.size() < 40);
}

TEST_CASE("steps that were replayed together have one part, and no communication") {
  StepClock clock(monotonic_ns(), {.replayed = true});
  clock.begin_epoch(3, 0);
  clock.lap(&StepParts::update);
  clock.end_step(1, 8, 8);
  clock.lap(&StepParts::update, 2);
  clock.end_steps(2, 1, 8, 8);
  Run run;
  clock.fill(run);
  CHECK(run.step_us.update * 2 / 1e6 == Approx(clock.epoch_seconds()));
  CHECK(run.step_us.sum() == run.step_us.update);
  CHECK(run.communication_us == 0);
}

TEST_CASE("steps that are reported together count as their mean, and belong to one point of the loss curve") {
  StepClock clock(monotonic_ns());
  clock.begin_epoch(50, 0);
  std::int64_t pending = 0, reported = 0;
  std::vector<std::int64_t> intervals;
  for (int step = 0; step < 50; ++step) {
    if (!clock.needs_loss(++pending)) continue;
    clock.lap(&StepParts::update, pending);
    clock.end_steps(pending, static_cast<double>(pending), 4, 8);
    reported += pending;
    intervals.push_back(std::exchange(pending, 0));
  }
  // The first step of the run alone; then 20 points of 2 or 3 steps.
  CHECK(reported == 50);
  REQUIRE(intervals.size() == 21);
  CHECK(intervals[0] == 1);
  CHECK(*std::max_element(intervals.begin(), intervals.end()) == 3);
  CHECK(clock.epoch_step() == 50);
  CHECK(clock.steps_us().size() == 49);
  CHECK(clock.epoch_loss() == 1);
  CHECK(std::accumulate(clock.loss_rows().begin(), clock.loss_rows().end(), 0.0) == 400);
  for (std::size_t point = 0; point < 20; ++point) CHECK(clock.loss_sums()[point] * 2 == clock.loss_rows()[point]);
  Run run;
  clock.fill(run);
  CHECK(run.step_us.sum() * 49 / 1e6 == Approx(clock.epoch_seconds()));
}

TEST_CASE("rows on GPUs are taken apart by cells of the same kind without graphs, rows on CPU devices are not") {
  CompareOptions options = std::get<CompareOptions>(
      parse({"compare", "--modes", "single,dp", "--devices", "2", "--batch", "64", "--time-budget", "1"}));
  CHECK(part_cells_of(options, cells_of(options, 1)).empty());
  options.device = DeviceKind::cuda;
  const std::vector<Cell> rows = cells_of(options, 1), parts = part_cells_of(options, rows);
  REQUIRE(parts.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK((parts[i].mode == rows[i].mode && parts[i].devices == rows[i].devices));
    CHECK_FALSE(parts[i].learns());
    CHECK(title(options, parts[i]) == title(options, rows[i]) + ", parts");
    const std::vector<std::string> arguments = cell_arguments(options, parts[i]);
    for (const char* const wanted : {"--graph=off", "--timed-parts", "--untrained"})
      CHECK(std::find(arguments.begin(), arguments.end(), wanted) != arguments.end());
  }
  options.time_budget_s = 0;
  CHECK(part_cells_of(options, rows).empty());
}

TEST_CASE("a row has the shares of the steps that took it apart, and its own time") {
  Run row;
  row.step_us = {.update = 900};
  row.rounds_us = {800, 1000};
  row.rounds_step_us = {{.update = 800}, {.update = 1000}};
  Run burst;
  burst.step_us = {.forward = 30, .backward = 60, .update = 10};
  CHECK_FALSE(with_parts(row, {}).eager_parts);
  const Run apart = with_parts(row, {burst, burst, burst});
  CHECK(apart.eager_parts);
  CHECK(apart.step_us.forward == Approx(270));
  CHECK(apart.step_us.sum() == Approx(900));
  CHECK(apart.rounds_step_us[1].backward == Approx(600));
}
