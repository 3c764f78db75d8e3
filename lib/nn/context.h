// The context in which a module runs: its values, the key of its random numbers, and how often they were drawn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/base/recovery.h"
#include "lib/nn/flat_parameters.h"
#include "lib/random.h"
#include "lib/tensor.h"

namespace duet {
class BatchSums;
}

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

  /// The seed of a layer's next draw for `rows` samples of the batch with this stamp, or of the batch of this step
  /// where there is no stamp: `seed` for the first draw, two words of Philox(seed, n) for the n-th after it. Draws for
  /// other rows do not count, so that parts of a batch have the numbers that they have in the whole.
  std::uint64_t next_seed(std::uint64_t seed, std::uint32_t layer, const Rows& stamp, std::int64_t step,
                          std::int64_t rows) {
    begin_batch(seed, stamp, step);
    const std::int64_t first = stamp.first / stamp.per_sample;
    const Range own = whole_.end > 0 ? whole_ : Range{first, first + rows};
    const std::uint32_t draws = count({.layer = layer, .stamped = stamp.known(), .of = own});
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
  /// Whether a layer has drawn for the batch with this stamp since it was delivered.
  bool has_drawn(const Rows& stamp) const {
    return stamp.step == stamp_.step && stamp.delivery == stamp_.delivery &&
           std::ranges::any_of(runs_, [](const Run& run) { return run.stamped; });
  }
  void stream(StateStream& state) {
    state.value(seed_);
    state.value(stamp_);
    state.value(step_);
    state.sequence(runs_);
  }

 private:
  struct Run {
    std::uint32_t layer = 0;
    bool stamped = false;
    Range of;
    std::uint32_t draws = 0;
  };

  void begin_batch(std::uint64_t seed, const Rows& stamp, std::int64_t step) {
    const bool delivered = stamp.known() && (stamp.step != stamp_.step || stamp.delivery != stamp_.delivery);
    if (seed != seed_ || delivered) runs_.clear();
    if (!stamp.known() && step != step_) std::erase_if(runs_, [](const Run& run) { return !run.stamped; });
    seed_ = seed;
    if (stamp.known()) stamp_ = stamp;
    if (!stamp.known()) step_ = step;
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
  Rows stamp_;              // stamp of the last batch that had one
  std::int64_t step_ = -1;  // step of the last batch without a stamp
  Range whole_;             // rows of the batch that replicas have pieces of; empty: this is not a replica's
  std::vector<Run> runs_;
};

/// One set of values for a module, with the random key of a run. A replica is the same module with another context.
/// Used by one thread at a time.
struct Context {
  FlatParameters* store = nullptr;
  int first_slot = 0;      // number that the store's slot 0 has in the module tree
  int first_buffer = 0;    // the same for buffers
  std::uint64_t seed = 0;  // key of dropout
  std::int64_t step = 0;   // step of dropout's key for inputs without a stamp
  DrawCounts draws{};      // under this key
  bool stamped = false;    // whether the input of this run has a stamp
  /// When set, dropout draws from this stream in PyTorch's order instead of by key.
  Mt19937* stream = nullptr;
  /// Whether chain() and Sequential may run layers as fused operators; not while `stream` is set.
  bool fuse = true;
  /// Set by wrappers that cut batches over devices, for layers that need statistics of the whole batch.
  BatchSums* batch_sums = nullptr;
  /// Set where several replicas have rows of one device, for layers that need statistics of that device's rows.
  BatchSums* device_sums = nullptr;
  /// Set by a wrapper that adds up gradients over ranks of which some own several subtrees of the blocks.
  std::shared_ptr<GradientParts> gradient_parts{};

  /// Not checked: see has_slot() and has_buffer().
  const Variable& parameter(int number) const { return store->variable(number - first_slot); }
  const Tensor& buffer(int number) const {
    return store->buffers()[static_cast<std::size_t>(number - first_buffer)].tensor;
  }
  /// Whether the values are those of this model; whether they include the slot or buffer of this number in its tree.
  bool is_of(std::uint64_t model_id) const { return store != nullptr && store->model_id() == model_id; }
  bool has_slot(std::uint64_t model_id, int number) const {
    return is_of(model_id) && number >= first_slot && number - first_slot < store->slot_count();
  }
  bool has_buffer(std::uint64_t model_id, int number) const {
    return is_of(model_id) && static_cast<std::size_t>(number - first_buffer) < store->buffers().size();
  }
  /// Seed of what the layer of this number draws now for `x`, another one for each time on a batch; counts it.
  std::uint64_t next_seed(std::uint32_t layer, const Tensor& x) {
    return draws.next_seed(seed, layer, x.stamp(), step, x.shape().rank() > 0 ? x.stamp().samples_in(x.shape()) : 1);
  }
  /// The step of the key of what is drawn for `x`.
  std::uint64_t step_of(const Tensor& x) const {
    return static_cast<std::uint64_t>(x.stamp().known() ? x.stamp().step : step);
  }
};

}  // namespace duet::nn
