#include "cli/report/results.h"

#include <algorithm>

#include "cli/system/number_text.h"

namespace duet::cli {

const std::vector<PartName>& step_part_names() {
  static const std::vector<PartName> names = {
      {"input", &StepParts::input},         {"scatter", &StepParts::scatter},
      {"replicate", &StepParts::replicate}, {"forward", &StepParts::forward},
      {"gather", &StepParts::gather},       {"loss", &StepParts::loss},
      {"backward", &StepParts::backward},   {"communication", &StepParts::communication},
      {"update", &StepParts::update}};
  return names;
}

namespace {

/// Threads per device of the usual rows: the fewest that any run has.
int usual_threads(const Results& results) {
  int threads = 0;
  for (const Run& run : results.runs)
    threads = threads == 0 ? run.threads_per_device : std::min(threads, run.threads_per_device);
  return threads;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string joined(const std::vector<double>& values) {
  std::string out;
  for (double value : values) out += (out.empty() ? "" : " ") + shortest(value);
  return out;
}

std::string optional_text(const std::optional<double>& value) { return value ? shortest(*value) : ""; }

}  // namespace

bool all_cores_row(const Results& results, const Run& run) {
  return run.mode == "single" && run.threads_per_device > usual_threads(results);
}

bool oversubscribed(const Results& results, const Run& run) {
  return run.on_cpu() ? run.threads() > results.machine.cores : run.devices > run.physical_devices;
}

std::string sharing(const Run& run) {
  if (run.on_cpu() || run.devices <= run.physical_devices) return "";
  return std::to_string(run.devices) + (run.mode == "dp" ? " logical devices on " : " ranks on ") +
         std::to_string(run.physical_devices) + (run.physical_devices == 1 ? " GPU" : " GPUs");
}

const Run* find_run(const Results& results, const std::string& mode, int devices) {
  for (const Run& run : results.runs)
    if (run.ok && run.mode == mode && run.devices == devices && run.threads_per_device == usual_threads(results))
      return &run;
  return nullptr;
}

void compare_with_single(Results& results) {
  const Run* single = find_run(results, "single", 1);
  for (Run& run : results.runs) {
    run.speedup.reset();
    run.efficiency.reset();
    if (!single || !run.ok || !single->timed() || !run.timed() || !sharing(run).empty()) continue;
    run.speedup = run.samples_per_s / single->samples_per_s;
    if (!oversubscribed(results, run)) run.efficiency = *run.speedup / run.threads() * single->threads_per_device;
  }
}

std::string to_csv(const Results& results) {
  std::string out =
      "mode,device,devices,physical_devices,precision,threads_per_device,ok,error,startup_s,epoch_s,samples_per_s,"
      "speedup,efficiency,waiting_"
      "share,"
      "communication_us,parameters_sha256,first_differing_step";
  for (const PartName& part : step_part_names()) out += std::string(",") + part.name + "_us";
  out += ",train_loss,test_accuracy,peak_memory_mb,device_memory_mb,moved_bytes_per_step,graph,workers,backend\n";
  for (const Run& run : results.runs) {
    out += run.mode + "," + run.device + "," + std::to_string(run.devices) + "," +
           std::to_string(run.physical_devices) + "," + run.precision + "," + std::to_string(run.threads_per_device) +
           "," + (run.ok ? "true" : "false") + "," + quoted(run.error) + "," + shortest(run.startup_s) + "," +
           joined(run.epoch_s) + "," + shortest(run.samples_per_s) + "," + optional_text(run.speedup) + "," +
           optional_text(run.efficiency) + "," + shortest(run.waiting_share) + "," + shortest(run.communication_us) +
           "," + run.parameters_sha256 + "," +
           (run.first_differing_step ? std::to_string(*run.first_differing_step) : "");
    for (const PartName& part : step_part_names()) out += "," + shortest(run.step_us.*part.member);
    out += "," + joined(run.train_loss) + "," + joined(run.test_accuracy) + "," + joined(run.peak_memory_mb) + "," +
           joined(run.device_memory_mb) + "," + joined(run.moved_bytes_per_step) + "," +
           (run.graph ? "true" : "false") + "," + run.workers + "," + run.backend + "\n";
  }
  return out;
}

}  // namespace duet::cli
