// What duet bench faults measured, and how its reports show it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/system/machine.h"
#include "cli/train/fault_log.h"

namespace duet::cli {

/// A training under kills, or an undisturbed one, over all rounds: a row of the table.
struct FaultRun {
  std::string mode{};  // "elastic", "restarts"; PyTorch's begin with "torch ", undisturbed ones end with "undisturbed"
  int devices = 1;
  bool ok = true;
  std::string error{};                     // why not
  std::vector<double> time_s{};            // of each round: from the start of the program to the end of the last step
  std::optional<double> slowdown{};        // median over rounds of time_s over that of the undisturbed training
  std::int64_t kills = 0;                  // in each round
  std::vector<std::int64_t> lost_steps{};  // of each round: begun before a kill, and computed again
  std::vector<double> recovery_s{};        // of all kills: from SIGKILL to the end of the next step
  std::string parameters_sha256{};         // of the first round
  std::optional<bool> same_bits{};         // in all rounds those of the undisturbed training; null for that one
  // The first round: the steps that were complete, in the order of time, when, and when a rank was killed.
  std::vector<std::int64_t> progress_step{};
  std::vector<double> progress_s{}, kills_s{};
  std::vector<std::string> hashes{};  // parameters_sha256 of each round; not in JSON
  std::string colour{};               // in the picture; not in JSON
};

/// Adds a round to a run. Throws DataError for events of a training that did not go on after a kill, or not to the end.
void add_round(FaultRun& run, const std::vector<FaultEvent>& events, std::int64_t started_ns, std::int64_t steps);

struct FaultResults {
  std::string version = DUET_VERSION;
  Machine machine{};
  FaultOptions settings{};        // with the name of the data that were found
  std::vector<RankKill> kills{};  // of each training but the undisturbed ones
  std::vector<FaultRun> runs{};   // each behind the undisturbed training of the same library
  std::vector<std::string> torch_notes{};
};

/// Fills slowdown and same_bits.
void compare_with_undisturbed(FaultResults& results);

/// Whether no training failed, and none of duet's has other bits than the undisturbed one.
bool all_survive(const FaultResults& results);

/// A row for each run, below a header; that of a failed one ends with the reason.
std::vector<std::vector<std::string>> fault_table(const FaultResults& results);
/// "3 kills in 400 steps: elastic takes 1.08 times as long as undisturbed, restarts 1.70 times and
/// torch restarts takes 2.10 times as long as torch undisturbed."
std::string fault_verdict(const FaultResults& results);
/// "rank 1 in step 88 and rank 0 in step 201".
std::string kills_text(const FaultResults& results);

/// results.json, results.csv (a line for each run, lists joined by blanks) and index.html.
std::string to_json(const FaultResults& results);
std::string to_csv(const FaultResults& results);
std::string to_html(const FaultResults& results, const std::string& command_line);

}  // namespace duet::cli
