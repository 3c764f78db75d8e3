#include "ddp/shm/control_block.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "ddp/transport/transport.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

std::size_t used_bytes(std::uint32_t written, std::uint32_t taken) {
  const std::uint32_t used = written - taken;
  require<CommError>(used <= ByteRing::kRoom, "a ring of shared memory is damaged: it holds ", used, " bytes of ",
                     ByteRing::kRoom);
  return used;
}

}  // namespace

std::size_t ByteRing::write(std::span<const std::byte> data) {
  const std::uint32_t at = written().load(std::memory_order_relaxed);
  const std::size_t used = used_bytes(at, taken().load(std::memory_order_acquire));
  const std::size_t bytes = std::min(kRoom - used, data.size()), place = at % kRoom;
  const std::size_t first = std::min(bytes, kRoom - place);
  std::memcpy(ring() + place, data.data(), first);
  std::memcpy(ring(), data.data() + first, bytes - first);
  written().store(at + static_cast<std::uint32_t>(bytes));
  return bytes;
}

std::size_t ByteRing::read(std::span<std::byte> data) {
  const std::uint32_t at = taken().load(std::memory_order_relaxed);
  const std::size_t there = used_bytes(written().load(std::memory_order_acquire), at);
  const std::size_t bytes = std::min(there, data.size()), place = at % kRoom;
  const std::size_t first = std::min(bytes, kRoom - place);
  std::memcpy(data.data(), ring() + place, first);
  std::memcpy(data.data() + first, ring(), bytes - first);
  taken().store(at + static_cast<std::uint32_t>(bytes));
  return bytes;
}

namespace {

constexpr int kSpins = 4000;  // about the time that ranks of one step are apart
constexpr auto kParked = std::chrono::milliseconds(50);
constexpr std::size_t kTwoLines = 128;  // two cache lines: processors fetch them in pairs

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

struct alignas(kTwoLines) ControlBlock::RankSlot {
  std::atomic<std::uint32_t> clock{0};
  std::atomic<std::uint32_t> closed{0};
  std::atomic<std::int32_t> process{0};
  alignas(kTwoLines) std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> asleep{0};
  alignas(kTwoLines) PostedCall posted_calls[2];
};

// Slots of ranks, then two halves of staging memory for each rank, then has_ring(); later the rings, each of whole
// pages.
std::unique_ptr<SharedSegment> ControlBlock::make_segment(Store& store, const std::string& key, int rank, int size,
                                                          Milliseconds timeout) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t bytes = ranks * (sizeof(RankSlot) + 2 * kHalfBytes) + ranks * ranks * sizeof(std::atomic<bool>);
  return std::make_unique<SharedSegment>(store, key, rank, size, whole_pages(bytes), timeout,
                                         ranks * ranks * whole_pages(ByteRing::kBytes));
}

ControlBlock::ControlBlock(std::unique_ptr<SharedSegment> segment, int rank, int size, std::vector<int> names,
                           std::function<void()> check)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      names_(std::move(names)),
      check_(std::move(check)),
      to_(static_cast<std::size_t>(size)),
      from_(static_cast<std::size_t>(size)),
      processes_(static_cast<std::size_t>(size), -1) {
  slot(rank).process.store(::getpid());
}

ControlBlock::~ControlBlock() {
  close();  // also where a constructor has failed: the peers must not wait for this rank
  for (const int process : processes_)
    if (process >= 0) ::close(process);
}

// Zeroed memory is a new slot, so no rank needs to wait until another has made its own.
ControlBlock::RankSlot& ControlBlock::slot(int rank) const {
  return *reinterpret_cast<RankSlot*>(segment_->data() + static_cast<std::size_t>(rank) * sizeof(RankSlot));
}

PostedCall& ControlBlock::posted_call(int rank, std::uint64_t sequence) {
  return slot(rank).posted_calls[sequence % 2];
}

std::byte* ControlBlock::staging(int rank) const {
  const auto ranks = static_cast<std::size_t>(size_);
  return segment_->data() + ranks * sizeof(RankSlot) + (static_cast<std::size_t>(rank) * 2 + half_) * kHalfBytes;
}

// By receiver: a rank looks at those of all senders in turn.
std::atomic<bool>& ControlBlock::has_ring(int from, int to) const {
  const auto ranks = static_cast<std::size_t>(size_);
  std::byte* const first = segment_->data() + ranks * (sizeof(RankSlot) + 2 * kHalfBytes);
  return reinterpret_cast<std::atomic<bool>*>(
      first)[static_cast<std::size_t>(to) * ranks + static_cast<std::size_t>(from)];
}

std::byte* ControlBlock::ring_memory(int from, int to) {
  const bool sends = from == rank_;
  SharedSegment::Mapping& ring = sends ? to_[static_cast<std::size_t>(to)] : from_[static_cast<std::size_t>(from)];
  if (ring || (!sends && !has_ring(from, to).load(std::memory_order_acquire))) return ring.get();
  const std::size_t bytes = whole_pages(ByteRing::kBytes);
  const auto number = static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(to);
  if (sends) segment_->reserve_later(number * bytes, bytes);
  ring = segment_->map_later(number * bytes, bytes);
  if (sends) has_ring(from, to).store(true, std::memory_order_release);
  return ring.get();
}

void ControlBlock::post() {
  slot(rank_).clock.fetch_add(1);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) ring(peer);
}

void ControlBlock::ring(int peer) {
  RankSlot& other = slot(peer);
  if (other.asleep.load() == 0) return;
  other.bell.fetch_add(1);
  futex_wake(other.bell);
}

void ControlBlock::await_posts(Clock::time_point deadline, bool spin) {
  const std::uint32_t mine = slot(rank_).clock.load(std::memory_order_relaxed);
  // Clocks wrap around, and are never half their range apart.
  const auto behind = [&](int peer) {
    return static_cast<std::int32_t>(slot(peer).clock.load(std::memory_order_acquire) - mine) < 0;
  };
  int next = 0;  // all ranks before it have posted
  const auto ready = [&] {
    while (next < size_ && !behind(next)) ++next;
    return next == size_;
  };
  const auto check = [&] {
    for (int peer = next; peer < size_; ++peer)
      if (peer != rank_ && behind(peer)) check_alive(peer);
    if (Clock::now() < deadline) return;
    std::vector<int> late;
    for (int peer = next; peer < size_; ++peer)
      if (behind(peer)) late.push_back(name_of(peer));
    require<CommError>(late.empty(), rank_names(late), " did not come in time");
  };
  await(ready, check, deadline, spin);
}

void ControlBlock::await(FunctionRef<bool()> ready, FunctionRef<void()> check, Clock::time_point deadline, bool spin) {
  for (int i = 0; i < (spin ? kSpins : 1); ++i) {
    if (ready()) return;
    pause_core();
  }
  RankSlot& own = slot(rank_);
  for (;;) {
    const std::uint32_t bell = own.bell.load();
    own.asleep.fetch_add(1);  // a rank that makes ready() true after this sees it, and wakes this one
    const bool done = ready();
    if (!done)
      futex_wait(own.bell, bell, std::clamp<Clock::duration>(deadline - Clock::now(), Clock::duration(0), kParked));
    own.asleep.fetch_sub(1);
    if (done || ready()) return;
    try {
      check();
    } catch (const CommError&) {  // it may have posted and closed since the last poll
      if (ready()) return;
      throw;
    }
  }
}

void ControlBlock::check_alive(int peer) {
  if (check_) check_();
  require<CommError>(!closed(rank_), kClosed);
  require<CommError>(!closed(peer), "rank ", name_of(peer), " has closed the connection");
  const pid_t process = slot(peer).process.load();
  if (process == 0 || process == ::getpid()) return;  // it has not come yet, or is a thread of this process
  const std::lock_guard lock(processes_mutex_);
  int& descriptor = processes_[static_cast<std::size_t>(peer)];
  if (descriptor < 0) descriptor = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  pollfd ended{.fd = descriptor, .events = POLLIN, .revents = 0};
  const bool gone = descriptor < 0 ? errno == ESRCH : ::poll(&ended, 1, 0) == 1;
  // It may have closed properly since the last poll.
  require<CommError>(!gone || closed(peer), "rank ", name_of(peer), " (process ", process, ") has ended");
}

void ControlBlock::close() {
  slot(rank_).closed.store(1);
  for (int peer = 0; peer < size_; ++peer) ring(peer);
}

bool ControlBlock::closed(int rank) const { return slot(rank).closed.load() != 0; }

}  // namespace duet::ddp
