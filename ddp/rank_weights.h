// By how much each rank's gradients count where losses are means over a rank's own rows.
#pragma once

#include <cstdint>

#include "ddp/process_group.h"

namespace duet::ddp {

/// The rows of the batches that one rank has put through the model since its gradients were last reduced. Weights are
/// rows / all ranks' rows, so that the sum of weighted gradients is that of the mean over all rows. Where gradients of
/// several batches have accumulated, that is defined only if every rank's batches have one size, or all ranks' sizes
/// are the same batch by batch.
class RankWeights {
 public:
  /// A batch of `rows` rows went forward.
  void add(std::int64_t rows);
  /// The gradients were reduced: the next batch begins a new list.
  void reduced() { reduced_ = true; }

  /// What a rank contributes to a step.
  struct Step {
    bool trains = true;   // false: it has ended, within join()
    bool global = false;  // its gradients were divided by the rows of the global batch already
  };
  /// This rank's weight; 1 for gradients that were divided already. All ranks call it. Throws UsageError on every rank,
  /// naming the ranks, where weights are undefined or only some ranks have divided already.
  double exchange(ProcessGroup& group, const Step& step) const;

 private:
  std::int64_t rows_ = 0;     // of the first batch
  bool alike_ = true;         // all batches have as many
  std::uint64_t digest_ = 0;  // of the sizes of all batches, in order
  bool reduced_ = true;
};

}  // namespace duet::ddp
