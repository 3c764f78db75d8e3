#include "cli/system/cpu_use.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace duet::cli {

CpuUse cpu_use() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  CpuUse use{.used_s = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9};
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    double ran_ns = 0, delayed_ns = 0;  // Documentation/scheduler/sched-stats.rst
    std::ifstream(thread.path() / "schedstat") >> ran_ns >> delayed_ns;
    use.delayed_s += delayed_ns / 1e9;
  }
  return use;
}

}  // namespace duet::cli
