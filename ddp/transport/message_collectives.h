// The collectives as messages between ranks; the same for every transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/transport.h"
#include "lib/monotonic.h"

namespace duet::ddp {

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
};

}  // namespace duet::ddp
