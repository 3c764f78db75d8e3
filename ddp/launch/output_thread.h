// A thread that writes a launcher's output, so that a stalled reader does not block the supervision.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Runs writes one after the other, in the order of post(). post(), has_room(), idle() and written() are for any
/// thread, the rest for the owner.
class OutputThread {
 public:
  static constexpr std::size_t kRoom = std::size_t{1} << 20;  // bytes

  /// Throws Error when no thread can be started.
  OutputThread();
  /// As stop().
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  /// Queues a write of about `bytes`; never blocks. After an exception of one, which stop() rethrows, none is run.
  void post(std::size_t bytes, std::function<void()> write);
  /// Whether less than kRoom bytes are queued: the owner should read no more from the ranks otherwise.
  bool has_room() const { return queued_.load() < kRoom; }
  bool idle() const { return queued_.load() == 0; }
  /// Writes that have ended; counts up while the reader takes something.
  std::uint64_t written() const { return written_.load(); }
  /// Records that a write has failed with this errno; the first counts.
  void note_failure(int error);
  /// 0 if none has.
  int failure() const { return failure_.load(); }

  /// Readable once has_room() or idle() has become true; acknowledge() ends that.
  int descriptor() const { return event_.get(); }
  void acknowledge() const;

  /// Interrupts a write that blocks, drops what is queued, ends the thread, and returns how many bytes were dropped.
  std::size_t stop();
  /// The exception of a write, if there was one; after stop().
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  struct Write {
    std::size_t bytes;
    std::function<void()> run;
  };
  void serve();

  Descriptor event_;
  std::atomic<std::size_t> queued_{0};
  std::atomic<std::uint64_t> written_{0};
  std::atomic<int> failure_{0};
  std::atomic<bool> abandoned_{false}, ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Write> writes_;
  bool stopping_ = false;
  std::exception_ptr exception_;
  std::thread thread_;
};

/// Writes all of it. Returns false with errno when that fails, or when OutputThread::stop() interrupts it.
bool write_all(int descriptor, std::string_view text);

/// As write_all(), if the reader takes anything within a second, else false.
bool write_if_read(int descriptor, std::string_view text);

}  // namespace duet::ddp
