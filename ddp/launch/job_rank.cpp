#include "ddp/launch/job_rank.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "ddp/launch/rank_environment.h"
#include "ddp/store/store.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {

std::string ranks_elsewhere(const LaunchOptions& options) {
  std::vector<int> others;
  for (int rank = 0; rank < options.nodes * options.ranks; ++rank)
    if (rank / options.ranks != options.node_rank) others.push_back(rank);
  return others.empty() ? "" : concat("other hosts (", rank_names(others), ")");
}

RankFile make_error_file(const std::string& path) {
  if (path.empty()) return make_rank_file("error");
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return {{}, path};
}

RankFile make_record_file() {
  RankFile file = make_rank_file("record");
  if (file.path.empty() || reserve(file.memory, 0, FlightRecorder::bytes()) != 0) return {};
  return file;
}

bool JobRank::is_lost() const {
  if (failed || !process.ended() || process.exit_code() == 0) return false;
  const auto own = read_error_file(error_file.path);
  // SIGKILL comes from outside, also while an exception unwinds; else that has ended the process in order.
  return own ? own->by_signal && process.signal() != 0 : process.signal() == SIGKILL || record().left_ns == 0;
}

bool JobRank::note_failure(const std::optional<Clock::time_point>& sigterm) {
  const auto at = [](std::int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); };
  failed = true;
  when = seen = Clock::now();
  const auto own = error_file.path.empty() ? std::nullopt : read_error_file(error_file.path);
  if (own) {
    error = *own;
    std::replace(error.message.begin(), error.message.end(), '\n', ' ');
    error.message = printable(error.message);
    if (error.monotonic_ns > 0) when = at(error.monotonic_ns);
    if (error.by_signal && sigterm && when >= *sigterm) error.message.clear();  // the launcher's own
  } else if (const auto ns = record().left_ns; ns > 0 && !(sigterm && at(ns) >= *sigterm)) {
    left = true;
    when = at(ns);
  }
  return own.has_value();
}

int first_lost_elsewhere(const std::list<JobRank>& ranks, int per_node, int node) {
  const JobRank* found = nullptr;
  for (const JobRank& one : ranks) {
    const bool other = one.failed && one.error.lost_rank >= 0 && one.error.lost_rank / per_node != node;
    if (other && (found == nullptr || one.when < found->when)) found = &one;
  }
  return found != nullptr ? found->error.lost_rank : -1;
}

std::vector<RankRecord> records_of(const std::list<JobRank>& ranks) {
  std::vector<RankRecord> records;
  for (const JobRank& rank : ranks) records.push_back({rank.rank, rank.record()});
  return records;
}

std::string JobRank::ending(int killed_by) const {
  const std::string name = concat("rank ", rank), cause = error.message.empty() ? "" : ": " + error.message;
  if (killed_by != 0) return concat(name, " was killed by ", signal_text(killed_by), cause);
  if (error.by_signal) return concat(name, " ", error.message);
  if (process.signal() != 0) return concat(name, " failed", cause);
  return concat(name, " ended with exit code ", process.exit_code(), cause);
}

std::string JobRank::hint() const {
  if (!error.message.empty() || process.exit_code() == 0 || (process.signal() != 0 && !left)) return {};
  return concat(!left ? "" : " after an exception that main() didn't pass to ddp::report_failure()",
                last_words.empty() ? "" : concat("; its last line on stderr: ", printable(last_words)));
}

std::string scripts_in(const std::vector<std::string>& command) {
  std::string all;
  for (const std::string& word : command) {
    std::error_code failed;
    if (!std::filesystem::is_regular_file(word, failed)) continue;
    std::ifstream file(word, std::ios::binary);
    if (file.get() == '#' && file.get() == '!') all.append(std::istreambuf_iterator<char>(file), {});
  }
  return all;
}

const JobRank* absent_for_good(const std::list<JobRank>& ranks, int size) {
  std::uint32_t joined = 0;  // the number of the group that others join
  for (const JobRank& one : ranks) {
    const FlightRecord record = one.process.ended() ? FlightRecord{} : one.record();
    if (record.phase == Phase::joining && record.step == size) joined = std::max(joined, record.group);
  }
  const auto found = std::ranges::find_if(ranks, [&](const JobRank& one) {
    if (joined == 0 || one.rank >= size || !one.process.ended() || one.process.exit_code() != 0) return false;
    const FlightRecord record = one.record();
    return record.group < joined || (record.group == joined && record.phase == Phase::joining);
  });
  return found == ranks.end() ? nullptr : &*found;
}

std::vector<std::vector<int>> plan_cores(const LaunchOptions& options, LaunchOutput& output) {
  std::vector<std::vector<int>> cores;
  if (!options.pin || options.ranks == 1) return cores;
  const std::vector<Cpu> cpus = usable_cpus();
  const auto shares = share_cpus(cpus, options.ranks);
  if (shares.empty() && options.verbose)
    remark(options, output,
           concat("no rank is pinned: ", options.ranks, " ranks share ", cpus.size(), " hardware threads"));
  for (std::size_t i = 0; i < shares.size(); ++i) {
    cores.emplace_back();
    for (const Cpu& cpu : shares[i]) cores.back().push_back(cpu.number);
    const int rank = options.node_rank * options.ranks + static_cast<int>(i);
    if (options.verbose) remark(options, output, concat("rank ", rank, " is pinned to ", describe(shares[i])));
  }
  return cores;
}

}  // namespace duet::ddp
