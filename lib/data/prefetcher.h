// Worker threads that build numbered batches ahead of the one who takes them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/data/loader.h"

namespace duet::data {

/// Calls make(step) for every step in [first, end), each in one of the workers, at most `depth` steps ahead of take().
class Prefetcher {
 public:
  Prefetcher(int workers, int depth, std::int64_t first, std::int64_t end, std::function<Batch(std::int64_t)> make);
  /// Waits for the batches in work and drops them.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The batch of the next step; rethrows what make threw for it. At most end - first times.
  Batch take();

 private:
  struct Slot {
    bool ready = false;
    Batch batch;
    std::exception_ptr failure;
  };
  Slot& slot(std::int64_t step) { return slots_[static_cast<std::size_t>(step) % slots_.size()]; }
  void work();
  void stop();

  std::function<Batch(std::int64_t)> make_;
  std::mutex mutex_;
  std::condition_variable room_, filled_;
  std::vector<Slot> slots_;  // step s in slot s % depth
  std::int64_t claimed_, taken_, end_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace duet::data
