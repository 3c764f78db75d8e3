#include "ddp/launch/launcher_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "lib/base/text.h"
#include "lib/base/threads.h"

namespace duet::ddp {

namespace {

constexpr Milliseconds kHeartbeat{250};  // commits go along with it
constexpr Milliseconds kSlice{100};      // in which threads look whether they are to end

}  // namespace

Bell::Bell() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  require<CommError>(event_.open(), "no descriptor for the launchers of other hosts: ", last_errno);
}

void Bell::ring() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(event_.get(), &one, sizeof one);
}

void Bell::reset() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
}

Inbox::Inbox(std::unique_ptr<Store> store, std::string prefix, const Bell& bell, bool keeps)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      bell_(bell),
      keeps_(keeps),
      thread_(start_thread("the thread that hears other launchers", [this] { serve(); })) {}

Inbox::~Inbox() {
  stopping_ = true;
  thread_.join();
}

std::vector<std::string> Inbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(texts_, {});
}

bool Inbox::is_silent() {
  const std::lock_guard lock(mutex_);
  return texts_.empty() && looked_ > heard_ + kHostLimit;
}

std::string Inbox::lost() {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Inbox::serve() {
  try {
    for (std::int64_t next = 0; !stopping_;) {
      const Clock::time_point begin = Clock::now();
      const std::string key = concat(prefix_, next);
      if (!comes(key)) {
        const std::lock_guard lock(mutex_);
        looked_ = begin;
        continue;
      }
      const std::string text = store_->get(key);
      if (!keeps_) store_->delete_key(key);
      ++next;
      const std::lock_guard lock(mutex_);
      texts_.push_back(text);
      heard_ = Clock::now();
      bell_.ring();
    }
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    lost_ = error.what();
    bell_.ring();
  }
}

/// Waits for it a moment.
bool Inbox::comes(const std::string& key) {
  try {
    store_->wait({key}, kSlice);
    return true;
  } catch (const CommError&) {
    return store_->check({key});  // throws where the store is lost
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

Outbox::Outbox(Store& store, std::string prefix, const JobMemory& memory)
    : store_(store), prefix_(std::move(prefix)), memory_(memory) {}

bool Outbox::is_due() const { return memory_.changes() != changes_ || Clock::now() >= sent_ + kHeartbeat; }

void Outbox::send(const std::string& text) {
  sent_ = Clock::now();
  store_.set(concat(prefix_, next_++), text);
}

}  // namespace duet::ddp
