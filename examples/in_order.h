// Output of several threads or ranks in a fixed order.
#pragma once

#include <cstdint>
#include <iostream>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <duet/ddp/group/process_group.h>

namespace examples {

/// Lines of replicas that run in parallel: kept until the step is over, then printed in the order of the devices.
class ReplicaLines {
 public:
  /// Any thread may call this.
  void add(duet::Device device, std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace(device, std::move(line));
  }
  void print() {
    for (const auto& [device, line] : lines_) std::cout << line << '\n';
    lines_.clear();
  }

 private:
  std::mutex mutex_;
  std::multimap<duet::Device, std::string> lines_;
};

/// Every rank calls this with its line; rank 0 prints all of them, its own first.
inline void print_in_order(duet::ddp::ProcessGroup& group, const std::string& line) {
  constexpr std::size_t kWidth = 120;  // gather takes pieces of one size
  std::vector<std::uint8_t> own(line.begin(), line.end());
  own.resize(kWidth, '\0');
  std::vector<std::uint8_t> all(group.rank() == 0 ? kWidth * static_cast<std::size_t>(group.size()) : 0);
  group.gather(std::span(own), std::span(all), 0).wait();
  for (std::size_t begin = 0; begin < all.size(); begin += kWidth)
    std::cout << reinterpret_cast<const char*>(all.data() + begin) << std::endl;
}

}  // namespace examples
