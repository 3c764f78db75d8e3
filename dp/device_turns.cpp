#include "dp/device_turns.h"

#include <utility>

#include "lib/backend/backend.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"

namespace duet::dp {

void DeviceTurns::run(FunctionRef<void(int)> task) {
  task_ = &task;
  turn_.lock();
  next_ = begin_;
  failure_ = nullptr;
  run_rest();
  while (!threads_.empty()) {  // those may start others
    std::vector<std::thread> threads = std::exchange(threads_, {});
    turn_.unlock();
    for (std::thread& thread : threads) thread.join();
    turn_.lock();
  }
  const std::exception_ptr failure = failure_;
  turn_.unlock();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void DeviceTurns::wait_begins() {
  if (next_ < end_)
    threads_.push_back(start_thread(concat("a thread for replica ", next_, " on device ", device_), [this] {
      std::exception_ptr unbound;
      try {
        backend(device_.kind).bind_thread(device_);
      } catch (...) {
        unbound = std::current_exception();
      }
      turn_.lock();
      run_rest(unbound);
      turn_.unlock();
    }));
  turn_.unlock();
}

void DeviceTurns::run_rest(const std::exception_ptr& unbound) noexcept {
  while (next_ < end_) {
    try {
      unbound_ = unbound;
      (*task_)(next_++);
    } catch (...) {
      if (failure_ == nullptr) failure_ = std::current_exception();
      next_ = end_;
    }
  }
}

}  // namespace duet::dp
