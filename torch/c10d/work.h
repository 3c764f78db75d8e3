// What a call of the backend returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "ddp/group/work.h"
#include "lib/error.h"
#include "torch/c10d/errors.h"

namespace duet::torch {

/// A thread that ends what no thread of the program waits for. Thread-safe.
class BackgroundThread {
 public:
  ~BackgroundThread() { stop(); }
  /// Runs tasks one after the other, in the order of the calls; at once and here after stop().
  void add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopped_) {
        if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
        tasks_.push_back(std::move(task));
        changed_.notify_one();
        return;
      }
    }
    task();
  }
  /// Runs what was added, then ends the thread.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
  bool stopped_ = false;
};

/// One call of the backend: the operations of duet's group that it has started, and what is copied when they have
/// ended. The first thread that waits carries this out; a future, a timeout or isCompleted() hands it to the
/// backend's thread. Thread-safe.
class C10dWork final : public c10d::Work {
 public:
  struct Parts {
    std::vector<ddp::Work> operations{};
    std::vector<at::Tensor> results{}, held{};  // held: other memory that the operations use
    std::vector<std::function<void()>> copies{};
    bool message = false;                                   // only a thread that waits can end it
    std::chrono::milliseconds timeout{kNoTimeout.count()};  // of a wait() without one; not positive: none
  };

  C10dWork(c10d::OpType type, const char* title, Parts parts, std::shared_ptr<BackgroundThread> background)
      : Work(-1, type, title), title_(title), parts_(std::move(parts)), background_(std::move(background)) {}

  /// Waits at most `timeout`, as long as the group allows where that is not positive. Throws c10::DistBackendError; the
  /// collective goes on, but a message that has not ended by then ends its group.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (timeout <= kNoTimeout) timeout = parts_.timeout;
    const bool forever = timeout <= kNoTimeout;
    if (!forever && !parts_.message) {
      end_in_background();
      std::unique_lock lock(mutex_);
      if (!cv_.wait_for(lock, timeout, [this] { return completed_; }))
        C10_THROW_ERROR(DistBackendError, concat(title_, " has not ended within ", timeout.count(), " ms"));
    } else if (!taken_.exchange(true)) {
      end(forever ? ddp::Milliseconds::max() : timeout);
    }
    return Work::wait();
  }

  /// Of a message true only after wait().
  bool isCompleted() override {
    if (!parts_.message) end_in_background();
    return Work::isCompleted();
  }

  /// Completes with result(). Not of messages.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (parts_.message) C10_THROW_ERROR(NotImplementedError, concat(title_, " has no future, use wait()"));
    {
      const std::lock_guard lock(mutex_);
      if (!future_) future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    }
    end_in_background();
    settle_future();
    return future_;
  }

  std::vector<at::Tensor> result() override { return parts_.results; }

  /// Whether nothing will happen any more to the tensors.
  bool over() {
    return Work::isCompleted() || (!taken_ && std::all_of(parts_.operations.begin(), parts_.operations.end(),
                                                          [](const ddp::Work& work) { return work.done(); }));
  }

 private:
  void end_in_background() {
    if (taken_.exchange(true)) return;
    background_->add([self = c10::intrusive_ptr<C10dWork>::unsafe_reclaim_from_nonowning(this)] {
      self->end(ddp::Milliseconds::max());
    });
  }

  /// Called once.
  void end(ddp::Milliseconds timeout) {
    std::exception_ptr failure;
    try {
      with_torch_errors([&] {
        for (ddp::Work& operation : parts_.operations)
          timeout == ddp::Milliseconds::max() ? operation.wait() : operation.wait(timeout);
      });
      for (const auto& copy : parts_.copies) copy();
    } catch (...) {
      failure = std::current_exception();
    }
    finish(failure);
    settle_future();
  }

  /// Completes the future, once, where there is one and the work has ended.
  void settle_future() {
    {
      const std::lock_guard lock(mutex_);
      if (!future_ || !completed_ || settled_) return;
      settled_ = true;
    }
    if (exception_)
      future_->setError(exception_);
    else
      future_->markCompleted(c10::IValue(parts_.results));
  }

  const std::string title_;
  Parts parts_;
  const std::shared_ptr<BackgroundThread> background_;
  std::atomic<bool> taken_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

}  // namespace duet::torch
