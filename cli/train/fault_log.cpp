#include "cli/train/fault_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <sstream>
#include <tuple>

#include "cli/options/command_line.h"
#include "cli/system/files.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"
#include "lib/random.h"

namespace duet::cli {
namespace {

constexpr const char* kRestartCount = "TORCHELASTIC_RESTART_COUNT";
constexpr const char *kKilled = "killed", *kComplete = "complete";

FaultEvent event_of(const std::string& line) {
  std::istringstream words(line);
  std::string kind, end;
  FaultEvent event;
  const bool whole = words >> kind >> event.attempt >> event.rank >> event.step >> event.ns && !(words >> end);
  event.killed = kind == kKilled;
  require<DataError>(whole && (event.killed || kind == kComplete), "the log of a training under faults holds '", line,
                     "', expected '", kComplete, "' or '", kKilled, "', attempt, rank, step and nanoseconds");
  return event;
}

}  // namespace

std::vector<RankKill> draw_kills(int count, int ranks, std::int64_t steps, std::uint64_t seed) {
  Mt19937 draw(seed);
  const std::vector<std::int64_t> order = draw.randperm(steps - 1);
  std::vector<RankKill> kills;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    kills.push_back({order.at(i) + 2, static_cast<int>(draw.randint(0, ranks))});
  std::sort(kills.begin(), kills.end(), [](const RankKill& a, const RankKill& b) { return a.step < b.step; });
  return kills;
}

std::string to_text(const std::vector<RankKill>& kills) {
  std::string text;
  for (const RankKill& kill : kills) text += concat(text.empty() ? "" : ",", kill.step, "@", kill.rank);
  return text;
}

std::vector<RankKill> kills_of(const std::string& text) {
  std::vector<RankKill> kills;
  if (text.empty()) return kills;
  for (const std::string& entry : entries_of(text)) {
    const std::vector<std::string> numbers = entries_of(entry, '@');
    const auto step = parse_number<std::int64_t>(numbers.front());
    const auto rank = parse_number<int>(numbers.back());
    require<UsageError>(numbers.size() == 2 && step && rank, "--kills is ", text, ", expected STEP@RANK,...");
    kills.push_back({*step, *rank});
  }
  return kills;
}

std::vector<FaultEvent> fault_events(const std::string& log) {
  std::vector<FaultEvent> events;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) events.push_back(event_of(line));
  std::stable_sort(events.begin(), events.end(), [](const FaultEvent& a, const FaultEvent& b) { return a.ns < b.ns; });
  return events;
}

FaultLog::FaultLog(const std::string& file, const std::vector<RankKill>& kills, int rank)
    : rank_(rank),
      kills_(kills),
      path_(file),
      file_(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  require<DataError>(file_.open(), "cannot open ", file, ": ", last_errno);
}

void FaultLog::reach(std::int64_t step, int rank, int ranks) const {
  const auto is_due = [&](const RankKill& kill) { return kill.step == step && kill.rank % ranks == rank; };
  if (std::none_of(kills_.begin(), kills_.end(), is_due)) return;
  const std::vector<FaultEvent> events = fault_events(read_file(path_));
  const auto has_been = [&](const FaultEvent& event) { return event.killed && event.step == step; };
  if (std::any_of(events.begin(), events.end(), has_been)) return;
  append(true, step);
  std::raise(SIGKILL);
}

void FaultLog::append(bool killed, std::int64_t step) const {
  const std::string line = concat(killed ? kKilled : kComplete, " ", environment_variable(kRestartCount).value_or("0"),
                                  " ", rank_, " ", step, " ", monotonic_ns(), "\n");
  // In one call, so that no line of another rank comes between.
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  require<DataError>(written == static_cast<ssize_t>(line.size()),
                     "cannot write to the log of a training under faults: ", last_errno);
}

}  // namespace duet::cli
