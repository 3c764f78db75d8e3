// The sentences of a comparison.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/report.h"
#include "report/screen/verdict.h"
#include "report/speed.h"

namespace duet::cli {
namespace {

bool timed_in_rounds(const Results& results) {
  return std::any_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return !run.rounds_us.empty(); });
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
      if (!run.ok || run.mode != mode || reference_of(results, run) != single) continue;
      if (run.parameters_sha256 == single->parameters_sha256)
        same.insert(run.devices);
      else if (run.on_cpu() && !run.differs_by_design())
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

/// Of ddp against dp, where single trained another batch.
void bits_of_other_batches(const Results& results, std::vector<std::string>& out) {
  std::set<int> same;
  for (const Run& run : results.runs) {
    const Run* const reference = reference_of(results, run);
    if (!run.ok || run.mode != "ddp" || !reference || reference->mode != "dp") continue;
    if (run.parameters_sha256 == reference->parameters_sha256)
      same.insert(run.devices);
    else if (run.on_cpu() && !run.differs_by_design())
      out.push_back(concat("ddp on ", run.devices, " devices does not end with dp's bits."));
  }
  std::vector<std::string> numbers;
  for (const int devices : same) numbers.push_back(std::to_string(devices));
  if (!same.empty()) out.push_back(concat("ddp ended with the same bits as dp on ", listed(numbers), " devices."));
}

void statistics(const Results& results, std::vector<std::string>& out) {
  const auto any_per_device = [&results](bool averaging) {
    return std::any_of(results.runs.begin(), results.runs.end(), [averaging](const Run& run) {
      return run.ok && run.per_device_statistics && (run.mode == "averaging") == averaging;
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
  if (std::any_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.ok && run.library_sums; }))
    out.emplace_back(
        "LibTorch adds up over each device's rows in an order of its own, so results depend on the number of devices "
        "and threads by rounding; its dropout draws other numbers for each device's rows.");
  if (std::any_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.ok && run.added_uses; }))
    out.emplace_back(
        "A parameter is used more than once in a step: each device adds up the gradients of its uses before the "
        "devices' "
        "are, so results depend on the number of devices by rounding.");
}

}  // namespace

std::vector<std::string> crowded(const Results& results) {
  constexpr const char* kOverhead = ": this measures overhead, not scaling.";
  std::set<int> counts;
  std::set<std::string> shared;
  for (const Run& run : results.runs) {
    if (run.ok && !sharing(run).empty())
      shared.insert(sharing(run));
    else if (run.ok && oversubscribed(results, run) && !run.is_torch())
      counts.insert(run.devices);
  }
  std::vector<std::string> sentences;
  const int cores = results.machine.cores;
  for (const std::string& what : shared) sentences.push_back(what + kOverhead);
  for (const int devices : counts)
    sentences.push_back(concat(devices, " devices share ", cores, cores == 1 ? " core" : " cores", kOverhead));
  return sentences;
}

std::vector<std::string> without_a_result(const Results& results) {
  std::vector<std::string> sentences, not_finite;
  bool any = false, timed = false;
  for (const Run& run : results.runs) {
    any = any || run.ok;
    timed = timed || (run.ok && run.timed());
    if (run.ok && !run.train_loss.empty() && !std::isfinite(run.train_loss.back()))
      not_finite.push_back(concat(row_name(results, run), " ", run.devices));
  }
  if (any && !timed)
    sentences.push_back(concat(kNothingToTime, " (", batch_text(results), ", ", grouped(results.settings.train_images),
                               " training images)."));
  if (!not_finite.empty())
    sentences.push_back(
        concat("The loss of ", listed(not_finite),
               " is not finite: --check-finite ends a training where that begins and says where it arose."));
  return sentences;
}

std::vector<std::string> findings(const Results& results) {
  std::vector<std::string> out;
  const auto any = [&](const auto& holds) {
    return std::any_of(results.runs.begin(), results.runs.end(), [&](const Run& run) { return run.ok && holds(run); });
  };
  out = without_a_result(results);
  Evidence evidence;
  if (timed_in_rounds(results)) {
    add_speedups(results, evidence);
    // A GPU runs asynchronously: the host's clock does not measure how long each part took there.
    if (std::all_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.on_cpu(); })) {
      add_losses(results, "dp", evidence);
      add_losses(results, "ddp", evidence);
      add_waiting_findings(results, largest_fair(results), evidence.sentences);
    }
    if (const std::string sentence = against_torch(results); !sentence.empty()) evidence.sentences.push_back(sentence);
    add_synchronisation(results, evidence);
    add_doubts(results, evidence);
    if (!evidence.withheld.empty())
      evidence.sentences.push_back("Withheld, because the rounds differ by more: " + listed(evidence.withheld) + ".");
  } else if (any([](const Run& run) { return run.timed(); })) {
    evidence.sentences.emplace_back(
        "Nothing is concluded from these speeds: cells were not timed in rounds (--time-budget).");
  }
  out.insert(out.end(), evidence.sentences.begin(), evidence.sentences.end());
  for (const std::string& sentence : crowded(results)) out.push_back(sentence);
  if (any([](const Run& run) { return run.graph; }) && any([](const Run& run) { return !run.graph; }))
    out.push_back("Only steps of rows marked graph were replayed as CUDA graphs: --graph off compares all alike.");
  statistics(results, out);
  bits(results, out);
  bits_of_other_batches(results, out);
  for (const std::string& note : results.torch_notes) out.push_back(note + ".");
  return out;
}

std::string headline(const Results& results) {
  bool all_same = true, any = false, failed = false;
  for (const Run& run : results.runs) {
    failed = failed || !run.ok;
    if (!run.ok || (run.mode != "dp" && run.mode != "ddp")) continue;
    any = true;
    all_same = all_same && same_result(results, run) == "yes";
  }
  const std::size_t ways = results.runs.size();
  std::string text = verdict(results);
  if (text.empty()) text = concat("Trained in ", ways, ways == 1 ? " way." : " ways.");
  if (any && all_same) text += " dp and ddp ended with the same bits as single.";
  if (failed) text += " Not every mode ran to its end.";
  return text;
}

}  // namespace duet::cli
