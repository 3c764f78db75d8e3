// What a call of the backend returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"
#include "torch/c10d/call_queue.h"
#include "torch/c10d/errors.h"

namespace duet::torch {

/// One call of the backend: the operations of duet's group that it starts, and what is copied when they have ended. The
/// first thread that waits carries this out; a future, a timeout or isCompleted() hands it to the backend's queue.
/// Within a callback of a future, where the queue's thread is, all three wait for the end themselves. Thread-safe.
class C10dWork final : public c10d::Work {
 public:
  using Operation = std::function<ddp::Work(ddp::ProcessGroup&)>;
  struct Parts {
    std::vector<Operation> operations{};
    std::vector<at::Tensor> results{}, held{};  // held: other memory that the operations use
    std::vector<std::function<void()>> copies{};
    bool message = false;  // a send or a receive, which a peer may wait for before the next collective
    std::chrono::milliseconds timeout{kNoTimeout.count()};  // for a wait() without one; not positive: no limit
  };

  C10dWork(c10d::OpType type, const char* title, Parts parts, std::shared_ptr<CallQueue> queue)
      : Work(-1, type, title), title_(title), parts_(std::move(parts)), queue_(std::move(queue)) {}

  /// Starts the operations; called once, `group` is null after a shutdown. wait() throws what that throws.
  void start(ddp::ProcessGroup* group) {
    try {
      require<UsageError>(group != nullptr, "the process group has been shut down");
      for (const Operation& operation : parts_.operations) started_.push_back(operation(*group));
    } catch (...) {
      refusal_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    has_started_ = true;
    cv_.notify_all();
  }
  /// Throws what start() has kept.
  void check_start() const {
    if (!refusal_) return;
    try {
      std::rethrow_exception(refusal_);
    } catch (const Error&) {
      rethrow_with_prefix(concat(title_, ": "));
    }
  }

  /// Waits at most `timeout`, as long as the group allows where that is not positive. Throws c10::ValueError and
  /// c10::DistBackendError; after a timeout the collective goes on, but a message that has not ended by then ends its
  /// group.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (queue_->is_here() && !has_started_)
      C10_THROW_ERROR(DistBackendError, concat(title_, ": a callback waits for a call that starts after the callback"));
    if (timeout <= kNoTimeout) timeout = parts_.timeout;
    const bool forever = timeout <= kNoTimeout;
    if (!forever && !parts_.message) {
      end_in_background();
      std::unique_lock lock(mutex_);
      if (!cv_.wait_for(lock, timeout, [this] { return completed_; }))
        C10_THROW_ERROR(DistBackendError,
                        concat(title_, ": Timed out waiting ", timeout.count(), "ms for the operation to complete"));
    } else if (!taken_.exchange(true)) {
      end(forever ? ddp::Milliseconds::max() : timeout);
    }
    return Work::wait();
  }

  /// Whether the call has ended; for a message, true only after wait().
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
    return Work::isCompleted() ||
           (!taken_ && has_started_ &&
            std::all_of(started_.begin(), started_.end(), [](const ddp::Work& operation) { return operation.done(); }));
  }

 private:
  void end_in_background() {
    if (taken_.exchange(true)) return;
    if (queue_->is_here()) return end(ddp::Milliseconds::max());
    const auto end_quietly = [self = c10::intrusive_ptr<C10dWork>::unsafe_reclaim_from_nonowning(this)] {
      try {
        self->end(ddp::Milliseconds::max());
      } catch (const std::exception& error) {
        TORCH_WARN(self->title_, ": a callback of its future has thrown: ", error.what());
      }
    };
    if (!queue_->add(end_quietly)) end_quietly();
  }

  /// Called once. Throws what callbacks of the future throw.
  void end(ddp::Milliseconds timeout) {
    std::exception_ptr failure;
    try {
      with_torch_errors([&] { end_operations(timeout); });
      for (const auto& copy : parts_.copies) copy();
    } catch (...) {
      failure = std::current_exception();
    }
    finish(failure);
    settle_future();
  }

  void end_operations(ddp::Milliseconds timeout) {
    {
      std::unique_lock lock(mutex_);
      cv_.wait(lock, [this] { return has_started_.load(); });
    }
    check_start();
    try {
      for (ddp::Work& operation : started_)
        timeout == ddp::Milliseconds::max() ? operation.wait() : operation.wait(timeout);
    } catch (const CommError& error) {
      // PyTorch's programs look for these words. An earlier timeout of the group is none of this call.
      const std::string text = error.what();
      const bool late =
          text.find(" in time") != std::string::npos || text.find(" has not ended within ") != std::string::npos;
      if (late && text.rfind("the process group has failed", 0) != 0)
        rethrow_with_prefix(concat(title_, ": Timed out waiting for the operation to complete: "));
      throw;
    }
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
  const std::shared_ptr<CallQueue> queue_;
  std::vector<ddp::Work> started_;
  std::exception_ptr refusal_;
  std::atomic<bool> has_started_{false}, taken_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
};

}  // namespace duet::torch
