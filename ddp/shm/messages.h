// Sends and receives between two ranks of one host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/shm/control_block.h"
#include "ddp/transport/message_receiver.h"

namespace duet::ddp {

// A message's header goes before its data: see MessageReceiver.
bool same_message(const CallHeader& one, const CallHeader& other);
std::uint64_t payload_bytes(const CallHeader& header);
void check_head(const CallHeader& header);
std::string mismatch(const CallHeader& arrived, const CallHeader& expected);

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
  using Message = StreamMessage<CallHeader>;
  /// The messages with one peer.
  struct Line {
    std::deque<std::uint64_t> out;  // in the order of the calls
    std::size_t written = 0;        // bytes of the first of them, header included
    MessageReceiver<CallHeader> receiver{false};
  };
  /// Runs `action`, and stops if it throws.
  template <class Action>
  auto or_stop(Action&& action);
  /// Runs `action` on what a peer sends, and names the peer in its errors.
  template <class Action>
  auto from(int peer, Action&& action);
  void write(int peer, Line& line);
  void read(int peer, Line& line);
  /// Drops the messages that are done. Throws CommError for one that has failed.
  void drop_ended();

  ControlBlock& control_block_;
  std::vector<Line> lines_;                   // by peer
  std::map<std::uint64_t, Message> pending_;  // by number
  std::uint64_t next_ = 1;
  bool stopped_ = false, frozen_ = false;
};

}  // namespace duet::ddp
