#include "ddp/shm/shm_collectives.h"

#include <algorithm>
#include <atomic>

#include "ddp/group/reduce_kernels.h"
#include "lib/base/fault_point.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr std::int64_t kLineElements = 64;   // shards are cut at whole cache lines
constexpr std::int64_t kCachedBytes = 2048;  // elements of a shard that stay in the first cache while they are reduced
constexpr std::uint64_t kArenaShift = 48;    // a place: arena number from this bit on, below it the offset in the arena

/// Whether a rank that contributes has a piece for each rank.
bool spreads(Collective op) {
  return op == Collective::scatter || op == Collective::reduce_scatter || op == Collective::all_to_all;
}

}  // namespace

ShmCollectives::Pass ShmCollectives::pass_at(const Call& call, std::int64_t begin) const {
  // The pieces for all ranks are staged side by side, and so are a rank's parts.
  const int most = spreads(call.op) ? size_ : order_.most_parts();
  const std::size_t room = ControlBlock::kHalfBytes / static_cast<std::size_t>(most);
  const auto elements = static_cast<std::int64_t>(room / size_of(call.in.dtype));
  return {begin, std::min(elements, piece_count(call) - begin)};
}

std::int64_t ShmCollectives::piece_count(const Call& call) const {
  const std::int64_t count = common_buffer(call).count;
  return call.op == Collective::all_to_all ? count / size_ : count;
}

ShmCollectives::Pass ShmCollectives::shard_of(std::int64_t count, int rank) const {
  const std::int64_t lines = (count + kLineElements - 1) / kLineElements;
  const std::int64_t begin = std::min(count, lines * rank / size_ * kLineElements);
  return {begin, std::min(count, lines * (rank + 1) / size_ * kLineElements) - begin};
}

std::uint64_t ShmCollectives::place_of(const Buffer& buffer) const {
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    const std::byte* const own = arenas_[i].of(rank_);
    const auto* const data = static_cast<const std::byte*>(buffer.data);
    if (data < own || data + buffer.bytes() > own + arenas_[i].bytes) continue;
    return (static_cast<std::uint64_t>(i) << kArenaShift) + static_cast<std::uint64_t>(data - own) + 1;
  }
  return 0;
}

std::byte* ShmCollectives::at_place(int rank, std::uint64_t& place, const Buffer& own) const {
  // Read once: the other rank can write there at any time.
  const std::uint64_t offset = std::atomic_ref(place).load(std::memory_order_relaxed) - 1;
  const std::uint64_t arena = offset >> kArenaShift, within = offset & ((std::uint64_t{1} << kArenaShift) - 1);
  const std::size_t bytes = own.bytes();
  const bool good = arena < arenas_.size() && within % size_of(own.dtype) == 0 && bytes <= arenas_[arena].bytes &&
                    within <= arenas_[arena].bytes - bytes;
  require<CommError>(good, "rank ", block_.name_of(rank), " names memory that it does not share: place ", offset, ", ",
                     bytes, " bytes");
  return arenas_[arena].of(rank) + within;
}

std::shared_ptr<Storage> ShmCollectives::shared_storage(std::size_t bytes) {
  const std::size_t room = (bytes + 4095) / 4096 * 4096;
  const auto segment = std::make_shared<SharedSegment>(*store_, concat("shm/arena/", arenas_.size()), rank_, size_,
                                                       room * static_cast<std::size_t>(size_), timeout_);
  add_arena({segment, room});
  return {new Storage(Device{}, arenas_.back().of(rank_), bytes), [segment](Storage* used) { delete used; }};
}

std::unique_ptr<Engine> ShmCollectives::connect_subset(const Subset& subset) const {
  return std::make_unique<ShmCollectives>(
      ShmTransport::connect(*subset.store, subset.rank, subset.size(), transport_->connect_timeout()), subset.store,
      timeout_);
}

void ShmCollectives::begin(const Call& call, std::uint64_t sequence) {
  order_.set(size_, call.parts.blocks);
  PostedCall& posted_call = block_.posted_call(rank_, sequence);
  posted_call.header = header_of(call, sequence);
  auto& places = posted_call.shared_at;
  places = {};
  bool shared = call.op == Collective::all_reduce;
  for (int i = 0; i < order_.parts_of(rank_) && shared; ++i)
    shared = (places[static_cast<std::size_t>(i)] = place_of(part_of(call, i))) != 0;
  if (!shared) {
    places = {};
    stage(call, pass_at(call, 0));
  }
  block_.post();
}

void ShmCollectives::finish(const Call& call, std::uint64_t sequence, Clock::time_point deadline, bool may_spin) {
  const bool spin = may_spin && spins_;
  const auto meet = [&] {
    fault_point("posting");
    block_.post();
    fault_point("posted");
    block_.await_posts(deadline, spin);
  };
  block_.await_posts(deadline, spin);
  check_posted_calls(call, sequence);
  Pass pass = pass_at(call, 0);
  const bool reduces = call.op == Collective::all_reduce;
  if (const int shared = reduces ? shared_count(sequence) : 0; shared == size_) {
    reduce_shared(call, sequence);
    return meet();
  } else if (shared > 0) {  // some have staged nothing yet
    if (block_.posted_call(rank_, sequence).shared_at[0] != 0) stage(call, pass);
    meet();
  }
  for (;;) {
    if (reduces) {
      reduce_shard(call, pass);
      meet();
    }
    read(call, pass);
    block_.turn_half();
    pass = pass_at(call, pass.begin + pass.count);
    if (pass.count <= 0) return;
    stage(call, pass);
    meet();
  }
}

void ShmCollectives::check_posted_calls(const Call& call, std::uint64_t sequence) {
  Agreement all;
  all.add(header_of(call, sequence));
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) all.add(block_.posted_call(peer, sequence).header);
  if (all.whole()) return;
  std::vector<RankHeader> ranks;
  for (int peer = 0; peer < size_; ++peer) ranks.push_back({peer, block_.posted_call(peer, sequence).header});
  throw CommError(disagreement(ranks));
}

int ShmCollectives::shared_count(std::uint64_t sequence) {
  int count = 0;
  for (int peer = 0; peer < size_; ++peer) count += block_.posted_call(peer, sequence).shared_at[0] != 0;
  return count;
}

void ShmCollectives::stage(const Call& call, Pass pass) {
  const bool only_root_gives = call.op == Collective::broadcast || call.op == Collective::scatter;
  if (call.op == Collective::barrier || (only_root_gives && call.root != rank_)) return;
  std::byte* const to = block_.staging(rank_);
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(0, pass.count)) * size_of(call.in.dtype);
  for (int piece = 0; piece < (spreads(call.op) ? size_ : 1); ++piece)
    copy_bytes(to + static_cast<std::size_t>(piece) * bytes, at(call.in, piece * piece_count(call) + pass.begin),
               bytes);
  for (int part = 1; part < order_.parts_of(rank_); ++part)
    copy_bytes(to + static_cast<std::size_t>(part) * bytes, at(part_of(call, part), pass.begin), bytes);
}

void ShmCollectives::read(const Call& call, Pass pass) {
  const bool on_root = call.root == rank_;
  const std::size_t size = size_of(call.in.dtype), bytes = static_cast<std::size_t>(pass.count) * size;
  // Where this rank's piece begins in what each rank has staged.
  const std::size_t offset = spreads(call.op) ? static_cast<std::size_t>(rank_) * bytes : 0;
  switch (call.op) {
    case Collective::all_reduce:
      for (int peer = 0; peer < size_; ++peer) {
        const Pass shard = shard_of(pass.count, peer);
        copy_bytes(at(call.in, pass.begin + shard.begin),
                   block_.staging(peer) + static_cast<std::size_t>(shard.begin) * size,
                   static_cast<std::size_t>(shard.count) * size);
      }
      return;
    case Collective::reduce:
      if (on_root) copy_bytes(at(call.in, pass.begin), reduce_staged(call, pass, 0, pass.count), bytes);
      return;
    case Collective::reduce_scatter:
      return copy_bytes(at(call.out, pass.begin), reduce_staged(call, pass, offset, pass.count), bytes);
    case Collective::broadcast:
      if (!on_root) copy_bytes(at(call.in, pass.begin), block_.staging(call.root), bytes);
      return;
    case Collective::scatter: return copy_bytes(at(call.out, pass.begin), block_.staging(call.root) + offset, bytes);
    case Collective::gather:
      if (!on_root) return;
      [[fallthrough]];
    case Collective::all_gather:
    case Collective::all_to_all:
      for (int peer = 0; peer < size_; ++peer)
        copy_bytes(at(call.out, peer * piece_count(call) + pass.begin), block_.staging(peer) + offset, bytes);
      return;
    case Collective::barrier:
    case Collective::send:
    case Collective::recv: return;
  }
}

/// Reduces this rank's shard of the staged elements in place: no other rank reads or writes it before the next post.
void ShmCollectives::reduce_shard(const Call& call, Pass pass) {
  const Pass shard = shard_of(pass.count, rank_);
  const std::size_t offset = static_cast<std::size_t>(shard.begin) * size_of(call.in.dtype);
  copy_bytes(block_.staging(rank_) + offset, reduce_staged(call, pass, offset, shard.count),
             static_cast<std::size_t>(shard.count) * size_of(call.in.dtype));
}

const void* ShmCollectives::reduce_staged(const Call& call, Pass pass, std::size_t offset, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(pass.count) * size_of(call.in.dtype);
  parts_.clear();
  for (int peer = 0; peer < size_; ++peer)
    for (int part = 0; part < order_.parts_of(peer); ++part)
      parts_.push_back(block_.staging(peer) + static_cast<std::size_t>(part) * bytes + offset);
  reduce_parts(parts_, count, call.in.dtype, call.reduce, order_.additions());
  return parts_[0];
}

/// Reduces this rank's shard where the ranks' buffers lie, and writes the result to all of them.
void ShmCollectives::reduce_shared(const Call& call, std::uint64_t sequence) {
  const Pass shard = shard_of(call.in.count, rank_);
  const std::size_t size = size_of(call.in.dtype);
  for (std::int64_t done = 0; done < shard.count; done += kCachedBytes) {
    const std::int64_t count = std::min(kCachedBytes, shard.count - done);
    parts_.clear();
    for (int peer = 0; peer < size_; ++peer)
      for (int part = 0; part < order_.parts_of(peer); ++part) {
        std::uint64_t& place = block_.posted_call(peer, sequence).shared_at[static_cast<std::size_t>(part)];
        parts_.push_back(at_place(peer, place, call.in) + static_cast<std::size_t>(shard.begin + done) * size);
      }
    reduce_parts(parts_, count, call.in.dtype, call.reduce, order_.additions());
    for (int peer = 1; peer < size_; ++peer)
      copy_bytes(parts_[static_cast<std::size_t>(order_.first(peer))], parts_[0],
                 static_cast<std::size_t>(count) * size);
  }
}

}  // namespace duet::ddp
