// Communication hooks: another way than all_reduce to sum a bucket of gradients over the ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// A run of gradients that is communicated at once.
struct GradBucket {
  int index = 0, count = 0;  // index: this bucket's place in the order of sending; count: number of buckets
  Buffer gradients{};        // this rank's, in place of which the sum of all ranks' is put
};

/// Replaces all_reduce for gradients, as PyTorch's register_comm_hook does (torch/nn/parallel/distributed.py). The
/// thread that runs backward calls it, with the buckets in the same order on all ranks. Several buckets may be under
/// way at once. Gradients are to be *summed*; where GradientRule asks for a weight they have been multiplied by it.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// A bucket is complete, while backward goes on with others. Starts its communication.
  virtual Work start(ProcessGroup& group, const GradBucket& bucket) = 0;
  /// The bucket's work has ended: puts the result into bucket.gradients.
  virtual void finish(ProcessGroup& group, const GradBucket& bucket) = 0;
};

enum class HalfFormat { f16, bf16 };

/// Sends gradients as 16-bit numbers, and sums them up in single precision, in the order of all_reduce, so that all
/// ranks end with the same bits. Every rank gets all ranks' numbers: of b bytes of gradients (size - 1) / 2 * b travel
/// to each, where all_reduce moves 2 * (size - 1) / size * b, so it is for up to 4 ranks. For f32 on CPU devices;
/// throws UsageError for others.
class CompressionHook final : public CommHook {
 public:
  explicit CompressionHook(HalfFormat format) : format_(format) {}
  Work start(ProcessGroup& group, const GradBucket& bucket) override;
  void finish(ProcessGroup& group, const GradBucket& bucket) override;

 private:
  struct Halves {
    std::vector<std::uint16_t> own, all;
  };
  HalfFormat format_;
  std::vector<Halves> buckets_;
};

}  // namespace duet::ddp
