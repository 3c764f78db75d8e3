// How far a training is.
#pragma once

#include <cstdint>

namespace duet::data {

/// Where a training goes on. A step is one of the global batch, so a position has the same meaning for any number of
/// devices: those that take it read the rest of the epoch's order in batches of their own shares.
struct Position {
  std::int64_t epoch = 0;  // epochs that are over
  std::int64_t step = 0;   // steps of the next one that are done; all of them: its batches are read, but it is not over
  bool operator==(const Position&) const = default;
};

}  // namespace duet::data
