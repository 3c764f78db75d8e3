// How often layers have drawn random numbers for one batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lib/random.h"
#include "lib/tensor.h"

namespace duet::nn {

/// Counts the draws of each layer for the rows of a batch since the batch was delivered, so that a dropout that runs
/// twice on a batch, in one forward or in two, drops other elements the second time. Counts restart at 0 with the next
/// batch, with the same one where a loader delivers it again (Rows::delivery), and with another seed; batches that no
/// loader delivered are one where they have the same step. Used by one thread at a time.
class DrawCounts {
 public:
  /// Rows [begin, end) of a batch.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };

  /// The seed of a layer's next draw for `rows` rows of the batch with this stamp, or of the batch of this step where
  /// there is no stamp: `seed` for the first draw, two words of Philox(seed, n) for the n-th after it. Draws for other
  /// rows do not count, so that parts of a batch have the numbers that they have in the whole.
  std::uint64_t next_seed(std::uint64_t seed, std::uint32_t layer, const Rows& stamp, std::int64_t step,
                          std::int64_t rows) {
    begin_batch(seed, stamp, step);
    const Range own = whole_.end > 0 ? whole_ : Range{stamp.first, stamp.first + rows};
    const std::uint32_t draws = count({.layer = layer, .stamped = stamp.stamped(), .of = own});
    return draws == 0 ? seed : Philox(seed, draws).word64();
  }

  /// For a replica, which draws for a piece of `rows`: counts as if it drew for all of them, so that counts do not
  /// depend on how a batch is cut. They begin as the model's.
  void begin_piece(const DrawCounts& model, const Range& rows) {
    take(model);
    whole_ = model.whole_.end > 0 ? model.whole_ : rows;
  }
  /// Goes on from the counts of another.
  void take(const DrawCounts& other) {
    seed_ = other.seed_;
    stamp_ = other.stamp_;
    step_ = other.step_;
    runs_ = other.runs_;
  }

 private:
  struct Run {
    std::uint32_t layer = 0;
    bool stamped = false;
    Range of;
    std::uint32_t draws = 0;
  };

  void begin_batch(std::uint64_t seed, const Rows& stamp, std::int64_t step) {
    const bool delivered = stamp.stamped() && (stamp.step != stamp_.step || stamp.delivery != stamp_.delivery);
    if (seed != seed_ || delivered) runs_.clear();
    if (!stamp.stamped() && step != step_) std::erase_if(runs_, [](const Run& run) { return !run.stamped; });
    seed_ = seed;
    if (stamp.stamped()) stamp_ = stamp;
    if (!stamp.stamped()) step_ = step;
  }

  /// How often the layer has drawn for any of these rows; counts this draw.
  std::uint32_t count(const Run& now) {
    std::uint32_t draws = 0;
    Run* same = nullptr;
    for (Run& run : runs_) {
      if (run.layer != now.layer || run.of.end <= now.of.begin || now.of.end <= run.of.begin) continue;
      draws = std::max(draws, run.draws);
      if (run.stamped == now.stamped && run.of.begin == now.of.begin && run.of.end == now.of.end) same = &run;
    }
    if (same == nullptr) same = &runs_.emplace_back(now);
    same->draws = draws + 1;
    return draws;
  }

  std::uint64_t seed_ = 0;
  Rows stamp_;              // of the last batch that had one
  std::int64_t step_ = -1;  // of the last batch without
  Range whole_;             // of the batch that replicas have pieces of; empty: this is not a replica's
  std::vector<Run> runs_;
};

}  // namespace duet::nn
