// Which samples a loader reads, in which order. samplers/ implements these interfaces.
#pragma once

#include <cstdint>
#include <span>

#include "lib/tensor.h"

namespace duet::data {

/// A part of an order that ranks share out.
struct OrderPart {
  int rank = 0, ranks = 1;
  std::uint64_t whole = 0;  // hash of the whole order of the epoch, the same on all ranks; 0: unknown
};

/// An order of sample indices, new for every epoch. Not thread-safe while set_epoch runs; const functions may be called
/// from many threads between two calls of it.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of indices in an epoch, the same for all epochs.
  virtual std::int64_t size() const = 0;
  /// Fixes the order of that epoch. Called by the loader before each epoch.
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// The indices of the epoch that was set last (0 before that), size() of them; valid until the next set_epoch.
  virtual std::span<const std::int64_t> indices() const = 0;
  /// The shared order of which indices() is a part.
  virtual OrderPart part() const { return {}; }
};

/// What one process reads in one step: a part of the global batch, perhaps none of it.
struct StepIndices {
  std::span<const std::int64_t> indices;
  std::int64_t first = 0;   // place of the first of them in the global batch
  std::int64_t global = 0;  // rows of the global batch
  int shards = 1;           // ranks among which it is divided
  std::uint64_t order = 0;  // see Rows; 0: not compared
};

/// Cuts an order into steps; what the loader drives. Thread safety as Sampler.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Steps in an epoch, the same for all epochs and all ranks.
  virtual std::int64_t steps() const = 0;
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// 0 <= step < steps(); valid until the next set_epoch.
  virtual StepIndices step(std::int64_t step) const = 0;
};

}  // namespace duet::data
