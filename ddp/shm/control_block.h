// The progress of the ranks of one host, in shared memory.
//
// Note [Steps on the control block]: a rank's clock counts its posts. All ranks post in the same order, so once
// all clocks have reached a rank's own, all have done what it has done. Staging memory and headers come in two halves,
// used in turn: when a rank reuses a half, all ranks have posted once in between, and have read what it held.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/shm/shared_segment.h"
#include "ddp/store/store.h"
#include "lib/base/function_ref.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// A ring buffer of bytes from one rank to another, in memory that both map: one rank only writes, the other only
/// reads. Neither ever waits. Both throw CommError when the counters are not those of a ring: the other rank can have
/// written anything there.
class ByteRing {
 public:
  static constexpr std::size_t kRoom = 64 << 10;
  static constexpr std::size_t kBytes = kRoom + 256;

  /// `memory`: kBytes bytes, zero at first.
  explicit ByteRing(std::byte* memory) : memory_(memory) {}
  /// Writes a beginning of `data`, as much as there is room for; returns how many bytes.
  std::size_t write(std::span<const std::byte> data);
  /// Reads what is there, at most `data`; returns how many bytes.
  std::size_t read(std::span<std::byte> data);

 private:
  // Bytes written and read since the start; they wrap around.
  std::atomic<std::uint32_t>& written() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_); }
  std::atomic<std::uint32_t>& taken() const { return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + 128); }
  std::byte* ring() const { return memory_ + 256; }
  std::byte* memory_;
};

/// What a rank shows the others of the collective it is in.
struct PostedCall {
  CallHeader header;
  /// 1 + the offset in the rank's shared memory of the buffer, and of those of its further parts; all 0: one is not
  /// there.
  std::array<std::uint64_t, kMostSubtrees> shared_at{};
};

/// One rank's view. Posting is for one thread at a time; any thread may wait, ring and close.
class ControlBlock {
 public:
  static constexpr std::size_t kHalfBytes = 512 << 10;  // in each of the two halves of a rank's staging memory

  /// The memory for a group of so many ranks: see SharedSegment. Rings take none before their first use, so it is what
  /// the ranks' staging memory takes, and a byte for every pair of them.
  static std::unique_ptr<SharedSegment> make_segment(Store& store, const std::string& key, int rank, int size,
                                                     Milliseconds timeout);
  /// `names` is what errors call the ranks; empty: by their own numbers.
  /// `check`: see ConnectOptions.
  ControlBlock(std::unique_ptr<SharedSegment> segment, int rank, int size, std::vector<int> names = {},
               std::function<void()> check = {});
  ~ControlBlock();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int name_of(int rank) const { return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)]; }

  /// The call that a rank shows as collective `sequence`; this rank's is written before its first post.
  PostedCall& posted_call(int rank, std::uint64_t sequence);
  /// A rank's staging memory of the current half.
  std::byte* staging(int rank) const;
  /// Ends the use of the current half.
  void turn_half() { half_ ^= 1; }

  /// Shows what was written to all others.
  void post();
  /// Waits until all ranks have posted as often as this one. Throws CommError: a rank closed or died, or the deadline
  /// passed.
  void await_posts(Clock::time_point deadline, bool spin);
  /// Waits until ready() is true, which another rank makes true and then calls ring() for. As await_posts().
  void await(FunctionRef<bool()> ready, FunctionRef<void()> check, Clock::time_point deadline, bool spin);
  /// Wakes a rank that may be waiting.
  void ring(int peer);
  /// Throws CommError if the rank has closed or its process has ended.
  void check_alive(int peer);

  /// Closes this rank's side and wakes all others. Any thread may call it.
  void close();
  bool closed(int rank) const;

  /// Memory of the ByteRing from one rank to another, of which this is one. Null where the other has not sent anything
  /// yet. Throws CommError where no memory is left for it. For one thread at a time.
  std::byte* ring_memory(int from, int to);

 private:
  struct RankSlot;
  RankSlot& slot(int rank) const;
  /// Whether the sender has reserved the ring's memory.
  std::atomic<bool>& has_ring(int from, int to) const;

  std::unique_ptr<SharedSegment> segment_;
  int rank_, size_;
  std::vector<int> names_;
  const std::function<void()> check_;
  std::uint32_t half_ = 0;
  std::vector<SharedSegment::Mapping> to_, from_;  // rings, by the other rank; null: not mapped yet
  std::mutex processes_mutex_;
  std::vector<int> processes_;  // by rank: a descriptor that is readable once the process has ended; -1: none
};

}  // namespace duet::ddp
