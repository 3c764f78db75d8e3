// The stream of bytes from one peer, taken apart into messages, whatever carries it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace duet::ddp {

inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{1} << 40;

/// The data of a message that comes before its receive() is called. Takes memory as they arrive, at most kPieceBytes
/// ahead of them, whatever size was announced. Not thread-safe.
class EarlyData {
 public:
  static constexpr std::size_t kPieceBytes = 256 << 10;

  explicit EarlyData(std::size_t announced) : announced_(announced) {}

  /// Where the next bytes go; empty once all have arrived. Throws std::bad_alloc.
  std::span<std::byte> room() {
    if (arrived_ == announced_) return {};
    const std::size_t piece = arrived_ / kPieceBytes, done = arrived_ % kPieceBytes;
    const std::size_t bytes = std::min(kPieceBytes, announced_ - piece * kPieceBytes);
    if (piece == pieces_.size()) pieces_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    return {pieces_[piece].get() + done, bytes - done};
  }
  /// So many bytes have arrived in room().
  void advance(std::size_t bytes) { arrived_ += bytes; }
  /// All that have arrived.
  void copy_to(std::byte* target) const {
    for (std::size_t done = 0; done < arrived_; done += kPieceBytes)
      std::memcpy(target + done, pieces_[done / kPieceBytes].get(), std::min(kPieceBytes, arrived_ - done));
  }

 private:
  std::size_t announced_, arrived_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> pieces_;  // all but the last of kPieceBytes
};

/// Goes before every message; in this machine's byte order.
struct MessageHead {
  std::uint64_t tag = 0, bytes = 0;
};

/// A message that a rank sends or receives. In a stream its head goes before its data.
struct StreamMessage {
  int peer = 0;
  bool sends = false;
  MessageHead head{};
  std::byte* data = nullptr;
  std::string failure{};
  bool busy = true, done = false;
  std::unique_ptr<std::byte[]> own{};  // where `data` is once it was released
  bool ended() const { return done || !failure.empty(); }
};

/// A rank's messages by number, which is used again once the message is not busy, or was released and has ended. Not
/// thread-safe.
class MessageTable {
 public:
  std::int64_t add(StreamMessage message);
  StreamMessage& at(std::int64_t number) { return messages_[static_cast<std::size_t>(number)]; }
  /// See Transport. Returns true; throws std::bad_alloc.
  bool release(std::int64_t number);

 private:
  std::deque<StreamMessage> messages_;  // growth moves none
};

/// Moves what arrives into the messages that are expected; what comes before it is expected is kept. If it `parks`, the
/// next message stays where it is while none is expected. Errors are CommErrors, of a head that no rank sends or a
/// message of another size than is expected, and std::bad_alloc; after one only stop() may be called, and then
/// take_early(). Not thread-safe.
class MessageReceiver {
 public:
  explicit MessageReceiver(bool parks = true);

  /// Whether the message came before; it is then done, or has failed as it is another one.
  bool take_early(StreamMessage& message);
  /// From now on the message's memory is used, until it is done or has failed.
  void expect(StreamMessage& message);
  /// Where the next bytes go; not while a message is parked.
  std::span<std::byte> room();
  /// So many bytes have arrived in room(). Returns whether a message is done or has failed.
  bool advance(std::size_t bytes);
  bool parked() const { return parked_; }
  /// The parked message is kept until it is expected.
  void keep_parked();
  /// Size of the message that is arriving.
  std::uint64_t announced() const { return arriving_.bytes; }
  /// Fails all that is expected, and drops what is arriving.
  void stop(const std::string& reason);

 private:
  struct Early {
    MessageHead head;
    EarlyData data;
  };
  using Expected = std::vector<StreamMessage*>;

  /// The first that is expected under the head of what arrives.
  Expected::iterator find_wanted();
  /// Finds where the data go: the first that is expected, or memory of their own.
  void begin_arrival();
  void keep_early();
  bool end_arrival();
  void take(std::list<Early>::iterator early, StreamMessage& message);

  bool parks_;
  Expected expected_;  // in the order of the calls
  std::list<Early> early_;
  MessageHead arriving_{};
  std::size_t arrived_ = 0;          // bytes of it, head included
  StreamMessage* target_ = nullptr;  // where they go
  bool early_arrives_ = false;       // they go to the last of early_
  bool parked_ = false;
};

}  // namespace duet::ddp
