#include "ddp/tcp/tcp_receiver.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;  // of a message

std::string mismatch(const TcpHead& came, const TcpHead& expected) {
  return concat("it sent ", came.bytes, " bytes, expected ", expected.bytes);
}

}  // namespace

std::vector<TcpMessage*>::iterator TcpReceiver::find(std::uint64_t tag) {
  return std::find_if(expected_.begin(), expected_.end(), [&](const TcpMessage* one) { return one->head.tag == tag; });
}

bool TcpReceiver::take_early(TcpMessage& message) {
  const auto whole = early_arrives_ ? std::prev(early_.end()) : early_.end();  // all before it
  const auto early =
      std::find_if(early_.begin(), whole, [&](const Early& one) { return one.head.tag == message.head.tag; });
  if (early == whole) return false;
  take(early, message);
  return true;
}

void TcpReceiver::take(std::list<Early>::iterator early, TcpMessage& message) {
  if (early->head.bytes == message.head.bytes) {
    early->data.copy_to(message.data);
    message.done = true;
  } else {
    message.failure = mismatch(early->head, message.head);
  }
  early_.erase(early);
}

void TcpReceiver::expect(TcpMessage& message) {
  expected_.push_back(&message);
  if (std::exchange(parked_, false)) begin_arrival();
}

std::span<std::byte> TcpReceiver::room() {
  if (arrived_ < sizeof(TcpHead))
    return {reinterpret_cast<std::byte*>(&arriving_) + arrived_, sizeof(TcpHead) - arrived_};
  if (early_arrives_) return early_.back().data.room();
  const std::size_t done = arrived_ - sizeof(TcpHead);
  return {target_->data + done, arriving_.bytes - done};
}

bool TcpReceiver::advance(std::size_t bytes) {
  if (early_arrives_) early_.back().data.advance(bytes);
  arrived_ += bytes;
  if (arrived_ == sizeof(TcpHead)) begin_arrival();
  return arrived_ == sizeof(TcpHead) + arriving_.bytes && end_arrival();
}

/// Finds where the data go: the first that is expected under the tag, or memory of their own.
void TcpReceiver::begin_arrival() {
  require<CommError>(arriving_.bytes > 0 && arriving_.bytes <= kMostBytes, "it announced a message of ",
                     arriving_.bytes, " bytes, expected 1 to ", kMostBytes);
  if (const auto wanted = find(arriving_.tag); wanted != expected_.end()) {
    if ((*wanted)->head.bytes != arriving_.bytes) throw CommError(mismatch(arriving_, (*wanted)->head));
    target_ = *wanted;
  } else if (expected_.empty()) {
    parked_ = true;
  } else {
    keep_early();
  }
}

void TcpReceiver::keep_early() {
  early_.push_back({arriving_, EarlyData(arriving_.bytes)});
  early_arrives_ = true;
}

void TcpReceiver::keep_parked() {
  if (std::exchange(parked_, false)) keep_early();
}

bool TcpReceiver::end_arrival() {
  arrived_ = 0;
  const auto wanted = find(arriving_.tag);
  if (std::exchange(early_arrives_, false)) {
    if (wanted == expected_.end()) return false;
    take(std::prev(early_.end()), **wanted);  // it has been expected while the data were on the way
  } else {
    std::exchange(target_, nullptr)->done = true;
  }
  expected_.erase(wanted);
  return true;
}

void TcpReceiver::stop(const std::string& reason) {
  for (TcpMessage* const message : expected_) message->failure = reason;
  expected_.clear();
  if (early_arrives_) early_.pop_back();
  arrived_ = 0;
  target_ = nullptr;
  early_arrives_ = parked_ = false;
}

}  // namespace duet::ddp
