// The collectives as messages between ranks; the same for every transport.
#pragma once

#include <string>
#include <vector>

#include "ddp/process_group.h"
#include "ddp/transport.h"

namespace duet::ddp {

/// What every rank tells every other at the start of a collective, so that ranks that disagree are named on all of them
/// instead of hanging or mixing their numbers.
struct Header {
  std::uint64_t sequence = 0;  // number of the collective, or of the message between two ranks
  std::int64_t count = 0;      // elements per rank
  std::int32_t root = 0;
  std::int32_t tag = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reduce = 0;
  std::uint8_t padding[5] = {};

  bool operator==(const Header&) const = default;
};

Header header_of(const Call& call, std::uint64_t sequence);
/// "all_reduce of 1000 f32 (sum)".
std::string describe(const Header& header);
/// A transport's tag for this call's messages. It covers all of the header, so that a payload of another size is never
/// matched: Gloo aborts the process on one.
std::uint64_t tag_of(const Header& header, int phase);
/// A tag that two ranks agree on even if they disagree about everything but the sequence.
std::uint64_t header_tag(const Header& header);

/// Runs collectives one after the other. Memory is kept from call to call.
class Collectives {
 public:
  /// Ends within `timeout` per call. Throws CommError.
  Collectives(Transport& transport, Milliseconds timeout);
  void run(const Call& call, std::uint64_t sequence);
  /// Waits until all peers are done too, at most `timeout`; swallows errors.
  void take_leave(Milliseconds timeout);

 private:
  struct Chunk {
    std::int64_t begin = 0, count = 0;  // elements
  };

  void all_reduce(const Call& call);
  void reduce(const Call& call);
  void broadcast(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void all_gather(const Call& call);

  void exchange_headers();
  void check_headers();
  void send(int peer, int phase, const void* data, std::size_t bytes);
  void receive(int peer, int phase, void* data, std::size_t bytes);
  /// Waits for all messages since the last call.
  void finish_messages();
  /// Receives `chunk` of all other ranks beside this rank's own, and points parts_ at them in rank order.
  void receive_parts(const Buffer& own, Chunk chunk, int phase);
  Chunk chunk_of(std::int64_t count, int rank) const;

  Transport& transport_;
  Milliseconds timeout_;
  Clock::time_point deadline_;
  Header header_;
  std::vector<Header> heard_;  // by rank
  std::vector<Transport::Request> header_requests_, requests_;
  std::vector<std::byte> staging_;
  std::vector<void*> parts_;
};

}  // namespace duet::ddp
