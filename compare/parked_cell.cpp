#include "compare/parked_cell.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "compare/bursts.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/signals.h"

namespace duet::cli {
namespace {

constexpr int kPollMs = 20;

/// With both ends here, so that opening waits for no rank and none that has ended closes it.
Descriptor make_fifo(const std::string& path) {
  require<DataError>(::mkfifo(path.c_str(), 0600) == 0, "cannot make ", path, ": ", last_errno);
  Descriptor fifo(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  require<DataError>(fifo.open(), "cannot open ", path, ": ", last_errno);
  return fifo;
}

std::vector<std::string> with_bursts(std::vector<std::string> arguments, const std::string& files) {
  arguments.push_back("--bursts=" + files);
  return arguments;
}

/// The means over the ranks that give them.
StepParts mean_step(const std::vector<RankBurst>& ranks) {
  StepParts step;
  double runs = 0;
  for (const RankBurst& rank : ranks) {
    if (!rank.run) continue;
    ++runs;
    for (const PartName& part : kStepParts) step.*part.member += rank.run->step_us.*part.member;
  }
  return step.scaled(1 / runs);
}

/// The share of `threads` cores that other programs had: at most what this cell did not get, which holds its own waits
/// too, and at most what it was ready to run for, which holds waits of its threads for each other too.
double share_of_others(const std::vector<RankBurst>& ranks, double wall_s, double threads) {
  double used = 0, delayed = 0;
  for (const RankBurst& rank : ranks) {
    used += rank.used_s;
    delayed += rank.delayed_s;
  }
  const double most = wall_s * threads;
  return std::clamp(std::min(delayed, most - used) / most, 0.0, 1.0);
}

}  // namespace

Run burst_of(const std::vector<std::string>& answers, double threads) {
  const std::vector<RankBurst> ranks = of_each(answers, rank_burst_from_json);
  require<DataError>(!ranks.empty() && ranks[0].run, "a burst without a run");
  Run burst = *ranks[0].run;
  double slowest_us = 0, wall_s = 0, used_s = 0;
  for (const RankBurst& rank : ranks) {
    burst.rank_step_us.push_back(rank.median_us);
    slowest_us = std::max(slowest_us, rank.median_us);
    wall_s = std::max(wall_s, rank.wall_s);
    used_s += rank.used_s;
    burst.spread_share += rank.spread_share / static_cast<double>(ranks.size());
  }
  burst.rounds_us = {slowest_us};
  if (burst.step_waiting_us) burst.step_waiting_us = burst.step_waiting_us->scaled(slowest_us / burst.step_us.sum());
  burst.step_us = mean_step(ranks).scaled_to(slowest_us);
  if (threads > 0) {
    burst.cpu_share = used_s / (wall_s * threads);
    burst.other_programs_share = share_of_others(ranks, wall_s, threads);
  }
  return burst;
}

ParkedCell::ParkedCell(const std::string& program, std::vector<std::string> arguments, const std::string& files,
                       int ranks)
    : ranks_([&] {
        std::vector<Rank> all;
        for (int rank = 0; rank < ranks; ++rank)
          all.push_back(
              {.commands = make_fifo(command_fifo(files, rank)), .answers = make_fifo(answer_fifo(files, rank))});
        return all;
      }()),
      child_(program, with_bursts(std::move(arguments), files), files + ".log") {}

std::vector<std::string> ParkedCell::answers(const std::function<void()>& poll) {
  std::vector<pollfd> waits;
  for (const Rank& rank : ranks_) waits.push_back({.fd = rank.answers.get(), .events = POLLIN, .revents = 0});
  const auto whole = [](const Rank& rank) { return rank.line.ends_with('\n'); };
  while (!std::all_of(ranks_.begin(), ranks_.end(), whole)) {
    if (noted_signal() != 0) throw Interrupted{noted_signal()};
    if (const std::optional<ChildEnd>& end = child_.poll())
      throw DataError(end->ok ? "its processes ended before they were asked to" : end->reason);
    poll();
    ::poll(waits.data(), waits.size(), kPollMs);
    for (Rank& rank : ranks_) {
      std::array<char, 4096> part;
      const ssize_t size = ::read(rank.answers.get(), part.data(), part.size());
      require<CommError>(size >= 0 || errno == EAGAIN || errno == EINTR, "cannot read a burst: ", last_errno);
      if (size > 0) rank.line.append(part.data(), static_cast<std::size_t>(size));
    }
  }
  std::vector<std::string> lines;
  for (Rank& rank : ranks_) {
    rank.line.pop_back();
    lines.push_back(std::exchange(rank.line, ""));
  }
  return lines;
}

std::vector<std::string> ParkedCell::ask(int steps) {
  const std::string command = concat(steps, "\n");
  for (const Rank& rank : ranks_)
    require<CommError>(::write(rank.commands.get(), command.data(), command.size()) == std::ssize(command),
                       "cannot ask for a burst: ", last_errno);
  return answers();
}

std::vector<std::string> ParkedCell::burst(int steps) {
  if (const std::optional<ChildEnd>& end = child_.poll()) throw DataError("while it was parked: " + end->reason);
  return with_prefix([] { return std::string("while it was timed: "); },
                     [&] {
                       std::vector<std::string> lines = ask(steps);
                       ask(0);
                       return lines;
                     });
}

}  // namespace duet::cli
