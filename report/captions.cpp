// What stands under the pictures: each sentence only where the data show it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/report.h"

namespace duet::cli {
namespace {

template <class Holds>
bool any_run(const Results& results, const Holds& holds) {
  return std::any_of(results.runs.begin(), results.runs.end(), [&](const Run& run) { return run.ok && holds(run); });
}

bool has_mode(const Results& results, const std::string& mode) {
  return any_run(results, [&](const Run& run) { return run.mode == mode; });
}

std::string us(double value) { return grouped(std::llround(value)) + " us"; }

std::string on(int devices) { return concat(devices, devices == 1 ? " device" : " devices"); }

/// ", where 4 devices share 2 cores", or nothing.
std::string shared_cores(const Results& results, const Run& run) {
  if (!run.on_cpu() || !oversubscribed(results, run)) return "";
  return concat(", where ", on(run.devices), " share ", results.machine.cores,
                results.machine.cores == 1 ? " core" : " cores");
}

/// The runs of a mode that have times, by devices; the usual ones where several have as many.
std::map<int, const Run*> timed_runs(const Results& results, const std::string& mode) {
  std::map<int, const Run*> runs;
  for (const Run& run : results.runs)
    if (run.ok && run.mode == mode && !run.epoch_s.empty() && sharing(run).empty()) runs.emplace(run.devices, &run);
  return runs;
}

/// Whether every epoch of `b` took longer than every one of `a`, and the medians differ by more than 5 %.
bool clearly_longer(const Run& a, const Run& b) {
  return *std::min_element(b.epoch_s.begin(), b.epoch_s.end()) >
             *std::max_element(a.epoch_s.begin(), a.epoch_s.end()) &&
         median(b.epoch_s) > 1.05 * median(a.epoch_s);
}

/// The first step to more devices after which the time has fallen by less than half of what it could.
std::pair<const Run*, const Run*> flattening(const std::map<int, const Run*>& runs) {
  const Run* before = nullptr;
  for (const auto& [devices, run] : runs) {
    if (before) {
      const double gain = median(before->epoch_s) / median(run->epoch_s);
      const double ideal = static_cast<double>(devices) / before->devices;
      if (gain - 1 < (ideal - 1) / 2) return {before, run};
    }
    before = run;
  }
  return {nullptr, nullptr};
}

}  // namespace

std::string epoch_caption(const Results& results) {
  std::string text = "The picture that tutorials on data-parallel training draw: the median of a run's epochs.";
  const auto single = timed_runs(results, "single");
  if (!single.empty() && any_run(results, [](const Run& run) { return run.devices > 1 && !run.epoch_s.empty(); }))
    text += " The dashed grey line is single's time divided by the number of devices.";
  if (any_run(results, [](const Run& run) { return run.epoch_s.size() > 1; }))
    text += " Thick bars run from the fastest to the slowest epoch.";
  for (const char* const mode : {"averaging", "dp", "ddp"}) {
    const Run* before = nullptr;
    for (const auto& [devices, run] : timed_runs(results, mode)) {
      if (before && clearly_longer(*before, *run))
        text += concat(" ", mode, " takes longer on ", devices, " devices than on ", before->devices,
                       shared_cores(results, *run), ".");
      before = run;
    }
  }
  return text;
}

std::string averaging_note(const Results& results) {
  const auto [few, many] = flattening(timed_runs(results, "averaging"));
  if (!few || few->step_us.sum() <= 0 || many->step_us.sum() <= 0) return "";
  const double factor = static_cast<double>(many->devices) / few->devices, share = ideal_share(*many, *few);
  const auto compute = [](const Run& run) { return run.step_us.forward + run.step_us.loss + run.step_us.backward; };
  std::string parts;
  if (many->step_waiting_us)
    parts = concat(" (", us(waiting_of(*many).communication), " of it waiting for the last rank)");
  return concat("The curve of averaging flattens from ", few->devices, " to ", on(many->devices), ": an epoch takes ",
                seconds(median(few->epoch_s)), " s and then ", seconds(median(many->epoch_s)), " s, where ",
                seconds(median(few->epoch_s) / factor), " s would be ideal. In a step, forward and backward go from ",
                us(compute(*few)), " to ", us(compute(*many)), " where ", us(compute(*few) * share),
                " would be ideal, and communication from ", us(few->step_us.communication), " to ",
                us(many->step_us.communication), parts, shared_cores(results, *many), ".");
}

std::string parts_caption(const Results& results) {
  std::string text = "Means over the epoch, along the critical path; of ranks, means over them.";
  if (results.weak) text += " A step on N devices trains N times single's rows.";
  if (any_run(results, [](const Run& run) {
        return run.mode == "ddp" && run.step_us.communication < 0.99 * run.communication_us;
      }))
    text += " Communication that is hidden behind backward is not in it.";
  if (any_run(results, [](const Run& run) { return run.step_waiting_us.has_value(); }))
    text +=
        " Waiting is for the last rank to begin a collective, or for the last replica to end its part; communication "
        "is then moving and adding alone.";
  if (any_run(results, [](const Run& run) {
        return run.devices > 1 && run.mode != "dp" && !run.step_waiting_us && run.step_us.communication > 0;
      }))
    text += " Where no trace of one clock parts them, communication holds waiting, too.";
  return text;
}

std::string step_caption(const Results& results) {
  std::string text =
      "The step of median time, from the trace that every run records. A block that lies in another one "
      "is a part of it.";
  if (any_run(results, [](const Run& run) { return run.backend != "" && !run.median_step.empty(); }))
    text +=
        any_run(results, [](const Run& run) { return run.backend != "" && run.step_waiting_us; })
            ? " The ranks' times are of one clock: a collective waits until the last rank begins it, then moves and "
              "adds."
            : " The ranks' times are of different clocks or of work that runs asynchronously.";
  return text;
}

std::string loss_caption(const Results& results) {
  std::string text;
  const Run* const single = find_run(results, "single", 1);
  if (single && any_run(results, [&](const Run& run) {
        return &run != single && run.parameters_sha256 == single->parameters_sha256 && !run.parameters_sha256.empty();
      }))
    text = "Runs that learn the same bits lie on one line.";
  if (has_mode(results, "averaging"))
    text += concat(text.empty() ? "" : " ", "averaging trains every rank on its own part of the data.");
  return text;
}

std::vector<std::pair<std::string, std::string>> words(const Results& results) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](bool occurs, const char* word, const char* meaning) {
    if (occurs) out.emplace_back(word, meaning);
  };
  const auto part = [&](double StepParts::*member) {
    return any_run(results, [&](const Run& run) { return run.step_us.*member > 0; });
  };
  add(has_mode(results, "single"), "single", "the plain training loop on one device");
  add(any_run(results, [&](const Run& run) { return all_cores_row(results, run); }), "single, all cores",
      "the same on one device that has a thread for each core");
  add(has_mode(results, "averaging"), "averaging",
      "the tutorial's loop: each rank trains on its own part of the data and, after backward, averages the gradients "
      "with the other ranks, one parameter after the other");
  add(has_mode(results, "dp"), "dp", "DataParallel: one process, a thread for each device");
  add(has_mode(results, "ddp"), "ddp",
      "DistributedDataParallel: a process for each rank; gradients are added up while backward still runs");
  add(part(&StepParts::scatter), "scatter", "dp gives each device its part of the batch");
  add(part(&StepParts::replicate), "replicate", "dp brings the parameters of the other devices up to date");
  add(part(&StepParts::gather), "gather", "dp collects the outputs of all devices on the first");
  add(part(&StepParts::communication), "communication",
      "gradients are moved between ranks or devices and added up, as far as computing stands still for it");
  add(any_run(results, [](const Run& run) { return run.step_waiting_us.has_value(); }), "waiting",
      "computing stands still because another rank or replica is not as far");
  add(part(&StepParts::update), "update", "the optimizer changes the parameters");
  return out;
}

}  // namespace duet::cli
