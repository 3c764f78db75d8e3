// How far a training is.
#pragma once

#include <cstdint>

namespace duet::data {

/// Where a training goes on. A step is one of the global batch, so a position has the same meaning for any number of
/// devices: those that take it read the rest of the epoch's order in batches of their own shares.
struct Position {
  std::int64_t epoch = 0;  // epochs that are over
  std::int64_t step = 0;   // steps of the next one that are done; all of them: its batches are read, but it is not over
  std::int64_t batch = 0;  // rows of its global batches, which a loader compares with its own; 0: unknown
  /// Whether both are the same place, whatever is known of the batches.
  bool operator==(const Position& other) const { return epoch == other.epoch && step == other.step; }
};

}  // namespace duet::data
