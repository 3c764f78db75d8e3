#include "cli/report/speed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "cli/report/report.h"
#include "cli/system/number_text.h"
#include "lib/base/text.h"
#include "lib/error.h"

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

std::string times_text(const Interval& interval) {
  return concat(fixed(interval.middle, 2), "x ±", fixed(std::max(0.01, interval.half_width()), 2));
}

std::string range_text(const Interval& interval) {
  return concat(fixed(interval.low, 2), "x..", fixed(interval.high, 2), "x");
}

std::string us_text(const Interval& interval) {
  return concat(grouped(std::llround(interval.middle)), " us ±", grouped(std::llround(interval.half_width())));
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
  for (std::size_t i = 0; i < std::min(run.rounds_step_us.size(), single.rounds_step_us.size()); ++i) {
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

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b, double factor) {
  std::vector<double> all;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) all.push_back(a[i] - factor * b[i]);
  return all;
}

/// "; 251 us ±20 of it is ..."; empty where no cause stands out of the others.
std::string cause(const Losses& groups, const Interval& extra) {
  const LostTo &most = groups[0], &next = groups[1];
  const std::optional<Interval> own = interval_of(most.us), ahead = interval_of(difference(most.us, next.us, 1));
  if (!own || own->low <= 0 || !ahead || ahead->low <= kAhead * extra.middle || most.middle < extra.middle / 3)
    return "";
  if (most.middle >= 0.95 * extra.middle) return concat("; all of it is ", most.to);
  return concat("; ", us_text(*own), " of it is ", most.to);
}

void add_backends(const Results& results, int devices, Evidence& evidence) {
  const Run* first = find_run(results, "ddp", devices);
  for (const Run* const run : wrapped_on(results, devices)) {
    if (!first || run == first || run->mode != "ddp" || run->backend == first->backend) continue;
    const std::optional<Interval> ratio = ratio_interval(run->rounds_us, first->rounds_us);
    const std::string what = concat(named(results, *first), " against ", mode_of(results, *run));
    if (ratio && ratio->excludes(1))
      evidence.sentences.push_back(
          concat(named(results, *first), " is ", times_text(*ratio), " as fast as ", mode_of(results, *run), "."));
    else if (ratio)
      evidence.withheld.push_back(concat(what, " (", range_text(*ratio), ")"));
  }
}

/// Where threads of one device are faster than `best`.
std::string all_cores_instead(const Results& results, const Run& best) {
  for (const Run& run : results.runs) {
    const std::optional<Interval> speedup = speedup_interval(run);
    if (!run.ok || !all_cores_row(results, run) || !speedup || !above_limit(results, run).empty()) continue;
    const std::optional<Interval> ratio = interval_of(speed_ratios(run, best));
    if (speedup->low > 1 && ratio && ratio->low > 1)
      return concat("Use single on all cores here: ", times_text(*speedup), " the speed of one thread and ",
                    times_text(*ratio), " that of ", named(results, best));
  }
  return "";
}

}  // namespace

std::optional<Interval> speedup_interval(const Run& run) {
  if (!run.speedup || !run.speedup_low || !run.speedup_high) return std::nullopt;
  return Interval{*run.speedup, *run.speedup_low, *run.speedup_high};
}

std::string speedup_text(const Run& run) {
  if (!run.speedup) return "-";
  const std::optional<Interval> interval = speedup_interval(run);
  return interval ? times_text(*interval) : fixed(*run.speedup, 2) + "x";
}

std::string above_limit(const Results& results, const Run& run) {
  const Run* single = find_run(results, "single", 1);
  if (!single || !run.ok || !run.speedup || (run.devices == 1 && !run.speedup_low)) return "";
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
      evidence.withheld.push_back(concat("the speed-up of ", named(results, *run), " (", range_text(*speedup), ")"));
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
  const std::optional<Interval> extra = interval_of(difference(run->rounds_us, single->rounds_us, divided));
  if (!extra || extra->middle < 0.05 * median(single->rounds_us) * divided) return;
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

std::string fastest_mode(const Results& results) {
  std::vector<const Run*> runs = wrapped_on(results, largest_fair(results));
  runs.erase(std::remove_if(runs.begin(), runs.end(), [](const Run* run) { return !speedup_interval(*run); }),
             runs.end());
  if (runs.empty()) return "";
  const Run& best =
      **std::max_element(runs.begin(), runs.end(), [](auto a, auto b) { return *a->speedup < *b->speedup; });
  const Interval speedup = *speedup_interval(best);
  const std::string name = named(results, best);
  const std::string unit = results.weak ? " in samples a second (weak scaling)" : "";
  if (const std::string instead = all_cores_instead(results, best); !instead.empty()) return instead;
  if (speedup.high < 1) return concat("Use single here: ", name, " reaches ", times_text(speedup), " its speed", unit);
  if (speedup.low <= 1)
    return concat("No gain over single was measured here: ", name, " is at ", range_text(speedup), unit);
  std::string text = concat("Use ", name, " here: ", times_text(speedup), " single's speed", unit);
  const auto other = std::find_if(runs.begin(), runs.end(), [&](const Run* run) { return run->mode != best.mode; });
  if (other == runs.end()) return text;
  const std::optional<Interval> ratio = ratio_interval((*other)->rounds_us, best.rounds_us);
  if (ratio && ratio->low > 1)
    return text + concat(" and ", times_text(*ratio), " that of ", mode_of(results, **other));
  return concat("Use dp or ddp on ", best.devices, " devices here: ", times_text(speedup), " single's speed", unit,
                ", and no difference between them was measured");
}

}  // namespace duet::cli
