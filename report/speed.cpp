#include "report/speed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "cli/system/number_text.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/interval_text.h"
#include "report/report.h"

namespace duet::cli {
namespace {

constexpr double kOthersShown = 0.02;  // of the cores
constexpr double kAhead = 0.2;         // of a loss, that its largest cause must be ahead of the next

bool wraps(const Run& run) { return run.ok && (run.mode == "dp" || run.mode == "ddp"); }

/// "ddp over gloo", where there are several backends.
std::string mode_of(const Results& results, const Run& run) {
  return run.mode + (run.mode == "ddp" && several_backends(results) ? " over " + run.backend : "");
}

std::string named(const Results& results, const Run& run) {
  return concat(mode_of(results, run), " on ", run.devices, run.devices == 1 ? " device" : " devices");
}

/// Runs of dp and ddp on so many devices that can be believed, in the table's order.
std::vector<const Run*> wrapped_on(const Results& results, int devices) {
  std::vector<const Run*> runs;
  for (const Run& run : results.runs)
    if (wraps(run) && run.devices == devices && run.speedup && above_limit(results, run).empty()) runs.push_back(&run);
  return runs;
}

/// What a group of parts costs more in each round than single's divided by the devices.
struct LostTo {
  const char* to;
  std::vector<double> us{};
  double middle = 0;
};

using Losses = std::array<LostTo, 4>;

Losses losses_of(const Run& run, const Run& single) {
  const double share = ideal_share(run, single);
  const bool same_rows = share == 1;  // of a device, as single's
  const bool ddp = run.mode == "ddp", split = !run.rounds_waiting_us.empty();
  Losses groups = {
      LostTo{ddp ? "waiting for the last rank" : "waiting for the last replica"},
      LostTo{!ddp    ? "communication (scatter, replicate, gather, all-reduce)"
             : split ? "moving and adding in all-reduces"
                     : "waiting for all-reduces"},
      LostTo{same_rows ? "input and update" : "input and update, which every device does in full"},
      LostTo{same_rows ? "forward, loss and backward, which slow each other down"
                       : "forward, loss and backward, which do not divide evenly or slow each other down"}};
  for (const std::size_t i : common_rounds(run, single)) {
    if (i >= run.rounds_step_us.size() || i >= single.rounds_step_us.size()) break;
    const StepParts& one = single.rounds_step_us[i];
    StepParts many = run.rounds_step_us[i];
    double waiting = 0;
    for (const PartName& part : kStepParts) {
      const double waits = split ? std::min(run.rounds_waiting_us.at(i).*part.member, many.*part.member) : 0;
      waiting += waits;
      many.*part.member -= waits;
    }
    const auto over = [&](double now, double alone) { return now - alone * share; };
    const double later = waiting * (longest_over_mean_waiting(run) - 1);  // what the last computes longer
    groups[0].us.push_back(waiting + later);
    groups[1].us.push_back(many.scatter + many.replicate + many.gather + many.communication);
    groups[2].us.push_back(over(many.input + many.update, one.input + one.update));
    groups[3].us.push_back(over(many.forward + many.loss + many.backward, one.forward + one.loss + one.backward) -
                           later);
  }
  for (LostTo& group : groups) group.middle = median(group.us);
  std::sort(groups.begin(), groups.end(), [](const LostTo& a, const LostTo& b) { return a.middle > b.middle; });
  return groups;
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> all;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) all.push_back(a[i] - b[i]);
  return all;
}

/// "; 251 us ±20 of it is ..."; empty where no cause stands out of the others.
std::string cause(const Losses& groups, const Interval& extra) {
  const LostTo &most = groups[0], &next = groups[1];
  const std::optional<Interval> own = interval_of(most.us), ahead = interval_of(difference(most.us, next.us));
  if (!own || own->low <= 0 || !ahead || ahead->low <= kAhead * extra.middle || most.middle < extra.middle / 3)
    return "";
  if (most.middle >= 0.95 * extra.middle) return concat("; all of it is ", most.to);
  return concat("; ", us_text(*own), " of it is ", most.to);
}

void add_backends(const Results& results, int devices, Evidence& evidence) {
  const Run* first = find_run(results, "ddp", devices);
  for (const Run* const run : wrapped_on(results, devices)) {
    if (!first || run == first || run->mode != "ddp" || run->backend == first->backend) continue;
    const std::optional<Interval> ratio = ratio_interval(speed_ratios(*first, *run));
    const std::string what = concat(named(results, *first), " against ", mode_of(results, *run));
    if (ratio && ratio->excludes(1))
      evidence.sentences.push_back(
          concat(named(results, *first), " is ", times_text(*ratio), " as fast as ", mode_of(results, *run), "."));
    else if (ratio)
      evidence.withheld.push_back(concat(what, " (", times_range(*ratio), ")"));
  }
}

}  // namespace

std::optional<Interval> speedup_interval(const Run& run) {
  if (!run.speedup || !run.speedup_low || !run.speedup_high) return std::nullopt;
  return Interval{*run.speedup, *run.speedup_low, *run.speedup_high};
}

Interval drawn_speedup(const Run& run) {
  return speedup_interval(run).value_or(Interval{*run.speedup, *run.speedup, *run.speedup});
}

std::string speedup_text(const Run& run) {
  if (!run.speedup) return "-";
  const std::optional<Interval> interval = speedup_interval(run);
  return interval ? times_text(*interval) : fixed(*run.speedup, 2) + "x";
}

std::string above_limit(const Results& results, const Run& run) {
  const Run* single = find_run(results, "single", 1);
  if (!single || !run.ok || !run.speedup || (run.devices == 1 && !run.speedup_low) || run.is_torch()) return "";
  const double least = run.speedup_low.value_or(*run.speedup), ideal = run.threads() / single->threads_per_device;
  if (run.on_cpu() && least > static_cast<double>(results.machine.cores) / single->threads_per_device)
    return "above the cores";
  return least > ideal ? "above ideal" : "";
}

int largest_fair(const Results& results) {
  int devices = 0;
  for (const Run& run : results.runs)
    if (wraps(run) && run.devices > 1 && !oversubscribed(results, run)) devices = std::max(devices, run.devices);
  return devices;
}

void add_speedups(const Results& results, Evidence& evidence) {
  const int devices = largest_fair(results);
  std::vector<std::string> items;
  for (const Run* const run : wrapped_on(results, devices)) {
    const std::optional<Interval> speedup = speedup_interval(*run);
    if (speedup && speedup->excludes(1))
      items.push_back(concat(mode_of(results, *run), " ", times_text(*speedup)));
    else if (speedup)
      evidence.withheld.push_back(concat("the speed-up of ", named(results, *run), " (", times_range(*speedup), ")"));
  }
  const Run* copies = find_run(results, "copies", devices);
  const std::string ceiling =
      copies && speedup_interval(*copies)
          ? concat(" and ", devices, " copies that exchange nothing reach ", speedup_text(*copies))
          : "";
  if (!items.empty())
    evidence.sentences.push_back(concat("At batch ", results.settings.batch, results.weak ? " of each of " : " on ",
                                        devices, " devices, where ", devices, "x would be ideal", ceiling,
                                        ", the speed-up over single ", results.weak ? "in samples a second " : "",
                                        "is ", listed(items), "."));
  add_backends(results, devices, evidence);
}

void add_losses(const Results& results, const std::string& mode, Evidence& evidence) {
  const Run* single = find_run(results, "single", 1);
  const Run* run = find_run(results, mode, largest_fair(results));
  if (!single || !run || !above_limit(results, *run).empty()) return;
  const double divided = ideal_share(*run, *single);
  std::vector<double> more_us;
  for (const std::size_t i : common_rounds(*run, *single))
    more_us.push_back(run->rounds_us[i] - divided * single->rounds_us[i]);
  const std::optional<Interval> extra = interval_of(more_us);
  if (!extra || extra->middle < 0.05 * single->step_us.sum() * divided) return;
  if (extra->low <= 0) {
    evidence.withheld.push_back("the loss of " + named(results, *run));
    return;
  }
  const auto apart = [](const Run& each) { return each.on_cpu() || each.eager_parts; };
  const bool parts = apart(*single) && apart(*run);
  const std::string why = parts ? cause(losses_of(*run, *single), *extra) : "";
  if (why.empty()) evidence.withheld.push_back("what causes the loss of " + named(results, *run));
  const std::string ideal = results.weak ? " of as many rows for its device" : concat(" divided by ", run->devices);
  evidence.sentences.push_back(
      concat(named(results, *run), " takes ", us_text(*extra), " a step more than single's step", ideal, why, "."));
}

void add_synchronisation(const Results& results, Evidence& evidence) {
  std::vector<std::string> items;
  for (const Run& run : results.runs)
    if (const std::optional<Interval> us = interval_of(run.synchronisation_us); run.ok && us)
      items.push_back(concat(row_name(results, run), " ", run.devices, " ", us_text(*us)));
  if (!items.empty())
    evidence.sentences.push_back(
        concat("Bringing PyTorch's gradients together adds to a step, against steps without: ", listed(items), "."));
}

void add_doubts(const Results& results, Evidence& evidence) {
  std::vector<double> shares;
  std::size_t rows = 0;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    rows += run.other_programs_share.has_value();
    if (run.other_programs_share.value_or(0) > kOthersShown) shares.push_back(100 * *run.other_programs_share);
    if (const std::string limit = above_limit(results, run); !limit.empty())
      evidence.sentences.push_back(concat(named(results, run), " reads ", speedup_text(run), ", ", limit,
                                          ": marked with ! and left out of the other sentences."));
  }
  if (shares.empty()) return;
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  const std::string low = fixed(*least, 0), high = fixed(*most, 0);
  evidence.sentences.push_back(concat("Other programs had ", low, low == high ? "" : " to " + high,
                                      " % of the cores while ", shares.size(), " of ", rows, " rows were timed."));
}

}  // namespace duet::cli
