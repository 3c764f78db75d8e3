#include "lib/data/prefetcher.h"

#include <utility>

#include "lib/base/start_thread.h"

namespace duet::data {

Prefetcher::Prefetcher(int workers, int depth, std::int64_t first, std::int64_t end,
                       std::function<Batch(std::int64_t)> make)
    : make_(std::move(make)), slots_(static_cast<std::size_t>(depth)), claimed_(first), taken_(first), end_(end) {
  try {
    for (int i = 0; i < workers; ++i)
      threads_.push_back(start_thread("a worker thread of a data loader", [this] { work(); }));
  } catch (...) {
    stop();
    throw;
  }
}

Prefetcher::~Prefetcher() { stop(); }

void Prefetcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Batch Prefetcher::take() {
  std::unique_lock lock(mutex_);
  Slot& next = slot(taken_);
  filled_.wait(lock, [&] { return next.ready; });
  Slot result = std::exchange(next, {});
  ++taken_;
  lock.unlock();
  room_.notify_one();
  if (result.failure) std::rethrow_exception(result.failure);
  return std::move(result.batch);
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    room_.wait(lock, [&] { return stopping_ || claimed_ == end_ || claimed_ < taken_ + std::ssize(slots_); });
    if (stopping_ || claimed_ == end_) return;
    const std::int64_t step = claimed_++;
    lock.unlock();
    Slot result;
    try {
      result.batch = make_(step);
    } catch (...) {
      result.failure = std::current_exception();
    }
    result.ready = true;
    lock.lock();
    slot(step) = std::move(result);
    filled_.notify_one();
    if (claimed_ == end_) room_.notify_all();
  }
}

}  // namespace duet::data
