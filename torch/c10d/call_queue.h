// The thread that carries out a backend's calls for which no thread of the program waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace duet::torch {

/// Ends calls one after the other and runs the callbacks of their futures, and in between starts the calls that the
/// program makes meanwhile. So what a callback calls lies in the same place of the order on every rank: after the call
/// of its future, before the program's next one, whether the callback was attached before that call had ended or, and
/// then runs in the program's thread, after. A callback has to be attached before the program's next call. Thread-safe.
class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  /// Runs tasks one after the other, in the order of the calls. They throw nothing. False, and no task, after stop().
  bool add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    // The thread keeps the queue: the last owner may let go of it within a task.
    if (!thread_.joinable()) thread_ = std::thread([self = shared_from_this()] { self->serve(); });
    tasks_.push_back(std::move(task));
    changed_.notify_one();
    return true;
  }
  /// Whether a task waits or runs.
  bool busy() const {
    const std::lock_guard lock(mutex_);
    return runs_ || !tasks_.empty();
  }
  /// Whether this is within a task.
  bool is_here() const { return current() == this; }
  /// Runs what was added, then ends the thread; within a task it ends after that. Called before the last owner goes.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_one();
    }
    if (!thread_.joinable()) return;
    is_here() ? thread_.detach() : thread_.join();
  }

 private:
  static const CallQueue*& current() {
    thread_local const CallQueue* queue = nullptr;
    return queue;
  }

  void serve() {
    current() = this;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      runs_ = true;
      lock.unlock();
      task();
      task = nullptr;  // what it holds may be the last of something
      lock.lock();
      runs_ = false;
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
  bool runs_ = false, stopped_ = false;
};

}  // namespace duet::torch
