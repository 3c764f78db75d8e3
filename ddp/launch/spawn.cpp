#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job.h"
#include "ddp/launch/job_guard.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_resolver.h"
#include "ddp/transport/transport.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr const char* kCall = "DUET_SPAWN_CALL";  // which call of spawn() in the program this process is to run

/// This program's arguments as it was started.
std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string argument; std::getline(file, argument, '\0');) command.push_back(argument);
  require<UsageError>(!command.empty(), "cannot read /proc/self/cmdline");
  command[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return command;
}

int run_rank(const std::function<void(int)>& body) {
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);  // lines get out even if the rank dies
  try {
    body(resolve_rank().place.rank);
    return 0;
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}

/// Where this rank was, by its own record.
std::string own_report(int rank) noexcept {
  try {
    return failure_report({{rank, flight_recorder()->snapshot()}}, rank, monotonic_ns());
  } catch (const std::exception&) {  // out of memory, say
    return {};
  }
}

std::atomic<int> calls{0};

}  // namespace

bool is_launched_rank() { return !resolve_rank().launcher.empty(); }

std::optional<int> launched_rank() noexcept {
  try {
    const LaunchedRank launched = resolve_rank();
    if (!launched.launcher.empty()) return launched.place.rank;
  } catch (const std::exception&) {  // the variables are the failure
  }
  return {};
}

std::string unprinted_report() noexcept {
  return launched_rank() == 0 && std::getenv(kJobVariable) == nullptr ? own_report(0) : std::string();
}

void leave_error(const RankError& error) noexcept {
  const char* const path = std::getenv(kErrorFileVariable);
  if (path == nullptr || *path == '\0') return;
  const int rank = launched_rank().value_or(-1);
  RankError whole = error;
  whole.report = own_report(rank);
  write_error_file(path, rank, whole);
}

void leave_error(const std::exception& error) noexcept {
  const auto* const own = dynamic_cast<const Error*>(&error);
  const auto* const lost = dynamic_cast<const LostRank*>(&error);
  leave_error(RankError{.message = error.what(),
                        .consequence = dynamic_cast<const CommError*>(&error) != nullptr,
                        .lost_rank = lost ? lost->rank() : -1,
                        .monotonic_ns = own ? own->when() : monotonic_ns()});
}

int report_failure(const std::exception& error, const char* program) noexcept {
  const auto rank = launched_rank();
  const std::string prefix = rank ? concat("rank ", *rank, ": ") : "";
  std::fprintf(stderr, "%s%s%s\n", program, prefix.c_str(), printable(error.what()).c_str());
  if (const std::string report = unprinted_report(); !report.empty()) std::fprintf(stderr, "%s\n", report.c_str());
  leave_error(error);
  return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
}

int spawn(const std::function<void(int)>& body, int ranks, LaunchOptions options) {
  const int call = calls++;
  if (is_launched_rank()) {
    const auto wanted = environment_variable(kCall);  // without it another launcher made this rank
    return !wanted || *wanted == std::to_string(call) ? run_rank(body) : 0;
  }
  options.ranks = ranks;
  options.command = own_command();
  options.environment.emplace_back(kCall, std::to_string(call));
  const LaunchResult result = launch(options);
  for (const std::string& text : {result.message, result.report})
    if (!text.empty()) remark(options, text);
  return result.exit_code;
}

}  // namespace duet::ddp
