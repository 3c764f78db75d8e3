// Shortages that pass: a rank that recovers asks again for threads and memory before it ends the job.
#pragma once

#include <chrono>
#include <cstdio>
#include <thread>

#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet {

/// Makes with_patience() try again in this thread while it lives, at most for `limit`.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds limit) { until = Clock::now() + limit; }
  ~Patience() { until = {}; }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
  static inline thread_local Clock::time_point until{};
};

/// Returns make(). While the thread has Patience, an Error is a warning and make() is called again.
template <class Make>
auto with_patience(const Make& make) {
  for (bool warned = false;; warned = true) try {
      return make();
    } catch (const Error& error) {
      if (Clock::now() >= Patience::until) throw;
      if (!warned) std::fprintf(stderr, "warning: %s; duet keeps trying while the job recovers\n", error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

}  // namespace duet
