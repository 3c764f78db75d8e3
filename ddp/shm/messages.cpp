#include "ddp/shm/messages.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>

#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;  // of a message

/// Whether a message is the one that is received.
bool is_same(const CallHeader& one, const CallHeader& other) {
  return one.tag == other.tag && one.sequence == other.sequence;
}

void check_expected(int peer, const CallHeader& expected, const CallHeader& arrived) {
  require<CommError>(expected.count == arrived.count && expected.dtype == arrived.dtype, "rank ", peer, " sends ",
                     arrived.count, " ", static_cast<DType>(arrived.dtype), ", expected ", expected.count, " ",
                     static_cast<DType>(expected.dtype));
}

/// The peer can have written anything.
void check_header(int peer, const CallHeader& header) {
  const std::size_t size = size_of(static_cast<DType>(header.dtype));
  const bool good = size > 0 && header.count >= 0 && static_cast<std::uint64_t>(header.count) <= kMostBytes / size;
  require<CommError>(good, "rank ", peer, " sends a damaged header: ", header.count, " elements of dtype ",
                     int{header.dtype});
}

}  // namespace

Messages::Messages(ControlBlock& control_block)
    : control_block_(control_block), lines_(static_cast<std::size_t>(control_block.size())) {}

std::size_t Messages::bytes_of(const CallHeader& header) {
  return static_cast<std::size_t>(header.count) * size_of(static_cast<DType>(header.dtype));
}

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

void Messages::stop() {
  stopped_ = true;
  for (Line& line : lines_) {
    line.out.clear();
    line.in.clear();
    line.early.clear();
  }
}

std::uint64_t Messages::send(int peer, const CallHeader& header, void* data) {
  require<CommError>(!stopped_, "this rank has closed its connections");
  lines_[static_cast<std::size_t>(peer)].out.push_back({next_, header, static_cast<std::byte*>(data), 0});
  return next_++;
}

std::uint64_t Messages::receive(int peer, const CallHeader& header, void* data) {
  return or_stop([&] { return match(peer, header, data); });
}

std::uint64_t Messages::match(int peer, const CallHeader& header, void* data) {
  Line& line = lines_[static_cast<std::size_t>(peer)];
  const auto early =
      std::find_if(line.early.begin(), line.early.end(), [&](const Early& one) { return is_same(one.header, header); });
  const bool whole = early != line.early.end() && !(early_arrives(line) && &*early == &line.early.back());
  if (whole) {
    check_expected(peer, header, early->header);
    early->data.copy_to(static_cast<std::byte*>(data));
    line.early.erase(early);
    return next_++;
  }
  line.in.push_back({next_, header, static_cast<std::byte*>(data), 0});
  return next_++;
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
    Message& message = line.out.front();
    const std::size_t payload = bytes_of(message.header), end = sizeof(CallHeader) + payload;
    const auto* const head = reinterpret_cast<const std::byte*>(&message.header);
    const std::span<const std::byte> rest =
        message.done < sizeof(CallHeader)
            ? std::span(head + message.done, sizeof(CallHeader) - message.done)
            : std::span<const std::byte>(message.data + (message.done - sizeof(CallHeader)), end - message.done);
    const std::size_t bytes = rest.empty() ? 0 : ring_to(peer).write(rest);
    moved |= bytes > 0;
    message.done += bytes;
    if (message.done == end)
      line.out.pop_front();
    else if (bytes == 0)
      break;
  }
  if (moved) control_block_.ring(peer);
}

void Messages::read(int peer, Line& line) {
  if (peer == control_block_.rank()) return;
  bool moved = false;
  for (;;) {
    std::span<std::byte> rest;
    if (line.arrived < sizeof(CallHeader)) {
      rest = std::span(reinterpret_cast<std::byte*>(&line.arriving) + line.arrived, sizeof(CallHeader) - line.arrived);
    } else {
      rest = room(peer, line);
    }
    const std::size_t bytes = rest.empty() ? 0 : ring_from(peer).read(rest);
    moved |= bytes > 0;
    if (early_arrives(line)) line.early.back().data.advance(bytes);
    line.arrived += bytes;
    if (line.arrived < sizeof(CallHeader) || (bytes == 0 && !rest.empty())) {
      if (bytes == 0) break;
      continue;
    }
    if (line.arrived == sizeof(CallHeader)) {
      check_header(peer, line.arriving);
      begin_arrival(peer, line);
    }
    if (line.arrived == sizeof(CallHeader) + bytes_of(line.arriving)) end_arrival(peer, line);
  }
  if (moved) control_block_.ring(peer);
}

/// Finds where the payload goes: the first receive of its tag, or memory of its own.
void Messages::begin_arrival(int peer, Line& line) {
  const auto wanted = std::find_if(line.in.begin(), line.in.end(),
                                   [&](const Message& one) { return is_same(one.header, line.arriving); });
  if (wanted != line.in.end()) {
    check_expected(peer, wanted->header, line.arriving);
    line.target = &*wanted;
    return;
  }
  line.target = nullptr;
  line.early.push_back({line.arriving, EarlyData(bytes_of(line.arriving))});
}

std::span<std::byte> Messages::room(int peer, Line& line) {
  const std::size_t done = line.arrived - sizeof(CallHeader);
  if (line.target != nullptr) return {line.target->data + done, bytes_of(line.arriving) - done};
  try {
    return line.early.back().data.room();
  } catch (const std::bad_alloc&) {
    throw CommError(concat("rank ", peer, " sends ", bytes_of(line.arriving),
                           " bytes that nothing waits for, and there is no memory to keep them"));
  }
}

void Messages::end_arrival(int peer, Line& line) {
  line.arrived = 0;
  if (line.target != nullptr) {
    const std::uint64_t number = line.target->number;
    line.target = nullptr;
    std::erase_if(line.in, [&](const Message& one) { return one.number == number; });
    return;
  }
  // Its receive may have been called while it was on the way.
  Early& early = line.early.back();
  const auto wanted = std::find_if(line.in.begin(), line.in.end(),
                                   [&](const Message& one) { return is_same(one.header, early.header); });
  if (wanted == line.in.end()) return;
  check_expected(peer, wanted->header, early.header);
  early.data.copy_to(wanted->data);
  line.in.erase(wanted);
  line.early.pop_back();
}

bool Messages::pending(std::uint64_t number) const { return peer_of(number) >= 0; }

bool Messages::any_pending() const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return !line.out.empty() || !line.in.empty(); });
}

int Messages::peer_of(std::uint64_t number) const {
  const auto has = [&](const std::deque<Message>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Message& one) { return one.number == number; });
  };
  for (std::size_t peer = 0; peer < lines_.size(); ++peer)
    if (has(lines_[peer].out) || has(lines_[peer].in)) return static_cast<int>(peer);
  return -1;
}

}  // namespace duet::ddp
