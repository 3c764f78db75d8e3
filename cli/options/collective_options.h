// The options of duet bench all_reduce, all_gather, broadcast, reduce_scatter and all_to_all.
#pragma once

#include <array>

#include "cli/options/options.h"

namespace CLI {
class App;
}

namespace duet::cli {

inline constexpr std::array kCollectives = {"all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"};

/// Adds a subcommand for every collective to duet bench; the one that is used names itself in `options`.
void add_collectives(CLI::App& bench, CollectiveOptions& options);

}  // namespace duet::cli
