#include "ddp/launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <tuple>

#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr int kMaxNodes = 1024;

int first_number(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = otherwise;
  return file >> number ? number : otherwise;
}

/// The numbers of "0-3,8".
std::vector<int> read_list(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> numbers;
  for (int first = 0; file >> first;) {
    int last = first;
    if (file.peek() == '-') {
      file.get();
      file >> last;
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (file.peek() != ',') break;
    file.get();
  }
  return numbers;
}

std::string as_list(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += concat(text.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) text += concat("-", numbers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::vector<Cpu> usable_cpus(const std::string& folder) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {};
  std::vector<Cpu> cpus;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &set)) continue;
    // The first of the siblings stands for their core.
    const std::string topology = concat(folder, "/cpu/cpu", number, "/topology/");
    cpus.push_back({.number = number, .core = first_number(topology + "thread_siblings_list", number)});
  }
  for (int node = 0; node < kMaxNodes; ++node) {
    for (const int number : read_list(concat(folder, "/node/node", node, "/cpulist")))
      for (Cpu& cpu : cpus)
        if (cpu.number == number) cpu.node = node;
  }
  return cpus;
}

std::vector<std::vector<Cpu>> share_cpus(std::vector<Cpu> cpus, int ranks) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.node, a.core, a.number) < std::tie(b.node, b.core, b.number);
  });
  std::vector<std::vector<Cpu>> units;  // cores, or hardware threads
  for (const Cpu& cpu : cpus) {
    if (units.empty() || units.back().front().core != cpu.core) units.emplace_back();
    units.back().push_back(cpu);
  }
  const auto wanted = static_cast<std::size_t>(ranks);
  if (units.size() < wanted) {
    units.clear();
    for (const Cpu& cpu : cpus) units.push_back({cpu});
  }
  if (units.size() < wanted) return {};
  std::vector<std::vector<Cpu>> shares(wanted);
  for (std::size_t rank = 0; rank < wanted; ++rank) {
    const std::size_t begin = rank * units.size() / wanted, end = (rank + 1) * units.size() / wanted;
    for (std::size_t i = begin; i < end; ++i) shares[rank].insert(shares[rank].end(), units[i].begin(), units[i].end());
  }
  return shares;
}

std::string describe(const std::vector<Cpu>& cpus) {
  std::vector<int> numbers;
  std::set<int> nodes;
  for (const Cpu& cpu : cpus) {
    numbers.push_back(cpu.number);
    nodes.insert(cpu.node);
  }
  return concat(numbers.size() == 1 ? "core " : "cores ", as_list(numbers), " (NUMA node",
                nodes.size() == 1 ? " " : "s ", as_list({nodes.begin(), nodes.end()}), ")");
}

}  // namespace duet::ddp
