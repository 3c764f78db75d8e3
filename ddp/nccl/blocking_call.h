// Calls that may never return.
#pragma once

#include <future>
#include <string>
#include <thread>
#include <utility>

#include "ddp/group/work.h"
#include "lib/base/start_thread.h"

namespace duet::ddp::nccl {

/// Makes a call in a thread of its own, which the destructor leaves running if it has not returned: what the call uses
/// must live as long as the call. Used by one thread.
class BlockingCall {
 public:
  /// Throws Error where the thread, named `what`, cannot be started.
  template <class Call>
  BlockingCall(const std::string& what, Call call) {
    std::packaged_task<void()> task(std::move(call));
    returned_ = task.get_future();
    thread_ = start_thread(what, std::move(task));
  }
  ~BlockingCall() {
    if (thread_.joinable()) thread_.detach();
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

  /// False if the call has not returned by `limit`; else rethrows what it threw. Not again after that.
  bool wait_until(Clock::time_point limit) {
    if (returned_.wait_until(limit) != std::future_status::ready) return false;
    thread_.join();
    returned_.get();
    return true;
  }

 private:
  std::future<void> returned_;
  std::thread thread_;
};

}  // namespace duet::ddp::nccl
