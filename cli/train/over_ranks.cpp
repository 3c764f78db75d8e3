#include "cli/train/over_ranks.h"

#include <cstddef>
#include <iterator>
#include <set>

#include "cli/train/rank_events.h"
#include "cli/train/trace_file.h"
#include "cli/train/waiting.h"
#include "lib/device.h"

namespace duet::cli {

void average_over_ranks(Run& run, const RankTeam& team) {
  if (team.size == 1) return;
  std::vector<double> numbers = {run.waiting_share, run.communication_us};
  for (const PartName& part : kStepParts) numbers.push_back(run.step_us.*part.member);
  team.sum(numbers);
  for (double& number : numbers) number /= team.size;
  run.waiting_share = numbers[0];
  run.communication_us = numbers[1];
  for (std::size_t i = 0; i < std::size(kStepParts); ++i) run.step_us.*kStepParts[i].member = numbers[i + 2];
}

std::vector<std::string> gather_trace(Run& run, const TrainOptions& options, const RankTeam& team) {
  const std::vector<std::string> traced = team.gather(trace_text(team.take_trace()));
  const std::vector<std::string> clocks = team.gather(clock_identity());
  if (team.rank != 0) return traced;
  std::vector<RankSteps> ranks;
  for (const std::string& text : traced) ranks.push_back(steps_of(events_of(text)));
  // A GPU runs asynchronously: there the host's times do not part waiting and moving.
  const bool parts = options.device == DeviceKind::cpu && std::set(clocks.begin(), clocks.end()).size() == 1;
  run.median_step = median_step(ranks, parts);
  if (parts) fill_waiting(run, ranks);
  return traced;
}

}  // namespace duet::cli
