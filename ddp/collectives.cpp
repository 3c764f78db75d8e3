#include "ddp/collectives.h"

#include <algorithm>
#include <cstring>

#include "ddp/reduce_kernels.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

// Below this size every rank sends all of its elements to all others: one trip instead of two.
constexpr std::size_t kSmallBytes = 32 << 10;
constexpr std::int64_t kChunkAlignment = 16;  // elements; whole cache lines

std::uint64_t hash(const void* data, std::size_t bytes, std::uint64_t start) {  // FNV-1a
  std::uint64_t value = start;
  for (std::size_t i = 0; i < bytes; ++i) {
    value ^= static_cast<const unsigned char*>(data)[i];
    value *= 0x100000001b3;
  }
  return value;
}

std::byte* at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + static_cast<std::size_t>(element) * size_of(buffer.dtype);
}

}  // namespace

Header header_of(const Call& call, std::uint64_t sequence) {
  Header header;
  header.sequence = sequence;
  // scatter's root has the pieces of all in `in`; what all ranks have in common is `out`.
  header.count = call.op == Collective::scatter ? call.out.count : call.in.count;
  header.root = call.root;
  header.tag = call.tag;
  header.op = static_cast<std::uint8_t>(call.op);
  header.dtype = static_cast<std::uint8_t>(call.op == Collective::scatter ? call.out.dtype : call.in.dtype);
  header.reduce = static_cast<std::uint8_t>(call.reduce);
  return header;
}

std::string describe(const Header& header) {
  const auto op = static_cast<Collective>(header.op);
  if (op == Collective::barrier) return "barrier";
  std::string text = concat(name(op), " of ", header.count, " ", static_cast<DType>(header.dtype));
  if (op == Collective::all_reduce || op == Collective::reduce)
    text += concat(" (", name(static_cast<ReduceOp>(header.reduce)), ")");
  if (op != Collective::all_reduce && op != Collective::all_gather) text += concat(" with rank ", header.root);
  return text;
}

std::uint64_t tag_of(const Header& header, int phase) {
  return hash(&header, sizeof(header), 0xcbf29ce484222325 + static_cast<std::uint64_t>(phase));
}

std::uint64_t header_tag(const Header& header) {
  return hash(&header.sequence, sizeof(header.sequence), 0xe220a8397b1dcdaf);
}

Collectives::Collectives(Transport& transport, Milliseconds timeout)
    : transport_(transport), timeout_(timeout), heard_(static_cast<std::size_t>(transport.size())) {}

void Collectives::run(const Call& call, std::uint64_t sequence) {
  deadline_ = Clock::now() + timeout_;
  header_ = header_of(call, sequence);
  header_requests_.clear();
  requests_.clear();
  exchange_headers();
  switch (call.op) {
    case Collective::all_reduce: all_reduce(call); break;
    case Collective::reduce: reduce(call); break;
    case Collective::broadcast: broadcast(call); break;
    case Collective::gather: gather(call); break;
    case Collective::scatter: scatter(call); break;
    case Collective::all_gather: all_gather(call); break;
    case Collective::barrier:
    case Collective::send:
    case Collective::recv: break;  // the latter two run beside the collectives
  }
  finish_messages();
}

void Collectives::take_leave(Milliseconds timeout) {
  try {
    deadline_ = Clock::now() + timeout;
    header_ = header_of({.op = Collective::barrier}, ~std::uint64_t{0});
    header_requests_.clear();
    requests_.clear();
    exchange_headers();
    finish_messages();
  } catch (const Error&) {  // the peers are gone or busy: nothing is lost by not waiting for them
  }
}

void Collectives::exchange_headers() {
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank()) continue;
    Header& heard = heard_[static_cast<std::size_t>(peer)];
    header_requests_.push_back(transport_.receive(peer, header_tag(header_), &heard, sizeof(Header)));
    requests_.push_back(transport_.send(peer, header_tag(header_), &header_, sizeof(Header)));
  }
}

void Collectives::check_headers() {
  for (const Transport::Request request : header_requests_) transport_.wait(request, deadline_);
  if (header_requests_.empty()) return;
  header_requests_.clear();
  for (int peer = 0; peer < transport_.size(); ++peer) {
    const Header& heard = heard_[static_cast<std::size_t>(peer)];
    if (peer == transport_.rank() || heard == header_) continue;  // the texts below are made for errors only
    throw CommError(concat("the ranks disagree: rank ", transport_.rank(), " calls ", describe(header_), ", rank ",
                           peer, " calls ", describe(heard)));
  }
}

void Collectives::send(int peer, int phase, const void* data, std::size_t bytes) {
  if (bytes > 0) requests_.push_back(transport_.send(peer, tag_of(header_, phase), data, bytes));
}

void Collectives::receive(int peer, int phase, void* data, std::size_t bytes) {
  if (bytes > 0) requests_.push_back(transport_.receive(peer, tag_of(header_, phase), data, bytes));
}

void Collectives::finish_messages() {
  check_headers();
  for (const Transport::Request request : requests_) transport_.wait(request, deadline_);
  requests_.clear();
}

Collectives::Chunk Collectives::chunk_of(std::int64_t count, int rank) const {
  const std::int64_t even = (count + transport_.size() - 1) / transport_.size();
  const std::int64_t chunk = (even + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  const std::int64_t begin = std::min(count, chunk * rank);
  return {begin, std::min(count, begin + chunk) - begin};
}

void Collectives::receive_parts(const Buffer& own, Chunk chunk, int phase) {
  const std::size_t bytes = static_cast<std::size_t>(chunk.count) * size_of(own.dtype);
  const auto others = static_cast<std::size_t>(transport_.size() - 1);
  if (staging_.size() < bytes * others) staging_.resize(bytes * others);
  parts_.assign(static_cast<std::size_t>(transport_.size()), at(own, chunk.begin));
  std::byte* next = staging_.data();
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank()) continue;
    parts_[static_cast<std::size_t>(peer)] = next;
    receive(peer, phase, next, bytes);
    next += bytes;
  }
}

// Note [Sharded all_reduce]: each rank owns one chunk of the elements, gets that chunk from all others, reduces it in
// the one order that reduce_parts() defines, and sends the result to all. So every element is reduced once, and is the
// same bits on every rank; a rank sends and receives 2 (P-1)/P of the buffer, as a ring does, in 2 steps, not 2 (P-1).
void Collectives::all_reduce(const Call& call) {
  const Buffer& buffer = call.in;
  const int self = transport_.rank();
  const bool small = buffer.bytes() <= kSmallBytes;
  const Chunk own = small ? Chunk{0, buffer.count} : chunk_of(buffer.count, self);
  receive_parts(buffer, own, 0);
  for (int peer = 0; peer < transport_.size(); ++peer) {
    const Chunk chunk = small ? own : chunk_of(buffer.count, peer);
    const std::size_t bytes = static_cast<std::size_t>(chunk.count) * size_of(buffer.dtype);
    if (peer != self) send(peer, 0, at(buffer, chunk.begin), bytes);
  }
  finish_messages();

  reduce_parts(parts_, own.count, buffer.dtype, call.reduce);
  const std::size_t own_bytes = static_cast<std::size_t>(own.count) * size_of(buffer.dtype);
  if (self != 0 && own_bytes > 0) std::memcpy(at(buffer, own.begin), parts_[0], own_bytes);
  if (small) return;

  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == self) continue;
    const Chunk chunk = chunk_of(buffer.count, peer);
    receive(peer, 1, at(buffer, chunk.begin), static_cast<std::size_t>(chunk.count) * size_of(buffer.dtype));
    send(peer, 1, at(buffer, own.begin), own_bytes);
  }
}

void Collectives::reduce(const Call& call) {
  if (transport_.rank() != call.root) return send(call.root, 0, call.in.data, call.in.bytes());
  receive_parts(call.in, {0, call.in.count}, 0);
  finish_messages();
  reduce_parts(parts_, call.in.count, call.in.dtype, call.reduce);
  if (call.root != 0 && call.in.count > 0) std::memcpy(call.in.data, parts_[0], call.in.bytes());
}

void Collectives::broadcast(const Call& call) {
  if (transport_.rank() != call.root) return receive(call.root, 0, call.in.data, call.in.bytes());
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer != call.root) send(peer, 0, call.in.data, call.in.bytes());
  }
}

void Collectives::gather(const Call& call) {
  if (transport_.rank() != call.root) return send(call.root, 0, call.in.data, call.in.bytes());
  for (int peer = 0; peer < transport_.size(); ++peer) {
    std::byte* piece = at(call.out, peer * call.in.count);
    if (peer != call.root)
      receive(peer, 0, piece, call.in.bytes());
    else if (piece != call.in.data && call.in.count > 0)
      std::memcpy(piece, call.in.data, call.in.bytes());
  }
}

void Collectives::scatter(const Call& call) {
  if (transport_.rank() != call.root) return receive(call.root, 0, call.out.data, call.out.bytes());
  for (int peer = 0; peer < transport_.size(); ++peer) {
    const std::byte* piece = at(call.in, peer * call.out.count);
    if (peer != call.root)
      send(peer, 0, piece, call.out.bytes());
    else if (piece != call.out.data && call.out.count > 0)
      std::memcpy(call.out.data, piece, call.out.bytes());
  }
}

void Collectives::all_gather(const Call& call) {
  for (int peer = 0; peer < transport_.size(); ++peer) {
    std::byte* piece = at(call.out, peer * call.in.count);
    if (peer == transport_.rank()) {
      if (piece != call.in.data && call.in.count > 0) std::memcpy(piece, call.in.data, call.in.bytes());
      continue;
    }
    receive(peer, 0, piece, call.in.bytes());
    send(peer, 0, call.in.data, call.in.bytes());
  }
}

}  // namespace duet::ddp
