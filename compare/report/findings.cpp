// The sentences of a comparison: speeds, what a step loses, waiting and moving, and bits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/options/options.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

/// Sentences, and what was not said because it does not stand out of the noise.
struct Evidence {
  std::vector<std::string> sentences{}, withheld{};

  template <class... Parts>
  void say(const Parts&... parts) {
    sentences.push_back(concat(parts...));
  }
};

constexpr double kOthersShown = 0.02;  // share of the cores above which other programs are mentioned

/// Speed-ups over single on as many devices, and ddp's backends against each other.
void add_speedups(const Results& results, int devices, Evidence& evidence) {
  // Whether an effect may be said; one that was measured and may not is withheld.
  const auto shown = [&](const std::optional<Interval>& effect, const std::string& what) {
    if (effect && side_of(effect, 1) == Side::open)
      evidence.withheld.push_back(what + " (" + times_range(*effect) + ")");
    return side_of(effect, 1) != Side::open;
  };
  std::vector<std::string> items;
  std::vector<const Run*> runs;
  for (const Run& run : results.runs) {
    if (!wraps(run) || run.devices != devices || !believable(results, run)) continue;
    runs.push_back(&run);
    if (const std::optional<Interval> speedup = speedup_interval(run);
        shown(speedup, "the speed-up of " + mode_on(results, run)))
      items.push_back(concat(mode_over(results, run), " ", times_text(*speedup)));
  }
  const Run* copies = find_run(results, "copies", devices);
  const std::string ceiling =
      copies && speedup_interval(*copies)
          ? concat(" and ", devices, " copies that exchange nothing reach ", speedup_text(*copies))
          : "";
  if (!items.empty())
    evidence.say("At batch ", results.settings.batch, results.weak ? " of each of " : " on ", devices,
                 " devices, where ", devices, "x would be ideal", ceiling, ", the speed-up over ", base_text(results),
                 results.weak ? " in samples a second is " : " is ", listed(items), ".");
  const Run* first = find_run(results, "ddp", devices);
  for (const Run* const run : runs) {
    if (!first || run == first || run->mode != "ddp" || run->backend == first->backend) continue;
    const std::optional<Interval> ratio = speed_against(*first, *run);
    const std::string a = mode_on(results, *first), b = mode_over(results, *run);
    if (shown(ratio, a + " against " + b)) evidence.say(a, " is ", times_text(*ratio), " as fast as ", b, ".");
  }
}

/// "; of it 251 us ±20: ..., 98 us: ..."; empty if no part may be named.
std::string causes_text(const Results& results, const Run& run) {
  const std::optional<Overhead> overhead = overhead_of(results, run);
  std::string text;
  for (const OverheadPart& cause : overhead ? causes_of(results, run, *overhead) : std::vector<OverheadPart>()) {
    const std::optional<Interval> interval = cause.interval();
    text += concat(text.empty() ? "; of it " : ", ", interval ? us_text(*interval) : us_text(*cause.us), ": ",
                   part_text(results, run, cause));
  }
  return text;
}

/// What keeps `mode` from being single's step divided by the devices.
void add_overhead(const Results& results, const std::string& mode, int devices, Evidence& evidence) {
  const Run* single = find_run(results, "single", 1);
  const Run* run = find_run(results, mode, devices);
  if (!single || !run || !above_limit(results, *run).empty()) return;
  const std::optional<Interval> lost = lost_of(results, *run);
  if (!lost || lost->middle < 0.05 * single->step_us.sum() * ideal_share(*run, *single)) return;
  if (side_of(lost, 0) != Side::above) return evidence.withheld.push_back("the lost time of " + mode_on(results, *run));
  const std::string why = causes_text(results, *run);
  if (why.empty()) evidence.withheld.push_back("what causes the lost time of " + mode_on(results, *run));
  const std::string ideal = results.weak ? " of as many rows for its device" : concat(" divided by ", run->devices);
  evidence.say(mode_on(results, *run), " takes ", us_text(*lost), " a step more than single's step", ideal, why, ".");
}

/// What limits the trust in all numbers: other programs, speed-ups above the ideal.
void add_doubts(const Results& results, Evidence& evidence) {
  std::vector<double> shares;
  std::size_t rows = 0;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    rows += run.other_programs_share.has_value();
    if (run.other_programs_share.value_or(0) > kOthersShown) shares.push_back(100 * *run.other_programs_share);
    if (const std::string limit = above_limit(results, run); !limit.empty())
      evidence.say(mode_on(results, run), " reads ", speedup_text(run), ", ", limit,
                   ": marked with ! and left out of the other sentences.");
  }
  if (shares.empty()) return;
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  const std::string low = fixed(*least, 0), high = fixed(*most, 0);
  evidence.say("Other programs used ", low, low == high ? "" : " to " + high, " % of the cores in ", shares.size(),
               " of ", rows, " rows.");
}

/// What bringing gradients together adds to a step of PyTorch's ranks.
void add_synchronisation(const Results& results, Evidence& evidence) {
  std::vector<std::string> items;
  for (const Run& run : results.runs)
    if (const std::optional<Interval> us = interval_of(run.synchronisation_us); run.ok && us)
      items.push_back(concat(row_label(results, run), " ", us_text(*us)));
  if (!items.empty())
    evidence.say("Bringing PyTorch's gradients together adds to a step, against steps without: ", listed(items), ".");
}

std::optional<Interval> interval_from(const std::optional<double>& middle, const std::vector<double>& ends) {
  if (!middle || ends.size() != 2) return std::nullopt;
  return Interval{*middle, ends[0], ends[1]};
}

/// "451 us (420..482)".
std::string with_ends(const Interval& interval) { return us_text(interval.middle) + " " + us_ends(interval); }

/// What backward hides of the communication of ranks.
std::string hidden_text(const Run& run) {
  const double share = std::clamp(1 - run.step_us.communication / run.communication_us, 0.0, 1.0);
  const std::string percent = fixed(100 * share, 0);
  return percent == "0" ? "Nothing of it is hidden behind backward." : percent + " % of it is hidden behind backward.";
}

/// Names the rank that hardly waits while the others wait for it.
std::string last_rank(const Run& run) {
  constexpr double kLittle = 0.2;       // share of what a rank waits on average
  constexpr double kNoteworthy = 0.05;  // share of the step
  const auto least = std::min_element(run.rank_waiting_us.begin(), run.rank_waiting_us.end());
  if (least == run.rank_waiting_us.end() || *least > kLittle * *run.communication_waiting_us ||
      *run.communication_waiting_us < kNoteworthy * run.step_us.sum())
    return "";
  const auto others = static_cast<double>(run.rank_waiting_us.size() - 1);
  const double sum = *run.communication_waiting_us * (others + 1) - *least;
  return concat(run.mode == "dp" ? " Replica " : " Rank ", least - run.rank_waiting_us.begin(),
                " is the last: it waits for ", us_text(*least), ", ", others > 1 ? "each of the others" : "the other",
                " for ", us_text(sum / others), ".");
}

/// What the ranks or replicas of a run wait for each other, and move; empty where that was not measured.
std::string waiting_text(const Results& results, const Run& run) {
  const std::string title = concat("A step of ", row_name(results, run), " on ", run.devices, " devices");
  if (!run.communication_waiting_us)
    return run.mode == "ddp" ? concat(title, " communicates for ", us_text(run.communication_us),
                                      ", waiting for other ranks included. ", hidden_text(run))
                             : "";
  const std::optional<Interval> waiting = interval_from(run.communication_waiting_us, run.waiting_interval_us);
  const std::optional<Interval> moving = interval_from(run.communication_moving_us, run.moving_interval_us);
  if (side_of(moving, 0) != Side::above) return "";
  const bool waits = side_of(waiting, 0) == Side::above;
  const std::string last = waits ? last_rank(run) : "";
  if (run.mode == "dp")
    return concat(
        title,
        waits ? concat(" waits for ", with_ends(*waiting), " for the last replica, within forward and backward, and")
              : "",
        " scatters, replicates, gathers and adds up gradients for ", with_ends(*moving), ".", last);
  return concat(title, " communicates for ", us_text(*run.communication_waiting_us + *run.communication_moving_us),
                ": ", waits ? with_ends(*waiting) + " is waiting for the last rank, " : "", with_ends(*moving),
                waits ? "" : " of it is", " moving and adding. ", hidden_text(run), last);
}

/// What ranks and replicas wait for each other, and move: a sentence per mode, and per backend.
void add_waiting(const Results& results, int devices, Evidence& evidence) {
  for (const char* const mode : {"averaging", "dp", "ddp"})
    for (const Run& run : results.runs)
      if (run.ok && run.mode == mode && run.devices == devices && run.communication_us > 0)
        if (const std::string text = waiting_text(results, run); !text.empty()) evidence.say(text);
}

/// Which runs of dp and ddp ended with the parameters of those that they are compared with.
void add_bits(const Results& results, std::vector<std::string>& out) {
  const Run* const single = find_run(results, "single", 1);
  std::vector<std::string> modes, others;
  std::set<int> counts, of_dp;
  bool same_counts = true;
  for (const char* mode : {"dp", "ddp"}) {
    std::set<int> same;
    for (const Run& run : results.runs) {
      if (run.mode != mode) continue;
      const Run* const reference = reference_of(results, run);
      const std::string result = same_result(results, run);
      if (result == "yes")
        (reference == single ? same : of_dp).insert(run.devices);
      else if (run.on_cpu() && result.starts_with("no"))
        others.push_back(concat(
            mode, " on ", run.devices, " devices does not end with ", reference->mode, "'s bits",
            run.first_differing_step ? concat("; step ", *run.first_differing_step, " is the first to differ.") : "."));
    }
    if (same.empty()) continue;
    same_counts = same_counts && (modes.empty() || same == counts);
    modes.emplace_back(mode);
    counts.insert(same.begin(), same.end());
  }
  const auto numbers = [](const std::set<int>& devices) {
    std::vector<std::string> texts;
    for (const int count : devices) texts.push_back(std::to_string(count));
    return listed(texts) + (devices == std::set<int>{1} ? " device" : " devices");
  };
  if (!modes.empty() && same_counts)
    out.push_back(concat(listed(modes), " ended with the same bits as single on ", numbers(counts),
                         " (parameters sha256 ", single->parameters_sha256.substr(0, 16), "...)."));
  out.insert(out.end(), others.begin(), others.end());
  if (!of_dp.empty()) out.push_back(concat("ddp ended with the same bits as dp on ", numbers(of_dp), "."));
}

/// Why parameters may depend on the number of devices.
void add_statistics(const Results& results, std::vector<std::string>& out) {
  const auto any_per_device = [&results](bool averaging) {
    return any_run(results, [averaging](const Run& run) {
      return run.per_device_statistics && (run.mode == "averaging") == averaging;
    });
  };
  if (any_per_device(true))
    out.emplace_back(
        "averaging sums up gradients alone: batch norm's running statistics are those of each rank's own images, and "
        "every rank tests its part of the images with its own.");
  if (any_per_device(false))
    out.push_back(
        concat("Batch norm has statistics of each device's own images: results depend on the number of devices by "
               "design",
               is_network_file(results.settings.model) ? "." : "; with --sync-bn they have the same bits."));
  if (any_run(results, [](const Run& run) { return run.library_sums; }))
    out.emplace_back(
        "LibTorch adds up over each device's rows in an order of its own, so results depend on the number of devices "
        "and threads by rounding; its dropout draws other numbers for each device's rows.");
  if (any_run(results, [](const Run& run) { return run.added_uses; }))
    out.emplace_back(
        "A parameter is used more than once in a step: each device adds up the gradients of its uses before the "
        "devices' are, so results depend on the number of devices by rounding.");
}

/// Sentences that the rounds support, and which effects are withheld because the rounds leave them open.
std::vector<std::string> timed_findings(const Results& results) {
  Evidence evidence;
  if (load_of(results)) {
    evidence.say(answer(results));
    return evidence.sentences;
  }
  const int devices = largest_fair(results);
  add_speedups(results, devices, evidence);
  // A GPU runs asynchronously: the host's clock does not measure how long each part took there.
  if (!any_run(results, [](const Run& run) { return !run.on_cpu(); })) {
    for (const char* const mode : {"dp", "ddp"}) add_overhead(results, mode, devices, evidence);
    add_waiting(results, devices, evidence);
  }
  if (const std::string sentence = against_torch(results); !sentence.empty()) evidence.say(sentence);
  add_synchronisation(results, evidence);
  add_doubts(results, evidence);
  if (!evidence.withheld.empty())
    evidence.say("Withheld, because the rounds differ by more: ", listed(evidence.withheld), ".");
  return evidence.sentences;
}

}  // namespace

std::vector<std::string> crowded(const Results& results) {
  std::set<std::pair<double, std::string>> shared;  // in the order of threads
  for (const Run& run : results.runs) {
    if (run.ok && !sharing(run).empty())
      shared.emplace(run.threads(), sharing(run));
    else if (run.ok && oversubscribed(results, run) && !run.is_torch())
      shared.emplace(run.threads(), shared_cores_text(run.devices, results.machine.cores, run.threads_per_device));
  }
  std::vector<std::string> sentences;
  for (const auto& [threads, what] : shared) sentences.push_back(concat(what, kMeasuresOverhead, "."));
  return sentences;
}

std::vector<std::string> without_a_result(const Results& results) {
  std::vector<std::string> sentences, not_finite;
  for (const Run& run : results.runs)
    if (run.ok && !run.train_loss.empty() && !std::isfinite(run.train_loss.back()))
      not_finite.push_back(concat(row_name(results, run), " ", run.devices));
  if (any_run(results, [](const Run&) { return true; }) &&
      !any_run(results, [](const Run& run) { return run.timed(); }))
    sentences.push_back(concat(kNothingToTime, " (", batch_text(results), ", ", grouped(results.settings.train_images),
                               " training images)."));
  if (!not_finite.empty())
    sentences.push_back(
        concat("The loss of ", listed(not_finite),
               " is not finite: --check-finite ends a training where that begins and says where it arose."));
  return sentences;
}

std::vector<std::string> findings(const Results& results) {
  std::vector<std::string> out = without_a_result(results);
  const auto add = [&](const std::vector<std::string>& more) { out.insert(out.end(), more.begin(), more.end()); };
  if (std::any_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return !run.rounds_us.empty(); }))
    add(timed_findings(results));
  else if (any_run(results, [](const Run& run) { return run.timed(); }))
    out.emplace_back("Nothing is concluded from these speeds: the rows were not timed in rounds (--time-budget).");
  add(crowded(results));
  if (any_run(results, [](const Run& run) { return run.graph; }) &&
      any_run(results, [](const Run& run) { return !run.graph; }))
    out.emplace_back("Only steps of rows marked graph were replayed as CUDA graphs: --graph off compares all alike.");
  add_statistics(results, out);
  add_bits(results, out);
  for (const std::string& note : results.torch_notes) out.push_back(note + ".");
  return out;
}

}  // namespace duet::cli
