// Which cores of this machine each of its ranks gets.
#pragma once

#include <string>
#include <vector>

namespace duet::ddp {

/// One hardware thread, as the kernel numbers them.
struct Cpu {
  int number = 0;
  int core = 0;  // equal for the hardware threads of one core
  int node = 0;  // NUMA
};

/// The hardware threads that this process may use, from the files below `folder`. What those do not say counts as one
/// node, with a core for each thread.
std::vector<Cpu> usable_cpus(const std::string& folder = "/sys/devices/system");

/// Shares them out in the order of nodes and cores, a run of neighbours to each rank, so that no core has two ranks and
/// as few ranks as can be lie across two nodes. Where ranks outnumber cores, hardware threads are shared out; where
/// they outnumber those too, the result is empty: no rank is pinned.
std::vector<std::vector<Cpu>> share_cpus(std::vector<Cpu> cpus, int ranks);

/// "cores 0-3,8 (NUMA node 1)".
std::string describe(const std::vector<Cpu>& cpus);

}  // namespace duet::ddp
