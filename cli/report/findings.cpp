// The sentences of a comparison.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/report/report.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

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
      items.push_back(concat(mode, " ", fixed(*run->speedup, 2), "x"));
  }
  if (!items.empty())
    out.push_back(concat("At batch ", results.settings.batch, " on ", devices, " devices, where ", devices,
                         "x would be ideal, the speed-up over single is ", listed(items), "."));
}

/// Says which part of a step keeps `run` from being single's step divided by the devices.
void lost(const Results& results, const std::string& mode, std::vector<std::string>& out) {
  const Run* single = find_run(results, "single", 1);
  const Run* run = find_run(results, mode, largest_fair(results));
  if (!single || !run || single->graph || run->graph) return;  // parts of a replayed graph cannot be timed
  const double ideal = single->step_us.sum() / run->devices;
  const double extra = run->step_us.sum() - ideal;
  if (ideal <= 0 || extra < 0.05 * ideal || !stands_out(results, *run, extra / run->step_us.sum())) return;
  const StepParts &many = run->step_us, &one = single->step_us;
  const auto over = [&](double now, double alone) { return now - alone / run->devices; };
  const double moving = many.scatter + many.replicate + many.gather + many.communication;
  const double fixed_part = over(many.input, one.input) + over(many.update, one.update);
  const double compute = over(many.forward + many.loss + many.backward, one.forward + one.loss + one.backward);
  const double largest = std::max({moving, fixed_part, compute});
  if (largest < extra / 3) return;
  const char* why = "communication (scatter, replicate, gather, all-reduce)";
  if (mode == "ddp") why = "waiting for all-reduces";
  if (largest == fixed_part) why = "input and update, which every device does in full";
  if (largest == compute) why = "forward, loss and backward, which do not divide evenly or slow each other down";
  out.push_back(concat(mode, " on ", run->devices, " devices takes ", us(extra),
                       " a step more than single's step divided by ", run->devices, "; ",
                       largest < 0.95 * extra ? us(largest) + " of it is " : "all of it is ", why, "."));
}

void hidden(const Results& results, std::vector<std::string>& out) {
  const int devices = largest_fair(results);
  const Run* averaging = find_run(results, "averaging", devices);
  const Run* ddp = find_run(results, "ddp", devices);
  if (!ddp || ddp->communication_us <= 0) return;
  const double waiting = ddp->step_us.communication;
  const double share = std::clamp(1 - waiting / ddp->communication_us, 0.0, 1.0);
  out.push_back(concat("ddp on ", devices, " devices communicates for ", us(ddp->communication_us),
                       " a step and waits for ", us(waiting), " of it: ", fixed(100 * share, 0),
                       " % is hidden behind backward."));
  if (averaging && averaging->communication_us > waiting &&
      averaging->communication_us - waiting > averaging->step_us.sum() * std::max(spread(*averaging), spread(*ddp)))
    out.back() += " averaging waits for all of its " + us(averaging->communication_us) + ".";
}

void crowded(const Results& results, std::vector<std::string>& out) {
  constexpr const char* kOverhead = ": this measures overhead, not scaling.";
  std::set<int> counts;
  std::set<std::string> shared;
  for (const Run& run : results.runs) {
    if (run.ok && !sharing(run).empty())
      shared.insert(sharing(run));
    else if (run.ok && oversubscribed(results, run))
      counts.insert(run.devices);
  }
  const int cores = results.machine.cores;
  for (const std::string& what : shared) out.push_back(what + kOverhead);
  for (const int devices : counts)
    out.push_back(concat(devices, " devices share ", cores, cores == 1 ? " core" : " cores", kOverhead));
}

void bits(const Results& results, std::vector<std::string>& out) {
  const Run* single = find_run(results, "single", 1);
  if (!single || single->parameters_sha256.empty()) return;
  std::set<int> counts;
  std::vector<std::string> modes, others;
  bool same_counts = true;
  for (const char* mode : {"dp", "ddp"}) {
    std::set<int> same;
    for (const Run& run : results.runs) {
      if (!run.ok || run.mode != mode) continue;
      if (run.parameters_sha256 == single->parameters_sha256)
        same.insert(run.devices);
      else if (run.on_cpu())
        others.push_back(concat(
            mode, " on ", run.devices, " devices does not end with single's bits",
            run.first_differing_step ? concat("; step ", *run.first_differing_step, " is the first to differ.") : "."));
    }
    if (same.empty()) continue;
    same_counts = same_counts && (modes.empty() || same == counts);
    modes.push_back(mode);
    counts.insert(same.begin(), same.end());
  }
  if (!modes.empty() && same_counts) {
    std::vector<std::string> numbers;
    for (const int count : counts) numbers.push_back(std::to_string(count));
    out.push_back(concat(listed(modes), " ended with the same bits as single on ", listed(numbers),
                         counts == std::set<int>{1} ? " device" : " devices", " (parameters sha256 ",
                         single->parameters_sha256.substr(0, 16), "...)."));
  }
  out.insert(out.end(), others.begin(), others.end());
}

}  // namespace

std::vector<std::string> findings(const Results& results) {
  std::vector<std::string> out;
  const auto any = [&](const auto& holds) {
    return std::any_of(results.runs.begin(), results.runs.end(), [&](const Run& run) { return run.ok && holds(run); });
  };
  if (any([](const Run&) { return true; }) && !any([](const Run& run) { return run.timed(); }))
    out.push_back(concat(kNothingToTime, " (batch ", results.settings.batch, ", ",
                         grouped(results.settings.train_images), " training images)."));
  std::vector<std::string> not_finite;
  for (const Run& run : results.runs)
    if (run.ok && !run.train_loss.empty() && !std::isfinite(run.train_loss.back()))
      not_finite.push_back(concat(row_name(results, run), " ", run.devices));
  if (!not_finite.empty())
    out.push_back(concat("The loss of ", listed(not_finite),
                         " is not finite: --check-finite ends a training where that begins and says where it arose."));
  if (enough_steps(results)) {
    reached(results, out);
    // A GPU runs asynchronously: the host's clock does not measure how long each part took there.
    if (std::all_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.on_cpu(); })) {
      lost(results, "dp", out);
      lost(results, "ddp", out);
      hidden(results, out);
    }
  }
  crowded(results, out);
  if (any([](const Run& run) { return run.graph; }) && any([](const Run& run) { return !run.graph; }))
    out.push_back("Only steps of rows marked graph were replayed as CUDA graphs: --graph off compares all alike.");
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
  const std::size_t ways = results.runs.size();
  std::string text = concat("Trained in ", ways, ways == 1 ? " way" : " ways");
  if (best && enough_steps(results))
    text = concat(best->mode, " on ", best->devices, " devices trained ", fixed(*best->speedup, 2),
                  " times as fast as one device");
  if (any && all_same) text += ", and dp and ddp ended with the same bits as single";
  if (failed) text += "; not every mode ran to its end";
  return text + ".";
}

}  // namespace duet::cli
