// The stream of bytes from one peer, taken apart into messages. Without a socket.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/error.h"

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

/// A message that a rank sends or receives. In a stream its head goes before its data.
template <class Head>
struct StreamMessage {
  int peer = 0;
  bool sends = false;
  Head head{};
  std::byte* data = nullptr;
  std::string failure{};
  bool busy = true, done = false;
};

/// Moves what arrives into the messages that are expected; what comes before it is expected is kept. If it `parks`, the
/// next message stays where it is while none is expected. Errors are CommErrors and std::bad_alloc, after which only
/// stop() may be called, and then take_early(). Not thread-safe.
/// Of a Head there are same_message(a, b); payload_bytes(head); check_head(head), which throws CommError for one that
/// no rank sends; and mismatch(arrived, expected): why the second is not received by the first, or empty.
template <class Head>
class MessageReceiver {
 public:
  using Message = StreamMessage<Head>;

  explicit MessageReceiver(bool parks = true) : parks_(parks) {
    expected_.reserve(64);  // few at a time: steps allocate nothing
  }

  /// Whether the message came before; it is then done, or has failed as it is another one.
  bool take_early(Message& message) {
    const auto whole = early_arrives_ ? std::prev(early_.end()) : early_.end();  // all before it
    const auto early =
        std::find_if(early_.begin(), whole, [&](const Early& one) { return same_message(one.head, message.head); });
    if (early == whole) return false;
    take(early, message);
    return true;
  }
  /// From now on the message's memory is used, until it is done or has failed.
  void expect(Message& message) {
    expected_.push_back(&message);
    if (std::exchange(parked_, false)) begin_arrival();
  }
  /// Where the next bytes go; not while a message is parked.
  std::span<std::byte> room() {
    if (arrived_ < sizeof(Head)) return std::as_writable_bytes(std::span(&arriving_, 1)).subspan(arrived_);
    if (early_arrives_) return early_.back().data.room();
    const std::size_t done = arrived_ - sizeof(Head);
    return {target_->data + done, static_cast<std::size_t>(payload_bytes(arriving_)) - done};
  }
  /// So many bytes have arrived in room(). Returns whether a message is done or has failed.
  bool advance(std::size_t bytes) {
    if (early_arrives_) early_.back().data.advance(bytes);
    arrived_ += bytes;
    if (arrived_ == sizeof(Head)) begin_arrival();
    return arrived_ >= sizeof(Head) && arrived_ == sizeof(Head) + payload_bytes(arriving_) && end_arrival();
  }
  bool parked() const { return parked_; }
  /// The parked message is kept until it is expected.
  void keep_parked() {
    if (std::exchange(parked_, false)) keep_early();
  }
  /// Of the message that is arriving.
  std::uint64_t announced() const { return payload_bytes(arriving_); }
  /// Fails all that is expected, and drops what is arriving.
  void stop(const std::string& reason) {
    for (Message* const message : expected_) message->failure = reason;
    expected_.clear();
    if (early_arrives_) early_.pop_back();
    arrived_ = 0;
    target_ = nullptr;
    early_arrives_ = parked_ = false;
  }

 private:
  struct Early {
    Head head;
    EarlyData data;
  };

  /// The first that is expected under the head of what arrives.
  auto find_wanted() {
    return std::find_if(expected_.begin(), expected_.end(),
                        [&](const Message* one) { return same_message(one->head, arriving_); });
  }

  /// Finds where the data go: the first that is expected, or memory of their own.
  void begin_arrival() {
    check_head(arriving_);
    if (const auto wanted = find_wanted(); wanted != expected_.end()) {
      const std::string difference = mismatch(arriving_, (*wanted)->head);
      require<CommError>(difference.empty(), difference);
      target_ = *wanted;
    } else if (parks_ && expected_.empty()) {
      parked_ = true;
    } else {
      keep_early();
    }
  }

  void keep_early() {
    early_.push_back({arriving_, EarlyData(static_cast<std::size_t>(payload_bytes(arriving_)))});
    early_arrives_ = true;
  }

  bool end_arrival() {
    arrived_ = 0;
    const auto wanted = find_wanted();
    if (std::exchange(early_arrives_, false)) {
      if (wanted == expected_.end()) return false;
      take(std::prev(early_.end()), **wanted);  // it has been expected while the data were on the way
    } else {
      std::exchange(target_, nullptr)->done = true;
    }
    expected_.erase(wanted);
    return true;
  }

  void take(typename std::list<Early>::iterator early, Message& message) {
    message.failure = mismatch(early->head, message.head);
    message.done = message.failure.empty();
    if (message.done) early->data.copy_to(message.data);
    early_.erase(early);
  }

  bool parks_;
  std::vector<Message*> expected_;  // in the order of the calls
  std::list<Early> early_;
  Head arriving_{};
  std::size_t arrived_ = 0;     // bytes of it, head included
  Message* target_ = nullptr;   // where they go
  bool early_arrives_ = false;  // they go to the last of early_
  bool parked_ = false;
};

}  // namespace duet::ddp
