// The stream of bytes from one peer, taken apart into messages. Without a socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "ddp/transport/early_data.h"

namespace duet::ddp {

/// Goes before every message; in this machine's byte order.
struct TcpHead {
  std::uint64_t tag = 0, bytes = 0;
};

/// A message that a rank sends or receives.
struct TcpMessage {
  int peer = 0;
  bool sends = false;
  TcpHead head;
  std::byte* data = nullptr;
  std::string failure{};
  bool busy = true, done = false;
};

/// Moves what arrives into the messages that are expected; what comes before it is expected is kept. While no message
/// is expected, the next one is parked: it stays where it is. Errors are CommErrors and
/// std::bad_alloc, after which only stop() may be called, and then take_early(). Not thread-safe.
class TcpReceiver {
 public:
  TcpReceiver() { expected_.reserve(64); }  // few at a time: steps allocate nothing

  /// Whether the message came before; it is then done, or has failed as its size is another one.
  bool take_early(TcpMessage& message);
  /// From now on the message's memory is used, until it is done or has failed.
  void expect(TcpMessage& message);
  /// Where the next bytes go; not while a message is parked.
  std::span<std::byte> room();
  /// So many bytes have arrived in room(). Returns whether a message is done or has failed.
  bool advance(std::size_t bytes);
  bool parked() const { return parked_; }
  /// The parked message is kept until it is expected.
  void keep_parked();
  /// Of the message that is arriving.
  std::uint64_t announced() const { return arriving_.bytes; }
  /// Fails all that is expected, and drops what is arriving.
  void stop(const std::string& reason);

 private:
  struct Early {
    TcpHead head;
    EarlyData data;
  };
  void begin_arrival();
  bool end_arrival();
  void keep_early();
  void take(std::list<Early>::iterator early, TcpMessage& message);
  std::vector<TcpMessage*>::iterator find(std::uint64_t tag);

  std::vector<TcpMessage*> expected_;  // in the order of the calls
  std::list<Early> early_;
  TcpHead arriving_;
  std::size_t arrived_ = 0;       // bytes of it, head included
  TcpMessage* target_ = nullptr;  // where they go
  bool early_arrives_ = false;    // they go to the last of early_
  bool parked_ = false;
};

}  // namespace duet::ddp
