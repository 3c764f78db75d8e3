// What a comparison says of speed. A sentence names an effect only where its interval excludes that there is none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/results.h"
#include "measure/statistics.h"

namespace duet::cli {

/// Sentences, and what was not said because it does not stand out of the noise.
struct Evidence {
  std::vector<std::string> sentences, withheld;
};

/// Formats a speed-up by times_text(); without an interval "1.79x"; without a speed-up "-".
std::string speedup_text(const Run& run);
/// "above ideal" or "above the cores" where a speed-up is more than its devices or the machine's cores can explain;
/// empty where it is not.
std::string above_limit(const Results& results, const Run& run);
/// Speed-up of a run over single; none without rounds.
std::optional<Interval> speedup_interval(const Run& run);
/// Speed-up of a run that has one, for a picture: an interval of no width without rounds.
Interval drawn_speedup(const Run& run);
/// The largest number of devices above 1 that the cores carry and at least one of dp and ddp ran on; 0: none.
int largest_fair(const Results& results);

/// Speed-ups over single on as many devices, and ddp's backends against each other.
void add_speedups(const Results& results, Evidence& evidence);
/// Which part of a step keeps `mode` from being single's step divided by the devices.
void add_losses(const Results& results, const std::string& mode, Evidence& evidence);
/// What bringing gradients together adds to a step of PyTorch's ranks.
void add_synchronisation(const Results& results, Evidence& evidence);
/// What limits the trust in all numbers: other programs, speed-ups above the ideal.
void add_doubts(const Results& results, Evidence& evidence);

}  // namespace duet::cli
