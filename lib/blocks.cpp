#include "lib/blocks.h"

#include <algorithm>

namespace duet {

PooledVector<Subtree> subtrees_of(int begin, int end) {
  PooledVector<Subtree> all;
  while (begin < end) {
    const int room = static_cast<int>(std::bit_floor(static_cast<unsigned>(end - begin)));
    const int aligned = begin == 0 ? room : begin & -begin;
    all.push_back({begin, std::min(aligned, room)});
    begin = all.back().end();
  }
  return all;
}

std::vector<Addition> additions_of(std::span<const Subtree> parts, std::span<const Subtree> targets) {
  std::vector<Addition> additions;
  const auto part = [&](int low, int high) {
    const auto found = std::ranges::find(parts, Subtree{low, high - low});
    return found == parts.end() ? -1 : static_cast<int>(found - parts.begin());
  };
  for (const Subtree& target : targets)
    add_by_tree(target.first, target.end(), part, [&](int to, int from) { additions.push_back({to, from}); });
  return additions;
}

std::vector<Addition> additions_of(int count) {
  std::vector<Addition> additions;
  if (std::has_single_bit(static_cast<unsigned>(count))) {
    for (int step = 1; step < count; step *= 2)
      for (int i = 0; i < count; i += 2 * step) additions.push_back({i, i + step});
  } else {
    for (int i = 1; i < count; ++i) additions.push_back({0, i});
  }
  return additions;
}

}  // namespace duet
