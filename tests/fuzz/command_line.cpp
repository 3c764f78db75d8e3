// Command lines of the program: a word on each line.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tests/fuzz/input.h"
#include "train/options/options.h"

using namespace duet::cli;
using namespace duet_fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  std::vector<std::string> words;
  while (!input.empty() && words.size() < 64) words.push_back(input.text_to('\n'));
  Command command;
  if (!accepted([&] { command = parse(words); })) return 0;
  if (const auto* const launch = std::get_if<LaunchOptions>(&command))
    expect(launch->job.ranks > 0 && launch->job.node_rank < launch->job.nodes, "options within their limits");
  if (const auto* const train = std::get_if<TrainOptions>(&command))
    expect(train->devices > 0 && train->batch >= train->devices, "options within their limits");
  return 0;
}
