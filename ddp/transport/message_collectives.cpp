// The collectives as messages between ranks; the same for every transport.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/group/process_group.h"
#include "ddp/group/reduce_kernels.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/transport.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

// Below this size every rank sends all of its elements to all others: one trip instead of two.
constexpr std::size_t kSmallBytes = 32 << 10;
constexpr std::int64_t kChunkAlignment = 16;  // elements; whole cache lines
constexpr int kFirstSubtree = 16;             // phase of the messages with a rank's first part, if it has several
constexpr Milliseconds kDrainTime{10'000};    // longest drain of a rank that finds a disagreement

/// Whether a reduction of reductions is that of all parts, bit for bit. An average divides once, f16 and bf16 are
/// rounded once.
bool reduces_in_parts(const Call& call) {
  const DType dtype = call.in.dtype;
  const bool exact =
      dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
  return exact && call.reduce != ReduceOp::avg;
}

/// Memory is kept from call to call.
class MessageCollectives final : public Engine {
 public:
  explicit MessageCollectives(std::unique_ptr<Transport> transport);
  Transport& transport() override { return *transport_; }
  bool runs_in_waiters() const override { return false; }
  void finish(const Call& call, std::uint64_t sequence, Clock::time_point deadline, bool spin) override;
  void drain(Milliseconds timeout) override;
  std::unique_ptr<Engine> connect_subset(const Subset& subset) const override;

 private:
  struct Chunk {
    std::int64_t begin = 0, count = 0;  // elements
  };

  void all_reduce(const Call& call);
  void all_reduce_by_hosts(const Call& call);
  /// For ranks that own several subtrees of the blocks.
  void all_reduce_parts(const Call& call);
  /// Receives `chunk` of all parts of the other ranks, and points parts_ at all of them in order.
  void receive_subtrees(const Call& call, Chunk chunk);
  void send_subtrees(const Call& call, Chunk chunk, int peer);
  void reduce(const Call& call);
  void reduce_scatter(const Call& call);
  /// The collectives that reduce nothing.
  void move_pieces(const Call& call);

  void exchange_headers();
  void check_headers();
  void send(int peer, int phase, const void* data, std::size_t bytes);
  void receive(int peer, int phase, void* data, std::size_t bytes);
  /// Waits for all messages since the last call.
  void finish_messages();
  /// Receives `chunk` of all other ranks next to this rank's own, and points parts_ at them in rank order.
  void receive_parts(const Buffer& own, Chunk chunk, int phase, std::span<const int> ranks);
  /// Sends each of the other `ranks` its piece of `whole`.
  void send_pieces(const Buffer& buffer, Chunk whole, int phase, std::span<const int> ranks);
  /// Sends this rank's piece of `whole` to the other `ranks`, and receives theirs.
  void share_pieces(const Buffer& buffer, Chunk whole, Chunk own, int phase, std::span<const int> ranks);
  /// Waits for those parts and leaves their reduction at `own`, where this rank's is.
  void reduce_received(const Call& call, std::byte* own, std::int64_t count);
  static Chunk piece_of(Chunk whole, int pieces, int index);
  static std::size_t bytes_of(const Buffer& buffer, Chunk chunk) {
    return static_cast<std::size_t>(chunk.count) * size_of(buffer.dtype);
  }
  /// Ranks on each host, if sums may be made host by host with the same bits; else 0.
  int ranks_per_host() const;

  const std::unique_ptr<Transport> transport_;
  Clock::time_point deadline_;
  CallHeader header_;
  std::vector<RankHeader> peer_headers_;  // by rank
  std::vector<int> all_ranks_;
  int ranks_per_host_ = 0;
  std::vector<Transport::Request> header_requests_, requests_;
  std::vector<std::byte> staging_;
  std::vector<void*> parts_;
  TreeOrder order_;  // of the current call
};

MessageCollectives::MessageCollectives(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
  for (int rank = 0; rank < transport_->size(); ++rank) peer_headers_.push_back({rank, {}});
  for (int rank = 0; rank < transport_->size(); ++rank) all_ranks_.push_back(rank);
  ranks_per_host_ = ranks_per_host();
}

void MessageCollectives::finish(const Call& call, std::uint64_t sequence, Clock::time_point deadline, bool) {
  deadline_ = deadline;
  header_ = header_of(call, sequence);
  order_.set(transport_->size(), call.parts.blocks);
  header_requests_.clear();
  requests_.clear();
  exchange_headers();
  switch (call.op) {
    case Collective::all_reduce: all_reduce(call); break;
    case Collective::reduce: reduce(call); break;
    case Collective::reduce_scatter: reduce_scatter(call); break;
    case Collective::broadcast:
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_gather:
    case Collective::all_to_all: move_pieces(call); break;
    case Collective::barrier:
    case Collective::send:
    case Collective::recv: break;  // these two run in parallel with collectives
  }
  finish_messages();
}

void MessageCollectives::drain(Milliseconds timeout) {
  try {
    deadline_ = Clock::now() + timeout;
    header_ = header_of({.op = Collective::barrier}, ~std::uint64_t{0});
    header_requests_.clear();
    requests_.clear();
    exchange_headers();
    finish_messages();
  } catch (const Error&) {  // the peers have closed or are busy: no need to wait for them
  }
}

std::unique_ptr<Engine> MessageCollectives::connect_subset(const Subset& subset) const {
  return std::make_unique<MessageCollectives>(transport_->connect_subset(subset));
}

void MessageCollectives::exchange_headers() {
  peer_headers_[static_cast<std::size_t>(transport_->rank())].header = header_;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    CallHeader& received = peer_headers_[static_cast<std::size_t>(peer)].header;
    header_requests_.push_back(transport_->receive(peer, header_tag(header_), &received, sizeof(CallHeader)));
    requests_.push_back(transport_->send(peer, header_tag(header_), &header_, sizeof(CallHeader)));
  }
}

// Note [Disagreement]: all ranks receive all headers before any of them fails, so that each of them prints both sides.
// A rank that finds a disagreement drains before closing, so that peers report the mismatch, not a reset.
void MessageCollectives::check_headers() {
  if (header_requests_.empty()) return;
  std::string lost;
  std::exception_ptr loss;
  std::vector<int> silent;
  for (std::size_t i = 0, peer = 0; peer < peer_headers_.size(); ++peer) {
    if (peer_headers_[peer].rank == transport_->rank()) continue;
    try {  // after a loss, only what is there already
      transport_->wait(header_requests_[i++], lost.empty() ? deadline_ : std::min(deadline_, Clock::now()));
    } catch (const CommError& error) {
      if (lost.empty()) {
        lost = error.what();
        loss = std::current_exception();
      }
      silent.push_back(peer_headers_[peer].rank);
    }
  }
  header_requests_.clear();
  const auto is_silent = [&](const RankHeader& one) {  // its header may arrive at any moment
    return std::find(silent.begin(), silent.end(), one.rank) != silent.end();
  };
  Agreement all;
  for (const RankHeader& one : peer_headers_)
    if (!is_silent(one)) all.add(one.header);
  const bool agree = lost.empty() ? all.whole() : all.same();
  if (agree && lost.empty()) return;
  if (agree) std::rethrow_exception(loss);
  std::vector<RankHeader> known;
  std::remove_copy_if(peer_headers_.begin(), peer_headers_.end(), std::back_inserter(known), is_silent);
  const std::string text = disagreement(known);
  if (lost.empty()) drain(kDrainTime);
  throw CommError(lost.empty() ? text : concat(text, "; ", lost));
}

void MessageCollectives::send(int peer, int phase, const void* data, std::size_t bytes) {
  if (bytes > 0) requests_.push_back(transport_->send(peer, tag_of(header_, phase), data, bytes));
}

void MessageCollectives::receive(int peer, int phase, void* data, std::size_t bytes) {
  if (bytes > 0) requests_.push_back(transport_->receive(peer, tag_of(header_, phase), data, bytes));
}

void MessageCollectives::finish_messages() {
  check_headers();
  for (const Transport::Request request : requests_) transport_->wait(request, deadline_);
  requests_.clear();
}

MessageCollectives::Chunk MessageCollectives::piece_of(Chunk whole, int pieces, int index) {
  const std::int64_t even = (whole.count + pieces - 1) / pieces;
  const std::int64_t chunk = (even + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  const std::int64_t begin = std::min(whole.count, chunk * index);
  return {whole.begin + begin, std::min(whole.count, begin + chunk) - begin};
}

int MessageCollectives::ranks_per_host() const {
  const std::vector<int>& hosts = transport_->hosts();
  const int size = transport_->size();
  if (hosts.empty() || !std::has_single_bit(static_cast<unsigned>(size))) return 0;
  const auto each = static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[0]));
  if (each < 2 || each == size || size % each != 0) return 0;
  for (int rank = 0; rank < size; ++rank) {
    const int host = hosts[static_cast<std::size_t>(rank)];
    const auto first = hosts.begin() + rank / each * each;  // whole runs of the tree's leaves, no host twice
    if (host != *first || std::count(hosts.begin(), hosts.end(), host) != each) return 0;
  }
  return each;
}

void MessageCollectives::receive_parts(const Buffer& own, Chunk chunk, int phase, std::span<const int> ranks) {
  const std::size_t bytes = bytes_of(own, chunk);
  const std::size_t others = ranks.size() - 1;
  if (staging_.size() < bytes * others) staging_.resize(bytes * others);
  parts_.assign(ranks.size(), at(own, chunk.begin));
  std::byte* next = staging_.data();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == transport_->rank()) continue;
    parts_[i] = next;
    receive(ranks[i], phase, next, bytes);
    next += bytes;
  }
}

void MessageCollectives::send_pieces(const Buffer& buffer, Chunk whole, int phase, std::span<const int> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Chunk piece = piece_of(whole, static_cast<int>(ranks.size()), static_cast<int>(i));
    if (ranks[i] != transport_->rank()) send(ranks[i], phase, at(buffer, piece.begin), bytes_of(buffer, piece));
  }
}

void MessageCollectives::share_pieces(const Buffer& buffer, Chunk whole, Chunk own, int phase,
                                      std::span<const int> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == transport_->rank()) continue;
    const Chunk piece = piece_of(whole, static_cast<int>(ranks.size()), static_cast<int>(i));
    receive(ranks[i], phase, at(buffer, piece.begin), bytes_of(buffer, piece));
    send(ranks[i], phase, at(buffer, own.begin), bytes_of(buffer, own));
  }
}

void MessageCollectives::reduce_received(const Call& call, std::byte* own, std::int64_t count) {
  finish_messages();
  reduce_parts(parts_, count, call.in.dtype, call.reduce, order_.additions());
  copy_bytes(own, parts_[0], static_cast<std::size_t>(count) * size_of(call.in.dtype));
}

// Note [Sharded all_reduce]: each rank owns one chunk of the elements, gets that chunk from all others, reduces it in
// the one order that reduce_parts() defines, and sends the result to all. So every element is reduced once, and is the
// same bits on every rank; a rank sends and receives 2 (P-1)/P of the buffer, as a ring does, in 2 steps, not 2 (P-1).
void MessageCollectives::all_reduce(const Call& call) {
  if (call.parts.blocks != 0) return all_reduce_parts(call);
  const Buffer& buffer = call.in;
  const bool small = buffer.bytes() <= kSmallBytes;
  if (!small && ranks_per_host_ > 0 && reduces_in_parts(call)) return all_reduce_by_hosts(call);
  const Chunk whole{0, buffer.count};
  if (small) {
    receive_parts(buffer, whole, 0, all_ranks_);
    for (const int peer : all_ranks_)
      if (peer != transport_->rank()) send(peer, 0, buffer.data, buffer.bytes());
    return reduce_received(call, at(buffer, 0), buffer.count);
  }
  const Chunk own = piece_of(whole, transport_->size(), transport_->rank());
  receive_parts(buffer, own, 0, all_ranks_);
  send_pieces(buffer, whole, 0, all_ranks_);
  reduce_received(call, at(buffer, own.begin), own.count);
  share_pieces(buffer, whole, own, 1, all_ranks_);
}

void MessageCollectives::receive_subtrees(const Call& call, Chunk chunk) {
  const int self = transport_->rank();
  const std::size_t bytes = bytes_of(call.in, chunk);
  const auto others = static_cast<std::size_t>(order_.parts() - order_.parts_of(self));
  if (staging_.size() < bytes * others) staging_.resize(bytes * others);
  parts_.clear();
  std::byte* next = staging_.data();
  for (const int peer : all_ranks_)
    for (int part = 0; part < order_.parts_of(peer); ++part) {
      parts_.push_back(peer == self ? at(part_of(call, part), chunk.begin) : next);
      if (peer == self) continue;
      receive(peer, kFirstSubtree + part, next, bytes);
      next += bytes;
    }
}

void MessageCollectives::send_subtrees(const Call& call, Chunk chunk, int peer) {
  for (int part = 0; part < order_.parts_of(transport_->rank()); ++part)
    send(peer, kFirstSubtree + part, at(part_of(call, part), chunk.begin), bytes_of(call.in, chunk));
}

/// See Note [Sharded all_reduce].
void MessageCollectives::all_reduce_parts(const Call& call) {
  const int self = transport_->rank(), size = transport_->size();
  const Chunk whole{0, call.in.count};
  const bool small = call.in.bytes() <= kSmallBytes;
  const Chunk own = small ? whole : piece_of(whole, size, self);
  receive_subtrees(call, own);
  for (const int peer : all_ranks_)
    if (peer != self) send_subtrees(call, small ? whole : piece_of(whole, size, peer), peer);
  reduce_received(call, at(call.in, own.begin), own.count);
  if (!small) share_pieces(call.in, whole, own, 1, all_ranks_);
}

// Note [all_reduce by hosts]: the ranks of a host reduce first, each one piece of the buffer. Then the ranks with the
// same piece on all hosts reduce that, and each host puts its pieces together. A host's ranks are a subtree of the tree
// of reduce_parts(), so the bits are those of the sum over all ranks at once; but between hosts a rank moves its piece
// only, not that of its neighbours as well.
void MessageCollectives::all_reduce_by_hosts(const Call& call) {
  const int each = ranks_per_host_, place = transport_->rank() % each, host = transport_->rank() / each;
  const int count = transport_->size() / each;
  std::vector<int> near, far;
  for (int i = 0; i < each; ++i) near.push_back(host * each + i);
  for (int i = 0; i < count; ++i) far.push_back(i * each + place);
  const Chunk whole{0, call.in.count}, part = piece_of(whole, each, place), own = piece_of(part, count, host);
  receive_parts(call.in, part, 0, near);
  send_pieces(call.in, whole, 0, near);
  reduce_received(call, at(call.in, part.begin), part.count);
  receive_parts(call.in, own, 1, far);
  send_pieces(call.in, part, 1, far);
  reduce_received(call, at(call.in, own.begin), own.count);
  share_pieces(call.in, part, own, 2, far);
  finish_messages();
  share_pieces(call.in, whole, part, 3, near);
}

void MessageCollectives::reduce(const Call& call) {
  if (transport_->rank() != call.root) return send(call.root, 0, call.in.data, call.in.bytes());
  receive_parts(call.in, {0, call.in.count}, 0, all_ranks_);
  reduce_received(call, at(call.in, 0), call.in.count);
}

void MessageCollectives::reduce_scatter(const Call& call) {
  const int self = transport_->rank();
  copy_bytes(call.out.data, at(call.in, self * call.out.count), call.out.bytes());
  receive_parts(call.out, {0, call.out.count}, 0, all_ranks_);
  for (int peer = 0; peer < transport_->size(); ++peer)
    if (peer != self) send(peer, 0, at(call.in, peer * call.out.count), call.out.bytes());
  reduce_received(call, at(call.out, 0), call.out.count);
}

void MessageCollectives::move_pieces(const Call& call) {
  const int self = transport_->rank();
  const bool to_one = call.op == Collective::gather;  // the root
  const bool from_one = call.op == Collective::broadcast || call.op == Collective::scatter;
  const bool gives_pieces = call.op == Collective::scatter || call.op == Collective::all_to_all;
  const Buffer& target = call.op == Collective::broadcast ? call.in : call.out;
  const std::int64_t count =
      call.op == Collective::all_to_all ? call.in.count / transport_->size() : common_buffer(call).count;
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(call.in.dtype);
  for (const int peer : all_ranks_) {
    const bool gives = from_one ? self == call.root : !to_one || peer == call.root;
    const bool takes = from_one ? peer == call.root : !to_one || self == call.root;
    const std::byte* const from = at(call.in, gives_pieces && gives ? peer * count : 0);
    std::byte* const to = at(target, takes && !from_one ? peer * count : 0);
    if (peer == self && gives && takes) copy_bytes(to, from, bytes);
    if (peer == self) continue;
    if (takes) receive(peer, 0, to, bytes);
    if (gives) send(peer, 0, from, bytes);
  }
}

}  // namespace

std::unique_ptr<ProcessGroup> make_group(std::unique_ptr<Transport> transport, const GroupOptions& options) {
  return make_group(std::make_unique<MessageCollectives>(std::move(transport)), options);
}

}  // namespace duet::ddp
