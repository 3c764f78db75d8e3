// Where the lines go that the ranks of a job print, and the thread that writes them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "ddp/launch/job_processes.h"
#include "ddp/launch/launch.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Runs writes one after the other, in the order of post(). post(), has_room(), idle(), posted() and written() are for
/// any thread, the rest for the owner.
class OutputThread {
 public:
  static constexpr std::size_t kRoom = std::size_t{1} << 20;  // bytes

  /// Throws Error when no thread can be started.
  OutputThread();
  /// Ends the thread as stop() does.
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  /// Queues a write of about `bytes`; never blocks. After an exception of one, which stop() rethrows, none is run.
  void post(std::size_t bytes, std::function<void()> write);
  /// Whether less than kRoom bytes are queued: the owner should read no more from the ranks otherwise.
  bool has_room() const { return queued_.load() < kRoom; }
  bool idle() const { return queued_.load() == 0; }
  std::uint64_t posted() const { return posted_.load(); }
  /// Writes that have ended; counts up while the reader takes something.
  std::uint64_t written() const { return written_.load(); }
  /// Records that a write has failed with this errno; the first counts.
  void note_failure(int error);
  /// 0 if none has.
  int failure() const { return failure_.load(); }

  /// Readable once has_room() or idle() has become true; acknowledge() ends that.
  int descriptor() const { return bell_.descriptor(); }
  void acknowledge() const { bell_.reset(); }

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

  Bell bell_;
  std::atomic<std::size_t> queued_{0};
  std::atomic<std::uint64_t> posted_{0}, written_{0};
  std::atomic<int> failure_{0};
  std::atomic<bool> abandoned_{false}, ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Write> writes_;
  bool stopping_ = false;
  std::exception_ptr exception_;
  std::thread thread_;
};

/// What a launch writes: the ranks' lines, and the launcher's own messages, which unread lines of ranks do not hold
/// up.
struct LaunchOutput {
  OutputThread lines{}, remarks{};

  /// Queues a remark to come after the lines that are queued now, if those are written within a moment.
  void post_remark(std::size_t bytes, std::function<void()> write);
  bool idle() const { return lines.idle() && remarks.idle(); }
  /// Stops both threads, see OutputThread::stop(), and returns how many bytes of lines were dropped.
  std::size_t stop();
  ~LaunchOutput() { stop(); }
};

/// Writes all of it. Returns false with errno when that fails, or when OutputThread::stop() interrupts it.
bool write_all(int descriptor, std::string_view text);

/// Writes as write_all() does, if the reader takes anything within a second; else returns false.
bool write_if_read(int descriptor, std::string_view text);

/// The files of one attempt: FOLDER/attempt_A/rank_R/{stdout,stderr}.log, as far as they are wanted.
class RankOutput : public std::enable_shared_from_this<RankOutput> {
 public:
  /// `folder` is empty if there are no files. Throws DataError for one that cannot be made.
  RankOutput(const LaunchOptions& options, OutputThread& thread, const std::string& folder, int attempt,
             int first_rank);
  /// Another rank, of another host, is here now. Throws as the constructor does.
  void add(int rank);
  /// Passes a line on in the output thread, to a file, the terminal or both. Never throws or blocks: a full disk must
  /// not end the job; it is reported once.
  void print(int rank, bool is_stderr, std::string_view line);
  /// The rank's error file; empty without a folder.
  std::string error_file(int rank) const;

 private:
  using Files = std::array<Descriptor, 2>;
  Files open_files(int rank) const;
  std::string folder_of(int rank) const;
  void write(int rank, bool is_stderr, std::string_view line);

  const LaunchOptions& options_;
  OutputThread& thread_;
  std::string folder_;
  std::map<int, Files> files_;  // used by the output thread once there is a line
  std::set<int> added_;
  bool complained_ = false;
};

/// Queues a remark of the launcher.
void remark(const LaunchOptions& options, LaunchOutput& output, const std::string& text);

LaunchResult interrupted_by(int signal);

/// Waits until the ranks' output is written: after a success as long as it takes, else while its reader takes
/// something; where it takes none, a remark says at once why the job has ended. A signal ends the wait.
void drain(const LaunchOptions& options, LaunchOutput& output, const SignalPipe& signals, LaunchResult& result);

}  // namespace duet::ddp
