// The memory that a process occupies.
#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace duet_test {

/// The resident memory of this process in KiB, from its page tables: the sums in statm and status lag behind by up to a
/// few hundred KiB on every core.
inline std::int64_t resident_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t kib = 0;
  for (std::string word; file >> word;)
    if (word == "Rss:" && file >> kib) return kib;
  throw std::runtime_error("/proc/self/smaps_rollup has no Rss");
}

}  // namespace duet_test
