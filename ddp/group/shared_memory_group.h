// Process groups whose ranks share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ddp/group/process_group.h"
#include "lib/tensor.h"

namespace duet::ddp {

/// What such ranks can do besides collectives. The group of backend shm is one: dynamic_cast finds out.
class SharedMemoryGroup : public ProcessGroup {
 public:
  /// Zeroed CPU memory that is the same for all ranks, which order their accesses to it themselves. All ranks ask for
  /// the same number of bytes. It may outlive the group.
  virtual std::shared_ptr<Storage> common_storage(std::size_t bytes) = 0;

  /// Sums the ranks' gradients shard by shard, each rank one of them, in the order of all_reduce. Every rank calls
  /// `update` with its sums, piece by piece, which writes its values of those elements; then all ranks hold all new
  /// values. Both buffers are f32 in shared_storage(); the gradients stay as they are. `rule` identifies what `update`
  /// does: ranks that give different ones disagree. Returns when this rank's values are complete; other ranks write
  /// them from the call on. After an error they may be old in part and new in part. Throws UsageError and CommError.
  void reduce_update(const Buffer& gradients, const Buffer& values, std::uint32_t rule, ShardUpdate update);

 protected:
  using ProcessGroup::ProcessGroup;
};

}  // namespace duet::ddp
