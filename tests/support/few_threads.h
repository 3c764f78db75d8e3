// A process that can start only a few more threads.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace duet_test {

/// While it lives, the address space has room for the stacks of `threads` more threads. The stacks are large, so that
/// what else takes address space does not matter, and are not touched.
class FewThreads {
 public:
  explicit FewThreads(std::size_t threads) {
    pthread_getattr_default_np(&before_);
    pthread_attr_t large;
    pthread_getattr_default_np(&large);
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
    pthread_attr_destroy(&large);
    ::getrlimit(RLIMIT_AS, &limit_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit less = limit_;
    less.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + threads * kStack + kStack / 2;
    ::setrlimit(RLIMIT_AS, &less);
  }
  ~FewThreads() {
    ::setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  static constexpr std::size_t kStack = std::size_t{2} << 30;
  pthread_attr_t before_{};
  rlimit limit_{};
};

}  // namespace duet_test
