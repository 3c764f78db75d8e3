// By how much each rank's gradients count, and statistics of all ranks' rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"
#include "lib/nn/value.h"
#include "lib/tensor.h"

namespace duet::ddp {

/// The batches whose gradients have accumulated on one rank since the last reduction or zero_grad(). Weights are rows /
/// all ranks' rows, so that the sum of weighted gradients is that of the mean over all rows. Where gradients of several
/// batches have accumulated, that is defined only if every rank's batches have one size, or all ranks' sizes are the
/// same batch by batch.
class RankWeights {
 public:
  /// A batch that went forward.
  struct Batch {
    std::uint64_t forward = 0;  // number of the forward
    std::int64_t rows = 0;
    Rows stamp{};
    bool counts = false;  // for forwards()
  };
  /// A backward begins. `zero_grads`: how often gradients were dropped; what accumulated before the last time is gone.
  void backward_begins(std::uint64_t zero_grads);
  /// The backward that begins next reaches the output of this batch's forward. Once per backward is enough.
  void reached(const Batch& batch);
  /// A loss is computed from the output of this forward, whose gradient is to be reduced.
  void consumed(std::uint64_t forward) {
    if (std::exchange(consumed_, std::max(consumed_, forward)) < forward) ++forwards_;
  }
  /// The number of such forwards since the last reduction, or restart().
  std::int32_t forwards() const { return forwards_; }
  void restart() { forwards_ = 0; }
  /// The gradients were reduced.
  void reduced();
  /// The rows of batches that a sampler divided among the ranks. Row numbers a and b of a batch stand for the hashes of
  /// both: the ranks' [first, end) add up to [0, global) where each row is there once, as what is between cancels out.
  BatchMark mark() const;
  /// Whether parts of stamped batches, taken together, are whole ones.
  bool whole_batches() const;

  /// What a rank contributes to a step.
  struct Step {
    bool trains = true;        // false: it has ended, within join()
    unsigned normalisers = 0;  // what its losses were divided by, as bits of Normaliser (lib/autograd/node.h)
    bool local_steps = false;  // ranks may accumulate different numbers of batches
  };
  struct Weight {
    double value = 1;
    bool adds_up = true;  // gradients are parts of one sum, else of a weighted mean
    bool even = true;     // all ranks that train have the same
    int blocks = 0;       // of batches whose blocks the ranks that train own; 0: of none
  };
  /// This rank's weight; 1 where gradients add up and all ranks train. All ranks call it. Parts of stamped batches are
  /// each rank's own batch, whole, or all ranks' parts of one batch. Throws UsageError on every rank, naming the ranks,
  /// where they are neither, where weights are undefined, where ranks without local_steps have accumulated different
  /// numbers of batches, where only some ranks have divided by global rows, and where ranks have the same part of an
  /// order of samples.
  Weight exchange(ProcessGroup& group, const Step& step) const;

 private:
  std::vector<Batch> batches_;
  std::size_t of_this_run_ = 0;  // index of the first
  std::uint64_t zero_grads_ = 0, consumed_ = 0;
  std::int32_t forwards_ = 0;
};

/// `output` with a node of the tape through which gradients pass unchanged. Every backward that will reach it calls
/// weights->reached(batch) before any node runs, and throws UsageError if `weights` has expired.
Variable output_of_batch(const Variable& output, const std::shared_ptr<RankWeights>& weights,
                         const RankWeights::Batch& batch);
nn::Value output_of_batch(const nn::Value& output, const std::shared_ptr<RankWeights>& weights,
                          const RankWeights::Batch& batch);

/// Sums over the ranks of a group, for layers whose statistics are those of all ranks' rows.
class GroupSums final : public BatchSums {
 public:
  explicit GroupSums(ProcessGroup& group) : group_(group) {}
  void sum(std::span<double> values, int parts) override;
  double sum_gradients(std::span<double> values, int parts) override;
  /// From now on ranks own subtrees of so many blocks, this one `parts` of them: see TreeParts.
  void set_blocks(int blocks, int parts) {
    blocks_ = blocks;
    parts_ = parts;
  }
  /// Whether gradients are those of means over each rank's own rows.
  void set_weighted(bool weighted) { weighted_ = weighted; }
  /// Whether a layer has summed.
  bool used() const { return used_; }

 private:
  ProcessGroup& group_;
  bool weighted_ = false, used_ = false;
  int blocks_ = 0, parts_ = 1;
  std::vector<double> zeros_;  // for parts that a batch does not have
};

}  // namespace duet::ddp
