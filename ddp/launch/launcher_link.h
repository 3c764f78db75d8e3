// What the launchers of an elastic job on several hosts send to each other, by way of a store: see job_hosts.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddp/launch/job_memory.h"
#include "ddp/store/store.h"
#include "lib/base/descriptor.h"
#include "lib/base/recovery.h"
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
  std::int64_t orders = 0;   // that have been taken
  std::uint8_t is_idle = 0;  // no process runs
  std::vector<JobLine> lines{};
  std::vector<Loss> losses{};
  enum class End : std::uint8_t { none, well, failed, left };
  End ended = End::none;
  std::string failure{};

  void stream(StateStream& stream) {
    stream.value(orders);
    stream.value(is_idle);
    stream.sequence(lines);
    stream_each(stream, losses);
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
  std::vector<std::byte> decisions{};
  std::vector<Start> starts{};
  std::uint8_t ended = 0;
  std::string reason{};

  void stream(StateStream& stream) {
    stream.value(begun);
    stream.sequence(decisions);
    stream_each(stream, starts);
    stream.value(ended);
    stream.sequence(reason);
  }
};

/// Wakes the thread that supervises the processes.
class Bell {
 public:
  Bell();
  int descriptor() const { return event_.get(); }
  void ring() const;
  void reset() const;

 private:
  Descriptor event_;
};

/// What comes under PREFIX/0, PREFIX/1, ... of a store, in this order; thread-safe.
class Inbox {
 public:
  /// `keeps`: the keys stay, as others look for the first free one.
  Inbox(std::unique_ptr<Store> store, std::string prefix, const Bell& bell, bool keeps = false);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  std::vector<std::string> take();
  /// Whether nothing has come for the limit, as a look in vain says that began after it.
  bool is_silent();
  /// Why nothing comes any more; empty: something may.
  std::string lost();

 private:
  void serve();
  bool comes(const std::string& key);

  const std::unique_ptr<Store> store_;
  const std::string prefix_;
  const Bell& bell_;
  const bool keeps_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::string lost_;
  Clock::time_point heard_ = Clock::now(), looked_ = heard_;  // when the last one came; when the last vain look began
  std::thread thread_;
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
class Outbox {
 public:
  Outbox(Store& store, std::string prefix, const JobMemory& memory);
  bool is_due() const;
  /// Before what is sent is read from the memory.
  void note_changes() { changes_ = memory_.changes(); }
  void send(const std::string& text);
  /// How many texts.
  std::int64_t sent() const { return next_; }

 private:
  Store& store_;
  const std::string prefix_;
  const JobMemory& memory_;
  std::uint32_t changes_ = 0;
  Clock::time_point sent_{};
  std::int64_t next_ = 0;
};

}  // namespace duet::ddp
