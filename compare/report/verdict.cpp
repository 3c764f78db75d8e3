// The answer of a comparison: which mode to use here, and by how much it is the fastest.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/base/text.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

using Candidates = std::vector<const Run*>;

/// Believable runs for which `wanted` holds; the highest lower end first.
template <class Wanted>
Candidates candidates(const Results& results, const Wanted& wanted) {
  Candidates all;
  for (const Run& run : results.runs)
    if (wanted(run) && believable(results, run)) all.push_back(&run);
  std::stable_sort(all.begin(), all.end(),
                   [](const Run* a, const Run* b) { return *a->speedup_low > *b->speedup_low; });
  return all;
}

Candidates wrapped_runs(const Results& results) {
  return candidates(results, [](const Run& run) { return wraps(run) && run.devices > 1; });
}

bool gains(const Run& run) { return side_of(speedup_interval(run), 1) == Side::above; }
bool loses(const Run& run) { return side_of(speedup_interval(run), 1) == Side::below; }

std::string range(const Run& run) { return times_ends(speedup_interval(run).value()); }
std::string times(const Run& run) { return fixed(*run.speedup, 2) + " times"; }

/// The best of each mode on as many devices as the first candidate has.
Candidates best_of_modes(const Candidates& all) {
  Candidates best;
  for (const Run* const run : all) {
    const bool known =
        std::any_of(best.begin(), best.end(), [&](const Run* other) { return other->mode == run->mode; });
    if (run->devices == all.front()->devices && !known) best.push_back(run);
  }
  return best;
}

/// "2 devices train 1.62 times as fast as one (1.55..1.70), with dp as with ddp".
std::string devices_clause(const Results& results, const Candidates& best) {
  const Run& first = *best.front();
  std::string text = concat(first.devices, " devices train ", times(first),
                            results.weak ? " as many samples a second as one " : " as fast as one ", range(first),
                            ", with ", mode_over(results, first));
  for (std::size_t i = 1; i < best.size(); ++i) {
    const Run& run = *best[i];
    const std::string mode = mode_over(results, run);
    const std::optional<Interval> ratio = speed_against(run, first);
    if (side_of(ratio, 1) == Side::open && equal_speeds(ratio))
      text += " as with " + mode;
    else if (ratio && side_of(ratio, 1) == Side::open && gains(run))
      text += concat("; with ", mode, " ", times(run), " ", range(run), ", which ",
                     not_told_apart(*ratio, mode_over(results, first)));
    else if (gains(run) || loses(run))
      text += concat("; with ", mode, " ", times(run), " ", range(run));
    else
      text += concat("; with ", mode, " no gain was measured ", range(run));
  }
  return text;
}

/// No mode gains. Where copies do, the rounds were too uneven to say so of dp and ddp.
std::string no_gain(const Results& results, const Candidates& best) {
  const int devices = best.front()->devices;
  std::vector<std::string> items;
  for (const Run* const run : best) items.push_back(mode_over(results, *run) + " " + range(*run));
  const std::string at = concat(devices, " devices are at these times its speed: ", listed(items), ".");
  if (std::all_of(best.begin(), best.end(), [](const Run* run) { return loses(*run); }))
    return concat("One device is faster than ", devices, ": ", at);
  const Run* const copies = find_run(results, "copies", devices);
  if (copies && gains(*copies))
    return concat(
        "Nothing can be concluded, as the rounds differ too much: where one device is at 1, copies that "
        "exchange nothing are at ",
        range(*copies), ", ", listed(items), ".");
  return "No gain over one device was measured: " + at;
}

/// The run of duet that is compared with PyTorch's; may be null.
const Run* run_against_torch(const Results& results) {
  const Run* const run = best_wrapped(results);
  return run ? run : find_run(results, "single", 1);
}

/// Empty where nothing was timed in rounds on devices with cores of their own.
std::string verdict(const Results& results) {
  const Candidates whole = candidates(results, [&](const Run& run) { return all_cores_row(results, run); });
  const Candidates best = best_of_modes(wrapped_runs(results));
  const bool on_devices = !best.empty() && gains(*best.front());
  const std::string devices = best.empty() ? ""
                              : on_devices ? devices_clause(results, best) + "."
                                           : no_gain(results, best);
  if (whole.empty() || !gains(*whole.front())) return devices;
  const Run& all_cores = *whole.front();
  const std::string cores = concat("One device on all ", all_cores.threads_per_device, " cores");
  const std::string alone = concat(cores, " trains ", times(all_cores), " as fast as on one ", range(all_cores), ".");
  if (!on_devices) return devices.empty() ? alone : devices + " " + alone;
  const std::optional<Interval> ratio = speed_against(all_cores, *best.front());
  const bool open = ratio && side_of(ratio, 1) == Side::open;
  if (open && equal_speeds(ratio)) return concat(devices, " ", cores, " is as fast.");
  return concat(devices, " ", cores, " reaches ", times(all_cores), " ", range(all_cores),
                open ? ", which " + not_told_apart(*ratio, mode_on(results, *best.front())) : "", ".");
}

}  // namespace

const Run* best_wrapped(const Results& results) {
  const Candidates all = wrapped_runs(results);
  return all.empty() ? nullptr : all.front();
}

std::string answer(const Results& results) {
  if (const std::optional<Load> load = load_of(results)) {
    const std::string low = fixed(100 * load->least, 0), high = fixed(100 * load->most, 0);
    return concat("Other programs used ", low, low == high ? "" : " to " + high,
                  " % of the cores in most rounds: nothing is concluded. Run the comparison again when they have "
                  "finished.");
  }
  if (const std::string text = verdict(results); !text.empty()) return text;
  std::vector<std::string> reasons;
  if (largest_fair(results) < 2) reasons = crowded(results);
  const bool ran = any_run(results, [](const Run& run) { return wraps(run) && run.devices > 1; });
  const char* const why =
      ran ? ": too few rounds (--time-budget)." : ": no row of dp or ddp on several devices has a result.";
  std::string text = concat("Nothing is concluded", reasons.empty() ? why : ".");
  for (const std::string& reason : reasons) text += " " + reason;
  return text;
}

const Run* best_torch(const Results& results) {
  const Run* const run = run_against_torch(results);
  const Run* best = nullptr;
  for (const Run& other : results.runs)
    if (run && other.ok && other.is_plain_torch() && other.threads() == run->threads() &&
        (!best || other.samples_per_s > best->samples_per_s))
      best = &other;
  return best;
}

std::string against_torch(const Results& results) {
  if (load_of(results)) return "";
  const Run* run = run_against_torch(results);
  const Run* best = best_torch(results);
  const std::optional<Interval> ratio = best ? speed_against(*run, *best) : std::nullopt;
  if (!ratio) return "";
  const std::string duet = mode_on(results, *run),
                    torch = concat("PyTorch's best on as many cores, ", row_name(results, *best));
  if (side_of(ratio, 1) != Side::open)
    return concat(duet, " is ", fixed(ratio->middle, 2), " times as fast as ", torch, " ", times_ends(*ratio), ".");
  if (equal_speeds(ratio)) return concat(duet, " is as fast as ", torch, " ", times_ends(*ratio), ".");
  return concat(duet, " ", not_told_apart(*ratio, torch), ".");
}

}  // namespace duet::cli
