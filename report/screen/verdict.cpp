#include "report/screen/verdict.h"

#include <algorithm>

#include "cli/system/number_text.h"
#include "lib/base/text.h"
#include "report/report.h"
#include "report/speed.h"

namespace duet::cli {
namespace {

/// A run that may be the answer.
struct Candidate {
  const Run* run;
  Interval speedup;
};
using Candidates = std::vector<Candidate>;

/// Runs for which `wanted` holds that have an interval that can be believed; the highest lower end first.
template <class Wanted>
Candidates candidates(const Results& results, const Wanted& wanted) {
  Candidates all;
  for (const Run& run : results.runs) {
    const std::optional<Interval> speedup = speedup_interval(run);
    if (run.ok && speedup && wanted(run) && !oversubscribed(results, run) && above_limit(results, run).empty())
      all.push_back({&run, *speedup});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.speedup.low > b.speedup.low; });
  return all;
}

Candidates wrapped(const Results& results) {
  return candidates(results, [](const Run& run) { return (run.mode == "dp" || run.mode == "ddp") && run.devices > 1; });
}

bool gains(const Candidate& one) { return one.speedup.low > 1; }
bool loses(const Candidate& one) { return one.speedup.high < 1; }

/// Whether no difference between the two was measured.
bool tied(const Run& a, const Run& b) {
  const std::optional<Interval> ratio = ratio_interval(speed_ratios(a, b));
  return !ratio || !ratio->excludes(1);
}

std::string range(const Interval& interval) {
  return concat("(", fixed(interval.low, 2), "..", fixed(interval.high, 2), ")");
}
std::string times(const Candidate& one) { return fixed(one.speedup.middle, 2) + " times"; }

std::string mode_of(const Results& results, const Run& run) {
  return run.mode + (run.mode == "ddp" && several_backends(results) ? " over " + run.backend : "");
}

/// The best of each mode on as many devices as the first candidate has.
Candidates alternatives(const Candidates& all) {
  Candidates best;
  for (const Candidate& one : all) {
    const bool known =
        std::any_of(best.begin(), best.end(), [&](const Candidate& other) { return other.run->mode == one.run->mode; });
    if (one.run->devices == all.front().run->devices && !known) best.push_back(one);
  }
  return best;
}

/// "2 devices train 1.62 times as fast as one (1.55..1.70), with dp as with ddp".
std::string devices_clause(const Results& results, const Candidates& best) {
  const Candidate& first = best.front();
  std::string text = concat(first.run->devices, " devices train ", times(first),
                            results.weak ? " as many samples a second as one " : " as fast as one ",
                            range(first.speedup), ", with ", mode_of(results, *first.run));
  for (std::size_t i = 1; i < best.size(); ++i) {
    const std::string mode = mode_of(results, *best[i].run);
    if (tied(*first.run, *best[i].run) && gains(best[i]))
      text += " as with " + mode;
    else if (gains(best[i]) || loses(best[i]))
      text += concat("; with ", mode, " ", times(best[i]), " ", range(best[i].speedup));
    else
      text += concat("; with ", mode, " no gain was measured ", range(best[i].speedup));
  }
  return text;
}

/// No mode gains. Where copies do, the rounds were too uneven to say so of dp and ddp.
std::string no_gain(const Results& results, const Candidates& best) {
  const int devices = best.front().run->devices;
  std::vector<std::string> items;
  for (const Candidate& one : best) items.push_back(concat(mode_of(results, *one.run), " ", range(one.speedup)));
  const std::string at = concat(devices, " devices are at these times its speed: ", listed(items), ".");
  if (std::all_of(best.begin(), best.end(), loses)) return concat("One device is the fastest here: ", at);
  const Run* const copies = find_run(results, "copies", devices);
  const std::optional<Interval> ceiling = copies ? speedup_interval(*copies) : std::nullopt;
  if (ceiling && ceiling->low > 1)
    return concat(
        "Nothing can be concluded, as the rounds differ too much: where one device is at 1, copies that "
        "exchange nothing are at ",
        range(*ceiling), ", ", listed(items), ".");
  return concat("No gain over one device was measured: ", at);
}

}  // namespace

const Run* best_wrapped(const Results& results) {
  const Candidates all = wrapped(results);
  return all.empty() ? nullptr : all.front().run;
}

std::string verdict(const Results& results) {
  const Candidates several = wrapped(results);
  const Candidates whole = candidates(results, [&](const Run& run) { return all_cores_row(results, run); });
  const Candidates best = several.empty() ? Candidates() : alternatives(several);
  const bool on_all_cores = !whole.empty() && gains(whole.front());
  if (best.empty() && !on_all_cores) return "";
  const bool on_devices = !best.empty() && gains(best.front());
  if (!on_all_cores) return on_devices ? devices_clause(results, best) + "." : no_gain(results, best);
  const Candidate& all_cores = whole.front();
  const std::string cores = concat("One device on all ", all_cores.run->threads_per_device, " cores");
  const std::string alone =
      concat(cores, " trains ", times(all_cores), " as fast as on one ", range(all_cores.speedup), ".");
  if (best.empty()) return alone;
  if (!on_devices) return concat(alone, " ", no_gain(results, best));
  if (tied(*all_cores.run, *best.front().run))
    return concat(devices_clause(results, best), ". ", cores, " is as fast.");
  const std::optional<Interval> ratio = ratio_interval(speed_ratios(*all_cores.run, *best.front().run));
  if (ratio->low > 1) return concat(alone, " ", devices_clause(results, best), ".");
  return concat(devices_clause(results, best), ". ", cores, " reaches ", times(all_cores), " ",
                range(all_cores.speedup), ".");
}

std::string against_torch(const Results& results) {
  const Run* run = best_wrapped(results);
  if (!run) run = find_run(results, "single", 1);
  const Run* best = nullptr;
  for (const Run& other : results.runs)
    if (run && other.ok && other.is_plain_torch() && other.threads() == run->threads() &&
        (!best || other.samples_per_s > best->samples_per_s))
      best = &other;
  const std::optional<Interval> ratio = best ? ratio_interval(speed_ratios(*run, *best)) : std::nullopt;
  if (!ratio) return "";
  const std::string how = ratio->excludes(1) ? fixed(ratio->middle, 2) + " times as fast as" : "as fast as";
  return concat(mode_of(results, *run), " on ", run->devices, run->devices == 1 ? " device" : " devices", " is ", how,
                " PyTorch's best on as many cores, ", row_name(results, *best), " (", fixed(ratio->low, 2), "..",
                fixed(ratio->high, 2), ").");
}

std::string answer(const Results& results) {
  if (const std::string text = verdict(results); !text.empty()) return text;
  std::vector<std::string> reasons;
  if (largest_fair(results) < 2) reasons = crowded(results);
  std::string text = concat("Nothing is concluded", reasons.empty() ? ": too few rounds (--time-budget)." : ".");
  for (const std::string& reason : reasons) text += " " + reason;
  return text;
}

}  // namespace duet::cli
