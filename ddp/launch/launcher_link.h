// What the launchers of an elastic job on several hosts send to each other, by way of a store: see job_hosts.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/launch/job_memory.h"
#include "ddp/store/store.h"
#include "lib/base/descriptor.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// How long a host may say nothing before it counts as lost, or before it gives the arbiter up.
inline constexpr Milliseconds kHostLimit{5000};

template <class Message>
std::string written(Message message) {
  StateStream stream{std::vector<std::byte>()};
  message.stream(stream);
  const std::vector<std::byte> bytes = stream.written();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Message>
Message read(const std::string& text) {
  StateStream stream{std::as_bytes(std::span(text))};
  Message message;
  message.stream(stream);
  require<CommError>(stream.at_end(), "a launcher of another version has sent ", text.size(), " bytes");
  return message;
}

template <class Value>
void stream_each(StateStream& stream, std::vector<Value>& values) {
  std::uint32_t count = static_cast<std::uint32_t>(values.size());
  stream.value(count);
  if (stream.reads()) stream.require_left(count, 1);
  values.resize(count);
  for (Value& value : values) value.stream(stream);
}

/// What one launcher tells the other once. Of its texts only the newest need arrive: each has all that the other has
/// not said to have taken.
template <class Item>
struct Backlog {
  std::int64_t first = 0;  // how many there were before these
  std::vector<Item> items{};

  std::int64_t end() const { return first + std::ssize(items); }
  void clear() { first = end(), items.clear(); }
  /// The other launcher has taken so many in all.
  void forget(std::int64_t taken) {
    const auto old = std::clamp<std::int64_t>(taken - first, 0, std::ssize(items));
    items.erase(items.begin(), items.begin() + old);
    first += old;
  }
  /// Those that are new to a launcher that has taken so many.
  std::vector<Item> take(std::int64_t& taken) const {
    const auto old = std::clamp<std::int64_t>(taken - first, 0, std::ssize(items));
    taken = std::max(taken, end());
    return {items.begin() + old, items.end()};
  }
  void stream(StateStream& stream) {
    stream.value(first);
    require<CommError>(0 <= first && first <= std::int64_t{1} << 62, "a launcher has told ", first, " things before");
    stream_each(stream, items);
  }
};

/// From another host to the arbiter's.
struct Report {
  struct Loss {
    std::int32_t rank = 0, replacement = 0, phase = 0;
    std::string how{};

    void stream(StateStream& stream) {
      for (std::int32_t* const number : {&rank, &replacement, &phase}) stream.value(*number);
      stream.sequence(how);
    }
  };
  std::int64_t taken = 0;    // starts
  std::uint8_t is_idle = 0;  // no process runs
  std::vector<JobLine> lines{};
  Backlog<Loss> losses{};
  enum class End : std::uint8_t { none, well, failed, left };
  End ended = End::none;
  std::string failure{};

  void stream(StateStream& stream) {
    stream.value(taken);
    stream.value(is_idle);
    stream.sequence(lines);
    losses.stream(stream);
    stream.value(ended);
    stream.sequence(failure);
  }
};

/// From the arbiter's host to another one.
struct Order {
  struct Start {
    std::int32_t rank = 0, replacement = 0;
    std::uint8_t is_first = 0;  // since all have begun

    void stream(StateStream& stream) {
      stream.value(rank);
      stream.value(replacement);
      stream.value(is_first);
    }
  };
  std::int32_t begun = 0;  // how often all ranks have begun again
  std::int64_t taken = 0;  // losses
  std::vector<std::byte> decisions{};
  Backlog<Start> starts{};
  std::uint8_t ended = 0;
  std::string reason{};

  void stream(StateStream& stream) {
    stream.value(begun);
    stream.value(taken);
    stream.sequence(decisions);
    starts.stream(stream);
    stream.value(ended);
    stream.sequence(reason);
  }
};

/// One direction between two launchers: texts under a key of the store, each in the place of one that was not taken
/// yet. Thread-safe.
class Letterbox {
 public:
  Letterbox(const Letterbox&) = delete;
  Letterbox& operator=(const Letterbox&) = delete;
  /// Why nothing goes or comes any more; empty: something may. The bell has rung for it.
  std::string lost();

 protected:
  Letterbox(std::shared_ptr<Store> store, std::string key, const Bell& bell)
      : store_(std::move(store)), key_(std::move(key)), bell_(bell) {
    require<CommError>(bell.open(), "no descriptor for the launchers of other hosts: ", last_errno);
  }
  ~Letterbox() = default;
  /// Calls `serve` on the thread, and keeps what it throws.
  void start(const std::string& what, std::function<void()> serve);
  void stop();

  const std::shared_ptr<Store> store_;
  const std::string key_;
  const Bell& bell_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::string lost_;

 private:
  std::thread thread_;
};

class Inbox final : public Letterbox {
 public:
  Inbox(std::shared_ptr<Store> store, std::string key, const Bell& bell);
  ~Inbox() { stop(); }
  std::vector<std::string> take();
  /// Whether nothing has come for the limit. Time in which this process was stopped doesn't count.
  bool is_silent();

 private:
  void serve();

  std::vector<std::string> texts_;
  Clock::duration silence_{};  // of looks in vain
};

/// Rings when the memory changes.
class MemoryWatch {
 public:
  MemoryWatch(const JobMemory& memory, const Bell& bell);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// What a launcher sends to another one: at once where anything but commits has changed, else now and then.
class Outbox final : public Letterbox {
 public:
  Outbox(std::shared_ptr<Store> store, std::string key, const Bell& bell, const JobMemory& memory);
  /// Sends the last text first.
  ~Outbox() { stop(); }
  bool is_due();
  /// Before what is sent is read from the memory.
  void note_changes() { changes_ = memory_.changes(); }
  /// In the place of a text that has not gone yet. Doesn't wait.
  void send(std::string text);

 private:
  void serve();

  const JobMemory& memory_;
  std::uint32_t changes_ = 0;
  Clock::time_point sent_{};  // the last one had gone
  std::optional<std::string> text_;
};

}  // namespace duet::ddp
