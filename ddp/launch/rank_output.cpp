#include "ddp/launch/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/io/folder.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

constexpr int kInterrupt = SIGURG;  // ignored by default, so one that comes late does no harm
constexpr std::chrono::milliseconds kAgain{5}, kOvertaken{200};
constexpr int kPatienceMs = 1000;

// Tells the thread of an OutputThread that stop() has abandoned its writes; null in other threads.
thread_local const std::atomic<bool>* abandoned_flag = nullptr;

void ignore_interrupt(int) {}

}  // namespace

OutputThread::OutputThread() {
  require<CommError>(bell_.open(), "cannot make an event descriptor: ", last_errno);
  thread_ = start_thread("the thread that writes the ranks' output", [this] { serve(); });
}

OutputThread::~OutputThread() { stop(); }

void OutputThread::post(std::size_t bytes, std::function<void()> write) {
  queued_.fetch_add(bytes + 1);  // an empty line counts too
  const std::lock_guard lock(mutex_);
  posted_.fetch_add(1);
  writes_.push_back({bytes + 1, std::move(write)});
  changed_.notify_one();
}

void OutputThread::note_failure(int error) {
  int none = 0;
  failure_.compare_exchange_strong(none, error);
}

void OutputThread::serve() {
  abandoned_flag = &abandoned_;
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, kInterrupt);
  ::pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !writes_.empty(); });
    if (stopping_) break;
    const Write write = std::move(writes_.front());
    writes_.pop_front();
    const bool runs = exception_ == nullptr;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      if (runs) write.run();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown) exception_ = thrown;
    if (abandoned_.load()) {
      writes_.push_front({write.bytes, {}});  // it was interrupted, so it counts as dropped
      break;
    }
    written_.fetch_add(1);
    const std::size_t before = queued_.fetch_sub(write.bytes), left = before - write.bytes;
    if (left == 0 || (before >= kRoom && left < kRoom)) bell_.ring();
  }
  ended_.store(true);
}

std::size_t OutputThread::stop() {
  if (!thread_.joinable()) return 0;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    abandoned_.store(!idle());
    changed_.notify_one();
  }
  struct sigaction interrupt {
  }, before{};
  interrupt.sa_handler = ignore_interrupt;  // without SA_RESTART, so that write() ends
  ::sigaction(kInterrupt, &interrupt, &before);
  // The thread may be just before its write() when a signal comes: one is not enough.
  while (!ended_.load()) {
    ::pthread_kill(thread_.native_handle(), kInterrupt);
    std::this_thread::sleep_for(kAgain);
  }
  thread_.join();
  ::sigaction(kInterrupt, &before, nullptr);
  std::size_t dropped = 0;
  for (const Write& write : writes_) dropped += write.bytes;
  return dropped;
}

void LaunchOutput::post_remark(std::size_t bytes, std::function<void()> write) {
  remarks.post(bytes, [this, before = lines.posted(), write = std::move(write)] {
    const auto deadline = Clock::now() + kOvertaken;
    while (lines.written() < before && Clock::now() < deadline) std::this_thread::sleep_for(kAgain);
    write();
  });
}

std::size_t LaunchOutput::stop() {
  const std::size_t dropped = lines.stop();
  remarks.stop();
  return dropped;
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    if (abandoned_flag != nullptr && abandoned_flag->load()) return false;
    const ssize_t wrote = ::write(descriptor, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

bool write_if_read(int descriptor, std::string_view text) {
  pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
  return ::poll(&room, 1, kPatienceMs) == 1 && write_all(descriptor, text);
}

namespace {

constexpr int kStdout = 1, kStderr = 2;  // bits of RankStreams

int stream_bits(std::string_view text, const std::string& whole) {
  require<UsageError>(text.size() == 1 && text[0] >= '0' && text[0] <= '3', "'", whole,
                      "': expected 0 (nothing), 1 (stdout), 2 (stderr), 3 (both), or RANK:NUMBER,...");
  return text[0] - '0';
}

}  // namespace

int RankStreams::of(int rank) const {
  const auto found = ranks.find(rank);
  return found == ranks.end() ? every : found->second;
}

bool RankStreams::any() const {
  for (const auto& [rank, bits] : ranks)
    if (bits != 0) return true;
  return every != 0;
}

RankStreams parse_streams(const std::string& text) {
  RankStreams streams;
  if (text.find(':') == std::string::npos) {
    streams.every = stream_bits(text, text);
    return streams;
  }
  for (std::string_view left = text; !left.empty();) {
    const std::string_view item = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), item.size() + 1));
    const std::size_t colon = std::min(item.find(':'), item.size());
    const auto rank = parse_number<int>(item.substr(0, colon));
    require<UsageError>(rank.value_or(-1) >= 0 && colon < item.size(), "'", text, "': '", item, "' is not RANK:NUMBER");
    require<UsageError>(streams.ranks.count(*rank) == 0, "'", text, "': rank ", *rank, " twice");
    streams.ranks[*rank] = stream_bits(item.substr(colon + 1), text);
  }
  return streams;
}

RankOutput::RankOutput(const LaunchOptions& options, OutputThread& thread, const std::string& folder, int attempt,
                       int first_rank)
    : options_(options), thread_(thread), folder_(folder.empty() ? "" : concat(folder, "/attempt_", attempt)) {
  if (folder_.empty()) return;
  for (int rank = first_rank; rank < first_rank + options.ranks + options.spares; ++rank)
    files_[rank] = open_files(rank);
}

void RankOutput::add(int rank) {
  if (folder_.empty() || !added_.insert(rank).second) return;
  const auto files = std::make_shared<Files>(open_files(rank));
  thread_.post(0, [self = shared_from_this(), rank, files] { self->files_[rank] = std::move(*files); });
}

RankOutput::Files RankOutput::open_files(int rank) const {
  make_folder(folder_of(rank));
  Files files;
  const int bits = options_.tee.of(rank) | options_.redirects.of(rank);
  for (const int bit : {kStdout, kStderr}) {
    if ((bits & bit) == 0) continue;
    const std::string path = folder_of(rank) + (bit == kStdout ? "/stdout.log" : "/stderr.log");
    Descriptor file(
        uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }));
    require<DataError>(file.open(), "cannot write ", path, ": ", last_errno);
    files[static_cast<std::size_t>(bit - 1)] = std::move(file);
  }
  return files;
}

std::string RankOutput::folder_of(int rank) const { return concat(folder_, "/rank_", rank); }
std::string RankOutput::error_file(int rank) const { return folder_.empty() ? "" : folder_of(rank) + "/error.json"; }

void RankOutput::print(int rank, bool is_stderr, std::string_view line) {
  thread_.post(line.size(), [self = shared_from_this(), rank, is_stderr, text = std::string(line)] {
    self->write(rank, is_stderr, text);
  });
}

void RankOutput::write(int rank, bool is_stderr, std::string_view line) {
  const int bit = is_stderr ? kStderr : kStdout;
  const bool teed = (options_.tee.of(rank) & bit) != 0;
  const auto found = files_.find(rank);
  if (found != files_.end() && found->second[static_cast<std::size_t>(bit - 1)].open()) {
    const HeldSizeSignal held;
    const bool wrote = write_all(found->second[static_cast<std::size_t>(bit - 1)].get(), concat(line, "\n"));
    if (!wrote && !complained_) {
      complained_ = true;
      write_all(STDERR_FILENO,
                concat("warning: not all lines of rank ", rank, " are in ", folder_of(rank), ": ", last_errno, "\n"));
    }
    if (!teed) return;
  }
  if (options_.on_line) return options_.on_line(rank, is_stderr, line);
  // One write, so that lines of several ranks never mix.
  const bool label = teed || options_.label_lines;
  if (!write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO,
                 label ? concat("[rank ", rank, "] ", line, "\n") : concat(line, "\n")))
    thread_.note_failure(errno);
}

void remark(const LaunchOptions& options, LaunchOutput& output, const std::string& said) {
  output.post_remark(said.size(), [&options, text = printable(said, "\n")] {  // of other launchers, and of ranks
    if (options.on_remark)
      options.on_remark(text);
    else
      write_all(STDERR_FILENO, text + "\n");
  });
}

LaunchResult interrupted_by(int signal) {
  return {.exit_code = 128 + signal,
          .signal = signal,
          .message = concat("ended by ", signal_text(signal),
                            signal == SIGPIPE ? ": nothing reads the output of the ranks any more" : "")};
}

namespace {

// How long a failed or interrupted job waits for a reader of its output that takes nothing, and when it says why.
constexpr Milliseconds kReaderPatience{10'000}, kReaderPatienceInterrupted{1000}, kTold{500};

}  // namespace

void drain(const LaunchOptions& options, LaunchOutput& output, const SignalPipe& signals, LaunchResult& result) {
  std::uint64_t written = output.lines.written();
  const bool interrupted = result.exit_code > 128;
  const Milliseconds patience = interrupted ? kReaderPatienceInterrupted : kReaderPatience;
  bool told = result.exit_code == 0 || interrupted;
  auto last = Clock::now();  // when the reader took something
  while (!output.idle()) {
    std::array<pollfd, 3> events = {pollfd{signals.descriptor(), POLLIN, 0},
                                    pollfd{output.lines.descriptor(), POLLIN, 0},
                                    pollfd{output.remarks.descriptor(), POLLIN, 0}};
    ::poll(events.data(), events.size(), 100);
    output.lines.acknowledge();
    output.remarks.acknowledge();
    if (const int signal = signals.next(); signal != 0 && !is_left_to_ranks(signal)) {
      if (result.exit_code == 0) result = interrupted_by(signal);
      if (signal != SIGPIPE) break;  // the other stream's lines may still be read
    }
    const auto now = Clock::now();
    if (output.lines.written() != written) last = now;
    written = output.lines.written();
    if (result.exit_code != 0 && now - last >= patience) break;
    if (!told && now - last >= kTold && !output.lines.idle()) {
      told = true;
      remark(options, output, concat(result.message, "; its job's output is not read"));
    }
  }
  const std::size_t dropped = output.stop();
  if (dropped > 0) result.message += concat("; ", dropped, " bytes of output were not written: their reader took none");
  output.lines.rethrow();
  output.remarks.rethrow();
  if (output.lines.failure() == 0 || result.exit_code != 0) return;
  result.exit_code = 1;
  result.message = concat("cannot write all that the ranks have printed: ", errno_text(output.lines.failure()));
}

}  // namespace duet::ddp
