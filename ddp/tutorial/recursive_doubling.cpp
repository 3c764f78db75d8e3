#include "ddp/tutorial/recursive_doubling.h"

#include <bit>
#include <vector>

namespace duet::ddp {

void recursive_doubling_all_reduce(ProcessGroup& group, std::span<float> values) {
  const int rank = group.rank();
  const int pairs = static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size())));
  const int helper = rank - pairs, helped = rank + pairs;
  if (helper >= 0) {
    group.send(values, helper).wait();
    return group.recv(values, helper).wait();
  }
  std::vector<float> arrived(values.size());
  const auto add_from = [&](int peer) {
    group.recv(std::span(arrived), peer).wait();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += arrived[i];
  };
  if (helped < group.size()) add_from(helped);
  std::vector<float> sent;
  for (int bit = 1; bit < pairs; bit *= 2) {
    sent.assign(values.begin(), values.end());
    Work sending = group.send(std::span(sent), rank ^ bit);
    add_from(rank ^ bit);
    sending.wait();
  }
  if (helped < group.size()) group.send(values, helped).wait();
}

}  // namespace duet::ddp
