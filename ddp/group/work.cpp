#include "ddp/group/work.h"

#include <string_view>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {

bool GroupFailure::empty() const {
  const std::lock_guard lock(mutex_);
  return text_.empty();
}

void GroupFailure::check() const {
  const std::lock_guard lock(mutex_);
  require<CommError>(text_.empty(), text_);
}

std::string GroupFailure::add(const std::string& operation, int rank, const std::exception& error) {
  const std::lock_guard lock(mutex_);
  if (!text_.empty()) return text_;
  std::string own = concat(operation, " failed on rank ", rank, ": ", error.what());
  text_ = "the process group has failed: " + own;
  return own;
}

void GroupFailure::close() {
  const std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = "the process group is closed";
}

void WorkState::begin(std::string_view name, std::function<bool(Clock::time_point)> finisher) {
  const std::lock_guard lock(mutex_);
  name_.assign(name);
  done_ = false;
  failure_ = nullptr;
  finisher_ = std::move(finisher);
  mark_ = {};
}

void WorkState::end(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  done_ = true;
  failure_ = std::move(failure);
  mark_.ended(failure_ != nullptr);
  ended_.notify_all();
}

bool WorkState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void WorkState::set_mark(CallMark mark) {
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
  if (done_) mark_.ended(failure_ != nullptr);
}

void WorkState::wait(Clock::time_point deadline, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!done_ && finisher_) {
    auto finisher = std::exchange(finisher_, nullptr);
    lock.unlock();
    bool ended = true;
    try {
      ended = finisher(deadline);
      if (ended) end();
    } catch (...) {
      end(std::current_exception());
    }
    lock.lock();
    if (!ended && !done_) finisher_ = std::move(finisher);
  }
  // Not wait_until(max): some implementations overflow on it.
  const bool forever = deadline == Clock::time_point::max();
  if (forever) ended_.wait(lock, [this] { return done_; });
  const bool ended = forever || ended_.wait_until(lock, deadline, [this] { return done_; });
  require<CommError>(ended, name_, " has not ended within ", timeout.count(), " ms");
  if (failure_) std::rethrow_exception(failure_);
}

void Work::wait() {
  if (state_) state_->wait(Clock::time_point::max(), Milliseconds(0));
}

void Work::wait(Milliseconds timeout) {
  if (state_) state_->wait(Clock::now() + timeout, timeout);
}

void Work::set_mark(CallMark mark) { state_ ? state_->set_mark(std::move(mark)) : mark.ended(false); }

std::shared_ptr<WorkState> WorkPool::take() {
  for (const auto& state : states_) {
    if (state.use_count() == 1 && state->done()) return state;
  }
  states_.push_back(std::make_shared<WorkState>());
  return states_.back();
}

}  // namespace duet::ddp
