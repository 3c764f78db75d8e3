// Sends and receives between two ranks of one host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "ddp/shm/control_block.h"
#include "ddp/transport/early_data.h"
#include "ddp/transport/message_collectives.h"

namespace duet::ddp {

/// All messages of one rank. Those of one tag and sequence between two ranks arrive in order; nothing here waits. After
/// an error all calls throw CommError: the rings hold parts of messages. Used by one thread at a time.
class Messages {
 public:
  explicit Messages(ControlBlock& control_block);

  /// A new message; `header` says its tag, count and dtype, and the memory stays the caller's. Returns its number.
  std::uint64_t send(int peer, const CallHeader& header, void* data);
  /// Throws CommError when the peer has sent something else.
  std::uint64_t receive(int peer, const CallHeader& header, void* data);
  /// Moves what can be moved without waiting. Throws CommError when a peer sends something else than was expected.
  void progress();
  /// Drops all messages; their memory is not used from then on.
  void stop();
  /// progress() moves nothing from then on; messages that have not ended stay pending.
  void freeze() { frozen_ = true; }
  /// True until the message has ended; it is then dropped.
  bool pending(std::uint64_t number) const;
  bool any_pending() const;
  /// The other rank of a message that is pending.
  int peer_of(std::uint64_t number) const;

 private:
  struct Message {
    std::uint64_t number = 0;
    CallHeader header;
    std::byte* data = nullptr;
    std::size_t done = 0;  // bytes of header and data together
  };
  /// A message that came before its receive() was called.
  struct Early {
    CallHeader header;
    EarlyData data;
  };
  /// The messages with one peer.
  struct Line {
    std::deque<Message> out, in;  // in the order of the calls
    std::deque<Early> early;
    CallHeader arriving;        // of the message whose bytes come in now
    std::size_t arrived = 0;    // bytes of it, header included
    Message* target = nullptr;  // where they go; null: the last of `early`
  };
  static std::size_t bytes_of(const CallHeader& header);
  /// Whether the payload of the last early message is on its way.
  static bool early_arrives(const Line& line) { return line.arrived >= sizeof(CallHeader) && line.target == nullptr; }
  /// Runs `action`, and stops if it throws.
  template <class Action>
  auto or_stop(Action&& action);
  std::uint64_t match(int peer, const CallHeader& header, void* data);
  void write(int peer, Line& line);
  void read(int peer, Line& line);
  /// Where the next bytes of the payload go.
  std::span<std::byte> room(int peer, Line& line);
  void begin_arrival(int peer, Line& line);
  void end_arrival(int peer, Line& line);
  ByteRing ring_to(int peer) const { return ByteRing(control_block_.ring_memory(control_block_.rank(), peer)); }
  ByteRing ring_from(int peer) const { return ByteRing(control_block_.ring_memory(peer, control_block_.rank())); }

  ControlBlock& control_block_;
  std::vector<Line> lines_;  // by peer
  std::uint64_t next_ = 1;
  bool stopped_ = false, frozen_ = false;
};

}  // namespace duet::ddp
