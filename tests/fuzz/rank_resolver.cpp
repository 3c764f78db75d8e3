// Environments: lines of NAME=VALUE.
#include "ddp/launch/rank_resolver.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tests/fuzz/input.h"

using namespace duet::ddp;
using namespace duet_fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  std::map<std::string, std::string> variables;
  while (!input.empty()) {
    const std::string line = input.text_to('\n');
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  LaunchedRank rank;
  const bool good = accepted([&] {
    rank = resolve_rank([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end() || found->second.empty()) return {};
      return found->second;
    });
  });
  if (!good) return 0;
  const RankInfo& place = rank.place;
  expect(place.rank >= 0 && place.rank < place.world_size, "a rank of the job");
  expect(place.local_rank >= 0 && place.local_rank < place.local_world_size, "a rank of the host");
  expect(place.local_world_size <= place.world_size && place.node_rank >= 0, "a host of the job");
  describe(rank);
  return 0;
}
