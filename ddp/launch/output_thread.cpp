#include "ddp/launch/output_thread.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/base/start_thread.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr int kInterrupt = SIGURG;  // ignored by default, so one that comes late does no harm
constexpr std::chrono::milliseconds kAgain{5};
constexpr int kPatienceMs = 1000;

// Of the calling thread's OutputThread; null in other threads.
thread_local const std::atomic<bool>* abandoned_flag = nullptr;

void ignore_interrupt(int) {}

}  // namespace

OutputThread::OutputThread() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require<CommError>(event_.open(), "cannot make an event descriptor: ", last_errno);
  thread_ = start_thread("the thread that writes the ranks' output", [this] { serve(); });
}

OutputThread::~OutputThread() { stop(); }

void OutputThread::post(std::size_t bytes, std::function<void()> write) {
  queued_.fetch_add(bytes + 1);  // an empty line counts too
  const std::lock_guard lock(mutex_);
  writes_.push_back({bytes + 1, std::move(write)});
  changed_.notify_one();
}

void OutputThread::note_failure(int error) {
  int none = 0;
  failure_.compare_exchange_strong(none, error);
}

void OutputThread::acknowledge() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof(count));
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
    if (left == 0 || (before >= kRoom && left < kRoom)) {
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
    }
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

}  // namespace duet::ddp
