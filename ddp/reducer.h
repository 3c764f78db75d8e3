// Sums gradients over the ranks while backward still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddp/comm_hook.h"
#include "ddp/group/process_group.h"
#include "lib/device.h"
#include "lib/tensor.h"

namespace duet::ddp {

struct BucketItem {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  Device device{};
};

/// PyTorch's limits where the user sets none: a small first bucket, so that communication starts early.
inline constexpr std::size_t kBucketLimits[] = {std::size_t{1} << 20, std::size_t{25} << 20};

/// The items of each bucket. Adds items to the open bucket of their dtype and device and closes it once it holds at
/// least the limit; each dtype and device goes through `limits` on its own, and the last limit repeats. Buckets are
/// sorted by their lowest item. Throws UsageError without limits.
std::vector<std::vector<std::size_t>> compute_bucket_assignment_by_size(std::span<const BucketItem> items,
                                                                        std::span<const std::size_t> limits);

/// One gradient: a run of a flat buffer.
struct ReducerSlot {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  Device device{};
  std::string name{};        // for errors
  std::int64_t padding = 0;  // elements between it and the next slot: zeros, sent with a bucket that holds both
};

struct ReducerOptions {
  /// Sizes in bytes, 1 or more, at which buckets are closed, the last repeats; empty: kBucketLimits.
  std::vector<std::size_t> bucket_limits{};
  /// Slots that are not ready at finish() count as zeros instead of being an error. The ranks then agree which slots
  /// any of them used, which costs one all_reduce a step.
  bool find_unused_parameters = false;
  /// The slots that are ready at the first finish() are those of all steps. The others count as zeros, which later
  /// steps send along as soon as the first slot is ready; another set is an error that names the slot. The ranks agree
  /// once which slots any of them uses.
  bool static_graph = false;
  /// Sums a bucket over the ranks; null: all_reduce.
  std::shared_ptr<CommHook> comm_hook{};
};

/// Works on buffers and a group, independent of modules and variables. Buckets are contiguous runs of the slots as
/// given, so nothing is copied into them; they are sent strictly in order, each as soon as all of its slots are ready
/// and all buckets before it have been sent, in the background. Nothing is allocated per step. Used by one thread at a
/// time. The slots' memory and the group must outlive it.
class Reducer {
 public:
  /// `slots` in the order of their addresses, about the order in which they become ready. Slots that do not follow one
  /// another in memory, padding aside, start a new bucket. Throws UsageError for no slots at all, for overlapping
  /// ones and for a limit of 0.
  Reducer(ProcessGroup& group, std::vector<ReducerSlot> slots, const ReducerOptions& options = {});

  /// From the next bucket on each gradient is multiplied by this before it is sent (PyTorch: 1 / world size). 1 leaves
  /// the bits alone, 0 sets to zero; for others gradients are f32, or sending them throws UsageError.
  void set_scale(double scale) { scale_ = scale; }

  /// From the next bucket on this rank has further parts of each gradient, which are added up by the tree over so many
  /// blocks: a byte of the slots' memory at `begin` + i is at others[k] + i in part k + 1. Not for NCCL; a comm_hook
  /// gets the sum of this rank's parts.
  void set_parts(int blocks, void* begin, const std::vector<void*>& others);
  /// The slots' memory, from `from` on, now begins at `to`. Not within a step.
  void move(const void* from, void* to);
  /// Sets what further parts have of a slot to zero.
  void zero_parts(int slot);

  /// The slot's gradient is complete. Throws UsageError that names a slot marked twice, or one that was not ready in
  /// the first step of a static graph.
  void mark_ready(int slot);
  /// Waits until every gradient holds the sum over all ranks. Throws UsageError that names the slots that were never
  /// ready, after which the group is out of step with the others. A recorded step does not count.
  void finish();
  /// A whole step that contributes zeros, while other ranks still train: all gradients get the sum of the others'.
  void contribute_zeros();
  /// Ends the step: waits for what was sent, and forgets what was marked. finish() does, and an error in backward needs
  /// it.
  void end_step();

  /// Throws UsageError for a slot that was not ready in the first step of a static graph.
  void require_expected(int slot) const;
  /// Whether the gradients' device is recorded now: what it is asked is only written down for a CUDA graph.
  bool recorded() const;
  int slot_count() const { return static_cast<int>(slots_.size()); }
  /// Whether the slot was marked in this step.
  bool ready(int slot) const { return ready_[static_cast<std::size_t>(slot)] != 0; }
  /// Whether any rank used the slot in the step that was reduced last. The sum of one that none used is zero, and
  /// stands for no gradient.
  bool used(int slot) const { return used_.empty() || used_[static_cast<std::size_t>(slot)] != 0; }
  /// Steps that were reduced; recording one does not count.
  std::int64_t steps() const { return steps_; }

 private:
  struct Bucket {
    int first = 0, count = 0;  // slots
    int missing = 0;           // slots that are not ready yet in this step
    Buffer buffer{};
    Work work{};
  };
  void add_bucket(const std::vector<std::size_t>& slots);
  /// A buffer's memory in part number `part`; 0: its own.
  Buffer in_part(const Buffer& buffer, std::size_t part) const;
  Buffer buffer_of(std::size_t slot) const;
  Work sum(std::size_t index);
  GradBucket grad_bucket(std::size_t index) const;
  void mark(std::size_t slot);
  void zero(std::size_t slot);
  void send_ready_buckets();
  void zero_missing();
  void settle_missing();
  void note_used();
  void agree_on_used();
  void wait_for_sent();
  std::string missing_names() const;

  ProcessGroup& group_;
  std::vector<ReducerSlot> slots_;
  ReducerOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;      // by slot
  std::vector<char> ready_;         // by slot
  std::vector<char> expected_;      // by slot: what the first step of a static graph had; empty before its end
  std::vector<std::int32_t> used_;  // by slot; empty: all are
  bool agreed_ = false;             // on the slots that a static graph uses
  bool begun_ = false;              // a slot of this step was marked
  double scale_ = 1;
  int blocks_ = 0;
  std::byte* begin_ = nullptr;
  std::vector<void*> others_;  // see set_parts()
  std::size_t sent_ = 0;       // buckets sent in this step
  std::int64_t steps_ = 0;
};

}  // namespace duet::ddp
