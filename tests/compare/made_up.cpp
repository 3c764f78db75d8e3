#include "tests/compare/made_up.h"

#include <cstddef>
#include <iterator>
#include <string>

#include "compare/cost_model/simulate_step.h"
#include "compare/report/report.h"

namespace duet_test {
namespace {

using duet::cli::Run;

const std::string kHash(64, 'a');
const std::string kOther(64, 'b');

/// Nine, of which each differs by up to 1 %, for each number of devices in another order: the median ratio of two runs'
/// rounds is that of their steps.
void make_rounds(Run& run) {
  constexpr double kFactors[] = {1, 1.01, 1.005, 1.002, 1, 0.99, 1, 0.995, 0.998};
  run.rounds_us.clear();
  run.rounds_step_us.clear();
  run.samples_per_s = static_cast<double>(run.batch) / run.step_us.sum() * 1e6;
  for (std::size_t i = 0; i < std::size(kFactors); ++i) {
    const double factor = kFactors[(i + static_cast<std::size_t>(run.devices) * 2) % std::size(kFactors)];
    run.rounds_us.push_back(run.step_us.sum() * factor);
    run.rounds_step_us.push_back(run.step_us.scaled_to(run.rounds_us.back()));
  }
}

/// `step` is scaled so that an epoch of 60,000 samples takes `epoch` seconds.
Run run(const std::string& mode, int devices, double epoch, double waiting_us) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.batch = 128;
  run.startup_s = 0.25;
  run.epoch_s = {epoch * 0.99, epoch, epoch * 1.01};
  run.other_programs_share = 0.01;
  const double step = epoch / 60000 * 128 * 1e6;
  run.communication_us = 2 * waiting_us;
  run.waiting_share = waiting_us / step;
  run.parameters_sha256 = kHash;
  run.step_us.input = 50;
  run.step_us.communication = waiting_us;
  run.step_us.update = 100;
  run.step_us.forward = (step - 150 - waiting_us) * 0.4;
  run.step_us.backward = (step - 150 - waiting_us) * 0.6;
  run.train_loss = {2.25, 1.5, 0.75, 0.3125};
  run.test_accuracy = {0.9712};
  make_rounds(run);
  run.peak_memory_mb.assign(mode == "ddp" ? static_cast<std::size_t>(devices) : 1, 120.5);
  return run;
}

}  // namespace

duet::cli::Results made_up() {
  duet::cli::Results results;
  results.machine = {
      .cpu = "Example <CPU>", .cores = 2, .isa = "AVX2", .gpus = {}, .memory_gb = 8.5, .kernel = "Linux 6.1"};
  results.settings.data = "MNIST";
  results.settings.epochs = 1;
  results.settings.train_images = 60000;
  results.runs = {run("single", 1, 8, 0), run("single", 1, 4.4, 0), run("averaging", 2, 5, 500),
                  run("dp", 2, 4.2, 100), run("ddp", 2, 5, 1500),   run("ddp", 4, 6, 3000)};
  results.runs[1].threads_per_device = 2;
  results.runs[2].parameters_sha256 = kOther;
  results.runs[5].parameters_sha256 = kOther;
  results.runs[5].first_differing_step = 17;
  Run failed = run("dp", 4, 8, 0);
  failed.ok = false;
  failed.error = "replica 3 on cpu:3: out of memory";
  results.runs.push_back(failed);
  compare_with_single(results);
  return results;
}

duet::cli::Results made_up_with_copies() {
  duet::cli::Results results = made_up();
  Run copies = results.runs[3];
  copies.mode = "copies";
  copies.step_us.communication = 0;
  for (const std::size_t i : {2U, 3U, 4U}) {
    const double waiting_us = results.runs[i].step_us.communication;
    results.runs[i].step_us = copies.step_us;
    results.runs[i].step_us.communication = waiting_us;
    make_rounds(results.runs[i]);
  }
  make_rounds(copies);
  results.runs.push_back(copies);
  compare_with_single(results);
  return results;
}

duet::cli::CostModel made_up_model() {
  duet::cli::CostModel model{
      .step = {.fixed_us = 100, .per_sample_us = 10, .worst_error_share = 0.01},
      .input_per_sample_us = 0.5,
      .update_us = 20,
      .backward_share = 0.5,
      .step_spread_share = 0.02,
      .slowdown = {{.devices = 2, .factor = 1.1}, {.devices = 4, .factor = 1.3}},
      .buckets = {{.bytes = 1048576, .ready_share = 0.5}, {.bytes = 524288, .ready_share = 1}},
      .parameter_bytes = {524288, 1048576},
      .links = {{.backend = "shm",
                 .ranks = 2,
                 .cost = {.latency_us = 10, .bytes_per_us = 1000},
                 .averaging = duet::cli::TransferCost{.latency_us = 10, .bytes_per_us = 1000}},
                {.backend = "gloo", .ranks = 2, .cost = {.latency_us = 80, .bytes_per_us = 500}}},
      .dp = duet::cli::DpCopies{.scatter_bytes_per_sample = 0,
                                .gather_bytes_per_sample = 40,
                                .replicate_bytes = 0,
                                .reduce_bytes = 1572864,
                                .cost = {.latency_us = 2, .bytes_per_us = 8000}}};
  fill_derived(model);
  return model;
}

duet::cli::CostModel fitting_model() {
  duet::cli::CostModel model = made_up_model();
  model.step = {.fixed_us = 1066, .per_sample_us = 125, .worst_error_share = 0.25};
  fill_derived(model);
  return model;
}

std::string findings_text(const duet::cli::Results& results) {
  std::string all;
  for (const std::string& sentence : findings(results)) all += sentence + "\n";
  return all;
}

}  // namespace duet_test
