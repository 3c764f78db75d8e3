#include "cli/train/waiting.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <initializer_list>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kForward = "forward";
constexpr const char* kBackward = "backward";
constexpr const char* kCommunication = "communication";

std::vector<const RankEvent*> collectives_of(const RankStep& step) {
  std::vector<const RankEvent*> found;
  for (const RankEvent& event : step.events)
    if (event.is_communication()) found.push_back(&event);
  return found;
}

/// Whether all ranks traced the same collectives, in the same order.
bool alike(const std::vector<std::vector<const RankEvent*>>& ranks) {
  const auto same = [](const RankEvent* a, const RankEvent* b) { return a->name == b->name; };
  return std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
    return std::equal(rank.begin(), rank.end(), ranks[0].begin(), ranks[0].end(), same);
  });
}

/// What of [begin, end) lies where computing of `step` stands still.
void add_exposed(const RankStep& step, std::int64_t begin, std::int64_t end, std::vector<Waiting>& out) {
  for (const RankEvent& event : step.events) {
    if (event.is_communication() || event.name != kCommunication) continue;
    const std::int64_t from = std::max(begin, event.begin_ns), to = std::min(end, event.end_ns);
    if (from < to) out.push_back({event.device, false, kCommunication, from, to});
  }
}

std::vector<std::vector<Waiting>> waiting_of_ranks(const std::vector<const RankStep*>& steps) {
  std::vector<std::vector<const RankEvent*>> collectives;
  for (const RankStep* step : steps) collectives.push_back(collectives_of(*step));
  if (!alike(collectives)) return {};
  std::vector<std::vector<Waiting>> waiting(steps.size());
  for (std::size_t n = 0; n < collectives[0].size(); ++n) {
    std::int64_t last = 0;
    for (const auto& rank : collectives) last = std::max(last, rank[n]->begin_ns);
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
      const RankEvent& own = *collectives[rank][n];
      const std::int64_t end = std::min(last, own.end_ns);
      if (end <= own.begin_ns) continue;
      waiting[rank].push_back({own.device, true, "", own.begin_ns, end});
      add_exposed(*steps[rank], own.begin_ns, end, waiting[rank]);
    }
  }
  return waiting;
}

/// The end of each replica's forward or backward. The first device also has an event of that name around them all,
/// which begins before its own.
std::map<std::string, std::int64_t> ends_of_replicas(const RankStep& step, const char* part) {
  std::map<std::string, std::int64_t> ends;
  for (const RankEvent& event : step.events)
    if (!event.is_communication() && event.name == part) ends[event.device] = event.end_ns;
  return ends;
}

std::vector<std::vector<Waiting>> waiting_of_replicas(const RankStep& step) {
  std::vector<std::vector<Waiting>> waiting(1);
  for (const char* const part : {kForward, kBackward}) {
    const auto ends = ends_of_replicas(step, part);
    std::int64_t last = 0;
    for (const auto& [device, end] : ends) last = std::max(last, end);
    for (const auto& [device, end] : ends)
      if (end < last) waiting[0].push_back({device, false, part, end, last});
  }
  return waiting;
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Sums over steps of what the fields of a run hold.
struct Sums {
  std::vector<double> waiting, moving;  // of each step, means over ranks or replicas
  StepParts exposed;                    // waiting of computing, likewise
  std::map<std::string, double> of_replicas;
  std::vector<double> of_ranks;

  bool found = false;  // a collective, or a second replica
};

void add_ranks(const std::vector<const RankStep*>& steps, Sums& sums) {
  const auto waiting = waiting_in(steps);
  if (waiting.empty()) return;
  const auto ranks = static_cast<double>(steps.size());
  double waits = 0, takes = 0;
  sums.of_ranks.resize(steps.size());
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    for (const RankEvent* event : collectives_of(*steps[rank])) {
      sums.found = true;
      takes += us(event->end_ns - event->begin_ns);
    }
    for (const Waiting& stretch : waiting[rank]) {
      const double length = us(stretch.end_ns - stretch.begin_ns);
      if (!stretch.in_communication) {
        sums.exposed.communication += length / ranks;
        continue;
      }
      waits += length;
      sums.of_ranks[rank] += length;
    }
  }
  sums.waiting.push_back(waits / ranks);
  sums.moving.push_back((takes - waits) / ranks);
}

void add_replicas(const RankStep& step, std::size_t replicas, Sums& sums) {
  const auto waiting = waiting_in({&step});
  const auto count = static_cast<double>(replicas);
  double waits = 0, moves = 0;
  for (const RankEvent& event : step.events) {
    if (event.name == kForward) {
      sums.of_replicas.emplace(event.device, 0);
      sums.found = sums.of_replicas.size() > 1;
    }
    for (const char* const moving : {"scatter", "replicate", "gather", kCommunication})
      if (event.name == moving) moves += us(event.end_ns - event.begin_ns);
  }
  for (const Waiting& stretch : waiting[0]) {
    const double length = us(stretch.end_ns - stretch.begin_ns);
    waits += length / count;
    sums.of_replicas[stretch.device] += length;
    (stretch.part == kForward ? sums.exposed.forward : sums.exposed.backward) += length / count;
  }
  sums.waiting.push_back(waits);
  sums.moving.push_back(moves);
}

std::vector<double> interval_around(double value, const std::vector<double>& of_steps) {
  const std::optional<double> half = half_interval(of_steps);
  return half ? std::vector<double>{value - *half, value + *half} : std::vector<double>();
}

Sums sums_over_steps(const std::vector<RankSteps>& ranks, std::size_t replicas) {
  Sums sums;
  for (const auto& [number, first] : ranks[0]) {
    std::vector<const RankStep*> steps;
    for (const RankSteps& rank : ranks)
      if (const auto found = rank.find(number); found != rank.end()) steps.push_back(&found->second);
    if (steps.size() < ranks.size()) continue;
    if (ranks.size() > 1)
      add_ranks(steps, sums);
    else
      add_replicas(first, replicas, sums);
  }
  return sums;
}

}  // namespace

std::vector<std::vector<Waiting>> waiting_in(const std::vector<const RankStep*>& steps) {
  return steps.size() == 1 ? waiting_of_replicas(*steps[0]) : waiting_of_ranks(steps);
}

void fill_waiting(Run& run, const std::vector<RankSteps>& ranks) {
  if (ranks.empty() || run.devices < 2) return;
  const Sums sums = sums_over_steps(ranks, static_cast<std::size_t>(run.devices));
  if (!sums.found) return;
  const auto steps = static_cast<double>(sums.waiting.size());
  run.communication_waiting_us = mean(sums.waiting);
  // Of ranks the rest, so that both add up to what the process groups measured.
  run.communication_moving_us = run.communication_us;
  if (ranks.size() > 1)
    run.communication_moving_us = std::max(0.0, run.communication_us - *run.communication_waiting_us);
  run.waiting_interval_us = interval_around(*run.communication_waiting_us, sums.waiting);
  run.moving_interval_us = interval_around(*run.communication_moving_us, sums.moving);
  run.step_waiting_us.emplace();
  for (const auto part : {&StepParts::forward, &StepParts::backward, &StepParts::communication})
    (*run.step_waiting_us).*part = std::min(sums.exposed.*part / steps, run.step_us.*part);
  for (const double sum : sums.of_ranks) run.rank_waiting_us.push_back(sum / steps);
  // "cpu:10" behind "cpu:9".
  std::vector<std::pair<std::size_t, std::string>> devices;
  for (const auto& [device, sum] : sums.of_replicas) devices.emplace_back(device.size(), device);
  std::sort(devices.begin(), devices.end());
  for (const auto& [size, device] : devices) run.rank_waiting_us.push_back(sums.of_replicas.at(device) / steps);
}

std::optional<double> half_interval(const std::vector<double>& values) {
  constexpr std::size_t kBlocks = 10;
  constexpr double kQuantile = 2.262;  // 97.5 % of Student's t with 9 degrees of freedom
  if (values.size() < 2 * kBlocks) return std::nullopt;
  std::vector<double> blocks;
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const auto begin = static_cast<std::ptrdiff_t>(values.size() * b / kBlocks);
    const auto end = static_cast<std::ptrdiff_t>(values.size() * (b + 1) / kBlocks);
    blocks.push_back(mean({values.begin() + begin, values.begin() + end}));
  }
  double squares = 0;
  for (const double block : blocks) squares += std::pow(block - mean(blocks), 2);
  return kQuantile * std::sqrt(squares / (kBlocks - 1) / kBlocks);
}

std::string clock_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  struct stat clocks {};
  ::stat("/proc/self/ns/time", &clocks);
  return concat(boot, "/", clocks.st_ino);
}

}  // namespace duet::cli
