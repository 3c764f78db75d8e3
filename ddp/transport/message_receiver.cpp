#include "ddp/transport/message_receiver.h"

#include <iterator>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {
namespace {

void check_head(const MessageHead& head) {
  require<CommError>(head.bytes > 0 && head.bytes <= kMostMessageBytes, "it announced a message of ", head.bytes,
                     " bytes, expected 1 to ", kMostMessageBytes);
}

/// Why what arrived is not what is expected; empty if it is.
std::string mismatch(const MessageHead& arrived, const MessageHead& expected) {
  if (arrived.bytes == expected.bytes) return {};
  return concat("it sent ", arrived.bytes, " bytes, expected ", expected.bytes);
}

}  // namespace

std::int64_t MessageTable::add(StreamMessage message) {
  const auto is_idle = [](const StreamMessage& one) { return !one.busy || (one.own && one.ended()); };
  const auto idle = std::ranges::find_if(messages_, is_idle);
  const std::int64_t number = idle - messages_.begin();
  if (idle == messages_.end())
    messages_.push_back(std::move(message));
  else
    *idle = std::move(message);
  return number;
}

bool MessageTable::release(std::int64_t number) {
  if (number < 0) return true;
  StreamMessage& message = at(number);
  message.busy = !message.ended();
  if (!message.busy) return true;
  message.own = std::make_unique_for_overwrite<std::byte[]>(message.head.bytes);
  if (message.sends) std::memcpy(message.own.get(), message.data, message.head.bytes);
  message.data = message.own.get();
  return true;
}

MessageReceiver::MessageReceiver(bool parks) : parks_(parks) {
  expected_.reserve(64);  // few at a time: steps allocate nothing
}

bool MessageReceiver::take_early(StreamMessage& message) {
  const auto whole = early_arrives_ ? std::prev(early_.end()) : early_.end();  // all before it
  const auto early =
      std::find_if(early_.begin(), whole, [&](const Early& one) { return one.head.tag == message.head.tag; });
  if (early == whole) return false;
  take(early, message);
  return true;
}

void MessageReceiver::expect(StreamMessage& message) {
  expected_.push_back(&message);
  if (std::exchange(parked_, false)) begin_arrival();
}

std::span<std::byte> MessageReceiver::room() {
  if (arrived_ < sizeof(MessageHead)) return std::as_writable_bytes(std::span(&arriving_, 1)).subspan(arrived_);
  if (early_arrives_) return early_.back().data.room();
  const std::size_t done = arrived_ - sizeof(MessageHead);
  return {target_->data + done, static_cast<std::size_t>(arriving_.bytes) - done};
}

bool MessageReceiver::advance(std::size_t bytes) {
  if (early_arrives_) early_.back().data.advance(bytes);
  arrived_ += bytes;
  if (arrived_ == sizeof(MessageHead)) begin_arrival();
  return arrived_ >= sizeof(MessageHead) && arrived_ == sizeof(MessageHead) + arriving_.bytes && end_arrival();
}

void MessageReceiver::keep_parked() {
  if (std::exchange(parked_, false)) keep_early();
}

void MessageReceiver::stop(const std::string& reason) {
  for (StreamMessage* const message : expected_) message->failure = reason;
  expected_.clear();
  if (early_arrives_) early_.pop_back();
  arrived_ = 0;
  target_ = nullptr;
  early_arrives_ = parked_ = false;
}

MessageReceiver::Expected::iterator MessageReceiver::find_wanted() {
  return std::find_if(expected_.begin(), expected_.end(),
                      [&](const StreamMessage* one) { return one->head.tag == arriving_.tag; });
}

void MessageReceiver::begin_arrival() {
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

void MessageReceiver::keep_early() {
  early_.push_back({arriving_, EarlyData(static_cast<std::size_t>(arriving_.bytes))});
  early_arrives_ = true;
}

bool MessageReceiver::end_arrival() {
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

void MessageReceiver::take(std::list<Early>::iterator early, StreamMessage& message) {
  message.failure = mismatch(early->head, message.head);
  message.done = message.failure.empty();
  if (message.done) early->data.copy_to(message.data);
  early_.erase(early);
}

}  // namespace duet::ddp
