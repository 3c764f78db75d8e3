#include "ddp/shm/messages.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {

bool same_message(const CallHeader& one, const CallHeader& other) {
  return one.tag == other.tag && one.sequence == other.sequence;
}

std::uint64_t payload_bytes(const CallHeader& header) {
  return static_cast<std::uint64_t>(header.count) * size_of(static_cast<DType>(header.dtype));
}

/// The peer can have written anything.
void check_head(const CallHeader& header) {
  const std::size_t size = size_of(static_cast<DType>(header.dtype));
  const bool good =
      size > 0 && header.count >= 0 && static_cast<std::uint64_t>(header.count) <= kMostMessageBytes / size;
  require<CommError>(good, "sends a damaged header: ", header.count, " elements of dtype ", int{header.dtype});
}

std::string mismatch(const CallHeader& arrived, const CallHeader& expected) {
  if (expected.count == arrived.count && expected.dtype == arrived.dtype) return {};
  return concat("sends ", arrived.count, " ", static_cast<DType>(arrived.dtype), ", expected ", expected.count, " ",
                static_cast<DType>(expected.dtype));
}

Messages::Messages(ControlBlock& control_block)
    : control_block_(control_block), lines_(static_cast<std::size_t>(control_block.size())) {}

template <class Action>
auto Messages::or_stop(Action&& action) {
  require<CommError>(!stopped_, "this rank has closed its connections");
  try {
    return action();
  } catch (...) {
    stop();
    throw;
  }
}

template <class Action>
auto Messages::from(int peer, Action&& action) {
  try {
    return action();
  } catch (const CommError& error) {
    throw CommError(concat("rank ", peer, " ", error.what()));
  } catch (const std::bad_alloc&) {
    throw CommError(concat("rank ", peer, " sends ", lines_[static_cast<std::size_t>(peer)].receiver.announced(),
                           " bytes that nothing waits for, and there is no memory to keep them"));
  }
}

void Messages::stop() {
  stopped_ = true;
  pending_.clear();
  lines_ = std::vector<Line>(lines_.size());
}

std::uint64_t Messages::send(int peer, const CallHeader& header, void* data) {
  require<CommError>(!stopped_, "this rank has closed its connections");
  pending_[next_] = {.peer = peer, .sends = true, .head = header, .data = static_cast<std::byte*>(data)};
  lines_[static_cast<std::size_t>(peer)].out.push_back(next_);
  return next_++;
}

std::uint64_t Messages::receive(int peer, const CallHeader& header, void* data) {
  return or_stop([&] {
    MessageReceiver<CallHeader>& receiver = lines_[static_cast<std::size_t>(peer)].receiver;
    Message& message = pending_[next_] = {.peer = peer, .head = header, .data = static_cast<std::byte*>(data)};
    if (receiver.take_early(message))
      drop_ended();
    else
      receiver.expect(message);
    return next_++;
  });
}

void Messages::drop_ended() {
  for (const auto& [number, message] : pending_)
    require<CommError>(message.failure.empty(), "rank ", message.peer, " ", message.failure);
  std::erase_if(pending_, [](const auto& one) { return one.second.done; });
}

void Messages::progress() {
  or_stop([&] {
    for (int peer = 0; !frozen_ && peer < control_block_.size(); ++peer) {
      Line& line = lines_[static_cast<std::size_t>(peer)];
      write(peer, line);
      read(peer, line);
    }
  });
}

void Messages::write(int peer, Line& line) {
  bool moved = false;
  while (!line.out.empty()) {
    const Message& message = pending_.at(line.out.front());
    const auto head = std::as_bytes(std::span(&message.head, 1));
    const auto payload = static_cast<std::size_t>(payload_bytes(message.head));
    const std::span<const std::byte> rest =
        line.written < head.size()
            ? head.subspan(line.written)
            : std::span<const std::byte>(message.data, payload).subspan(line.written - head.size());
    const std::size_t bytes =
        rest.empty() ? 0 : ByteRing(control_block_.ring_memory(control_block_.rank(), peer)).write(rest);
    moved |= bytes > 0;
    line.written += bytes;
    if (line.written == head.size() + payload) {
      pending_.erase(line.out.front());
      line.out.pop_front();
      line.written = 0;
    } else if (bytes == 0) {
      break;
    }
  }
  if (moved) control_block_.ring(peer);
}

void Messages::read(int peer, Line& line) {
  if (peer == control_block_.rank()) return;
  std::byte* const ring = control_block_.ring_memory(peer, control_block_.rank());
  if (ring == nullptr) return;
  bool moved = false;
  for (;;) {
    const std::span<std::byte> room = from(peer, [&] { return line.receiver.room(); });
    const std::size_t bytes = ByteRing(ring).read(room);
    if (bytes == 0) break;
    moved = true;
    if (from(peer, [&] { return line.receiver.advance(bytes); })) drop_ended();
  }
  if (moved) control_block_.ring(peer);
}

bool Messages::pending(std::uint64_t number) const { return pending_.contains(number); }

bool Messages::any_pending() const { return !pending_.empty(); }

int Messages::peer_of(std::uint64_t number) const {
  const auto found = pending_.find(number);
  return found == pending_.end() ? -1 : found->second.peer;
}

}  // namespace duet::ddp
