// The collectives among ranks of one host, over memory that they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/group/tree_parts.h"
#include "ddp/shm/control_block.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/store/store.h"
#include "ddp/transport/engine.h"
#include "lib/base/threads.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// Memory of all ranks that every rank maps: `bytes` for each, rank after rank.
struct SharedArena {
  std::shared_ptr<SharedSegment> segment;
  std::size_t bytes = 0;
  std::byte* of(int rank) const { return segment->data() + static_cast<std::size_t>(rank) * bytes; }
};

/// The collectives of ranks that have a core each are carried out by the threads that wait for them, at once. So
/// buckets of a shorter backward are not summed in parallel with it: a thread that did it would take a core from
/// backward.
class ShmCollectives final : public Engine {
 public:
  /// `store` and `timeout` are for memory that shared_storage() shares.
  explicit ShmCollectives(std::unique_ptr<ShmTransport> transport, std::shared_ptr<Store> store = nullptr,
                          Milliseconds timeout = kGroupTimeout)
      : transport_(std::move(transport)),
        store_(std::move(store)),
        timeout_(timeout),
        block_(transport_->control_block()),
        rank_(block_.rank()),
        size_(block_.size()),
        spins_(size_ <= usable_cores()) {}

  Transport& transport() override { return *transport_; }
  bool runs_in_waiters() const override { return true; }
  void begin(const Call& call, std::uint64_t sequence) override;
  void finish(const Call& call, std::uint64_t sequence, Clock::time_point deadline, bool spin) override;
  void drain(Milliseconds timeout) override { transport_->drain(Clock::now() + timeout); }
  std::shared_ptr<Storage> shared_storage(std::size_t bytes) override;
  std::unique_ptr<Engine> connect_subset(const Subset& subset) const override;
  /// Buffers in the arena are reduced where they lie.
  void add_arena(SharedArena arena) { arenas_.push_back(std::move(arena)); }

 private:
  /// Elements of one pass through the staging memory.
  struct Pass {
    std::int64_t begin = 0, count = 0;
  };
  Pass pass_at(const Call& call, std::int64_t begin) const;
  void stage(const Call& call, Pass pass);
  void read(const Call& call, Pass pass);
  void check_posted_calls(const Call& call, std::uint64_t sequence);
  /// How many ranks have the buffer of an all_reduce in shared memory.
  int shared_count(std::uint64_t sequence);
  std::uint64_t place_of(const Buffer& buffer) const;
  /// The opposite, on another rank. Throws CommError unless a buffer like this rank's lies there, whole, in its
  /// shared memory.
  std::byte* at_place(int rank, std::uint64_t& place, const Buffer& own) const;

  std::int64_t piece_count(const Call& call) const;
  /// Reduces `count` elements of what the ranks have staged in a pass from byte `offset` of each part on; returns where
  /// they lie. No other rank may read there.
  const void* reduce_staged(const Call& call, Pass pass, std::size_t offset, std::int64_t count);
  void reduce_shard(const Call& call, Pass pass);
  void reduce_shared(const Call& call, std::uint64_t sequence);
  /// The part of `count` elements that a rank reduces.
  Pass shard_of(std::int64_t count, int rank) const;

  const std::unique_ptr<ShmTransport> transport_;
  const std::shared_ptr<Store> store_;
  const Milliseconds timeout_;
  ControlBlock& block_;
  const int rank_, size_;
  const bool spins_;
  std::vector<SharedArena> arenas_;
  std::vector<void*> parts_;
  TreeOrder order_;  // of the current call
};

}  // namespace duet::ddp
