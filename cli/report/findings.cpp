#include "cli/report/findings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "cli/report/table.h"
#include "cli/system/number_text.h"

namespace duet::cli {
namespace {

constexpr std::int64_t kFewestSteps = 5;

bool enough_steps(const Results& results) {
  return results.settings.batch > 0 && results.settings.train_images >= kFewestSteps * results.settings.batch;
}

/// (max - min) / median of the epochs; 0 where there is one.
double spread(const Run& run) {
  if (run.epoch_s.size() < 2) return 0;
  const auto [low, high] = std::minmax_element(run.epoch_s.begin(), run.epoch_s.end());
  const double middle = median(run.epoch_s);
  return middle > 0 ? (*high - *low) / middle : 0;
}

/// True when a difference of `effect` (a share) stands out of what single and `run` vary by.
bool stands_out(const Results& results, const Run& run, double effect) {
  const Run* single = find_run(results, "single", 1);
  return single && std::fabs(effect) > std::max(spread(*single), spread(run));
}

std::string us(double value) { return grouped(std::llround(value)) + " us"; }

/// The largest number of devices above 1 that the cores carry and at least one of dp and ddp ran on; 0: none.
int largest_fair(const Results& results) {
  int devices = 0;
  for (const Run& run : results.runs)
    if (run.ok && (run.mode == "dp" || run.mode == "ddp") && run.devices > 1 && !oversubscribed(results, run))
      devices = std::max(devices, run.devices);
  return devices;
}

void reached(const Results& results, std::vector<std::string>& out) {
  const int devices = largest_fair(results);
  std::vector<std::string> items;
  for (const char* mode : {"dp", "ddp"}) {
    const Run* run = find_run(results, mode, devices);
    if (run && run->speedup && stands_out(results, *run, *run->speedup - 1))
      items.push_back(std::string(mode) + " " + fixed(*run->speedup, 2) + "x");
  }
  if (items.empty()) return;
  out.push_back("At batch " + std::to_string(results.settings.batch) + " on " + std::to_string(devices) +
                " devices, where " + std::to_string(devices) + "x would be ideal, the speed-up over single is " +
                listed(items) + ".");
}

/// Says which part of a step keeps `run` from being single's step divided by the devices.
void lost(const Results& results, const std::string& mode, std::vector<std::string>& out) {
  const Run* single = find_run(results, "single", 1);
  const Run* run = find_run(results, mode, largest_fair(results));
  if (!single || !run) return;
  const double ideal = single->step_us.sum() / run->devices;
  const double extra = run->step_us.sum() - ideal;
  if (ideal <= 0 || extra < 0.05 * ideal || !stands_out(results, *run, extra / run->step_us.sum())) return;
  const StepParts& many = run->step_us;
  const StepParts& one = single->step_us;
  const auto over = [&](double now, double alone) { return now - alone / run->devices; };
  const double moving = many.scatter + many.replicate + many.gather + many.communication;
  const double fixed_part = over(many.input, one.input) + over(many.update, one.update);
  const double compute = over(many.forward + many.loss + many.backward, one.forward + one.loss + one.backward);
  const double largest = std::max({moving, fixed_part, compute});
  if (largest < extra / 3) return;
  std::string why = "communication (scatter, replicate, gather, all-reduce)";
  if (mode == "ddp" || mode == "averaging") why = "waiting for all-reduces";
  if (largest == fixed_part) why = "input and update, which every device does in full";
  if (largest == compute) why = "forward, loss and backward, which do not divide evenly or slow each other down";
  out.push_back(mode + " on " + std::to_string(run->devices) + " devices takes " + us(extra) +
                " a step more than single's step divided by " + std::to_string(run->devices) + "; " +
                (largest < 0.95 * extra ? us(largest) + " of it is " : "all of it is ") + why + ".");
}

void hidden(const Results& results, std::vector<std::string>& out) {
  const int devices = largest_fair(results);
  const Run* averaging = find_run(results, "averaging", devices);
  const Run* ddp = find_run(results, "ddp", devices);
  if (!ddp || ddp->communication_us <= 0) return;
  const double waiting = ddp->step_us.communication;
  const double share = std::clamp(1 - waiting / ddp->communication_us, 0.0, 1.0);
  std::string text = "ddp on " + std::to_string(devices) + " devices communicates for " + us(ddp->communication_us) +
                     " a step and waits for " + us(waiting) + " of it: " + fixed(100 * share, 0) +
                     " % is hidden behind backward.";
  if (averaging && averaging->communication_us > waiting &&
      averaging->communication_us - waiting > averaging->step_us.sum() * std::max(spread(*averaging), spread(*ddp)))
    text += " averaging waits for all of its " + us(averaging->communication_us) + ".";
  out.push_back(text);
}

void crowded(const Results& results, std::vector<std::string>& out) {
  std::set<int> counts;
  std::set<std::string> shared;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    if (!sharing(run).empty())
      shared.insert(sharing(run));
    else if (oversubscribed(results, run))
      counts.insert(run.devices);
  }
  for (const std::string& what : shared) out.push_back(what + ": this measures overhead, not scaling.");
  for (int devices : counts)
    out.push_back(std::to_string(devices) + " devices share " + std::to_string(results.machine.cores) +
                  (results.machine.cores == 1 ? " core" : " cores") + ": this measures overhead, not scaling.");
}

std::string and_text(const std::set<int>& numbers) {
  std::vector<std::string> texts;
  for (int number : numbers) texts.push_back(std::to_string(number));
  return listed(texts);
}

void bits(const Results& results, std::vector<std::string>& out) {
  const Run* single = find_run(results, "single", 1);
  if (!single || single->parameters_sha256.empty()) return;
  std::set<int> counts;
  std::vector<std::string> modes;
  std::vector<std::string> others;
  bool same_counts = true;
  for (const char* mode : {"dp", "ddp"}) {
    std::set<int> same;
    for (const Run& run : results.runs) {
      if (!run.ok || run.mode != mode) continue;
      if (run.parameters_sha256 == single->parameters_sha256)
        same.insert(run.devices);
      else if (run.on_cpu())
        others.push_back(std::string(mode) + " on " + std::to_string(run.devices) +
                         " devices does not end with single's bits" +
                         (run.first_differing_step
                              ? "; step " + std::to_string(*run.first_differing_step) + " is the first to differ."
                              : "."));
    }
    if (same.empty()) continue;
    same_counts = same_counts && (modes.empty() || same == counts);
    modes.push_back(mode);
    counts.insert(same.begin(), same.end());
  }
  if (!modes.empty() && same_counts)
    out.push_back(listed(modes) + " ended with the same bits as single on " + and_text(counts) +
                  (counts == std::set<int>{1} ? " device" : " devices") + " (parameters sha256 " +
                  single->parameters_sha256.substr(0, 16) + "...).");
  out.insert(out.end(), others.begin(), others.end());
}

void graphs(const Results& results, std::vector<std::string>& out) {
  const auto with = [](bool graph) { return [graph](const Run& run) { return run.ok && run.graph == graph; }; };
  const bool mixed = std::any_of(results.runs.begin(), results.runs.end(), with(true)) &&
                     std::any_of(results.runs.begin(), results.runs.end(), with(false));
  if (mixed)
    out.push_back("Only steps of rows marked graph were replayed as CUDA graphs: --graph off compares all alike.");
}

void untimed(const Results& results, std::vector<std::string>& out) {
  const auto timed = [](const Run& run) { return run.ok && run.timed(); };
  const auto trained = [](const Run& run) { return run.ok; };
  if (std::none_of(results.runs.begin(), results.runs.end(), trained) ||
      std::any_of(results.runs.begin(), results.runs.end(), timed))
    return;
  out.push_back(std::string(kNothingToTime) + " (batch " + std::to_string(results.settings.batch) + ", " +
                grouped(results.settings.train_images) + " training images).");
}

void not_finite(const Results& results, std::vector<std::string>& out) {
  std::vector<std::string> rows;
  for (const Run& run : results.runs)
    if (run.ok && !run.train_loss.empty() && !std::isfinite(run.train_loss.back()))
      rows.push_back(row_name(results, run) + " " + std::to_string(run.devices));
  if (!rows.empty())
    out.push_back("The loss of " + listed(rows) +
                  " is not finite: --check-finite ends a training where that begins and says where it arose.");
}

}  // namespace

std::vector<std::string> findings(const Results& results) {
  std::vector<std::string> out;
  untimed(results, out);
  not_finite(results, out);
  if (enough_steps(results)) {
    reached(results, out);
    // A GPU runs asynchronously: the host's clock does not measure how long each part took there.
    const bool seen =
        std::all_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.on_cpu(); });
    if (seen) {
      lost(results, "dp", out);
      lost(results, "ddp", out);
      hidden(results, out);
    }
  }
  crowded(results, out);
  graphs(results, out);
  bits(results, out);
  return out;
}

std::string headline(const Results& results) {
  const Run* best = nullptr;
  bool all_same = true, any = false, failed = false;
  for (const Run& run : results.runs) {
    failed = failed || !run.ok;
    if (!run.ok || (run.mode != "dp" && run.mode != "ddp")) continue;
    any = true;
    all_same = all_same && same_result(results, run) == "yes";
    if (run.devices > 1 && run.speedup && !oversubscribed(results, run) && (!best || *run.speedup > *best->speedup))
      best = &run;
  }
  std::string text;
  if (best && enough_steps(results))
    text = best->mode + " on " + std::to_string(best->devices) + " devices trained " + fixed(*best->speedup, 2) +
           " times as fast as one device";
  else
    text = "Trained in " + std::to_string(results.runs.size()) + (results.runs.size() == 1 ? " way" : " ways");
  if (any && all_same) text += ", and dp and ddp ended with the same bits as single";
  if (failed) text += "; not every mode ran to its end";
  return text + ".";
}

}  // namespace duet::cli
