#include "ddp/launch/launcher_link.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "lib/base/threads.h"

namespace duet::ddp {

namespace {

constexpr Milliseconds kHeartbeat{1000};     // commits go along with it
constexpr Milliseconds kSlice{100};          // in which threads look whether they are to end
constexpr Milliseconds kMostSlice{2000};     // if the other launcher is far away
constexpr Milliseconds kLongestDelay{1000};  // of a look: the rest was this process's own pause

}  // namespace

std::string Letterbox::lost() {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Letterbox::start(const std::string& what, std::function<void()> serve) {
  thread_ = start_thread(what, [this, serve = std::move(serve)] {
    try {
      serve();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      lost_ = error.what();
      bell_.ring();
    }
  });
}

void Letterbox::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

Inbox::Inbox(std::shared_ptr<Store> store, std::string key, const Bell& bell)
    : Letterbox(std::move(store), std::move(key), bell) {
  start("the thread that hears another launcher", [this] { serve(); });
}

std::vector<std::string> Inbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(texts_, {});
}

bool Inbox::is_silent() {
  const std::lock_guard lock(mutex_);
  return texts_.empty() && silence_ >= kHostLimit;
}

void Inbox::serve() {
  std::unique_lock lock(mutex_);
  for (Milliseconds slice = kSlice; !stopping_;) {
    lock.unlock();
    const Clock::time_point begin = Clock::now();
    const Clock::duration longest = slice + kLongestDelay;
    std::optional<std::string> text;
    try {
      text = store_->take(key_, slice);
    } catch (const CommError&) {
      const auto took = std::chrono::floor<Milliseconds>(Clock::now() - begin);
      if (took < slice) throw;                // not for the time
      const Milliseconds way = took - slice;  // to the store and back: what comes between two looks waits as long
      slice = std::clamp(4 * way, kSlice, kMostSlice);
    }
    lock.lock();
    silence_ = text ? Clock::duration{} : silence_ + std::min(Clock::now() - begin, longest);
    if (!text) continue;
    texts_.push_back(std::move(*text));
    bell_.ring();
  }
}

MemoryWatch::MemoryWatch(const JobMemory& memory, const Bell& bell)
    : thread_(start_thread("the thread that watches the elastic job's memory", [this, &memory, &bell] {
        for (std::uint32_t seen = memory.changes(); !stopping_;) {
          memory.await_change(seen, kSlice);
          if (const std::uint32_t now = memory.changes(); std::exchange(seen, now) != now) bell.ring();
        }
      })) {}

MemoryWatch::~MemoryWatch() {
  stopping_ = true;
  thread_.join();
}

Outbox::Outbox(std::shared_ptr<Store> store, std::string key, const Bell& bell, const JobMemory& memory)
    : Letterbox(std::move(store), std::move(key), bell), memory_(memory) {
  start("the thread that tells another launcher", [this] { serve(); });
}

bool Outbox::is_due() {
  const std::lock_guard lock(mutex_);
  return memory_.changes() != changes_ || (!text_ && Clock::now() >= sent_ + kHeartbeat);
}

void Outbox::send(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
  sent_ = Clock::time_point::max() - kHeartbeat;
  changed_.notify_one();
}

void Outbox::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || text_; });
    if (!text_) return;
    const std::string text = *std::exchange(text_, {});
    lock.unlock();
    store_->post(key_, text);  // no answer, for which the next text would wait
    lock.lock();
    sent_ = Clock::now();
  }
}

}  // namespace duet::ddp
