#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/launch/error_file.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "ddp/launch/rank_resolver.h"
#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

/// Writes a remark of the launcher at once.
void remark(const LaunchOptions& options, const std::string& said) {
  const std::string text = printable(said, "\n");  // of ranks, and of other launchers
  if (options.on_remark)
    options.on_remark(text);
  else
    write_if_read(STDERR_FILENO, text + "\n");
}

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

/// What only the launcher of a rank decides, which has been started by another one.
void check_launched(const LaunchOptions& options) {
  const LaunchOptions standard;
  require<UsageError>(!options.elastic || environment_variable(kElasticVariable),
                      "an elastic job, but a launcher that does not replace ranks has started this one: expected duet "
                      "launch --elastic");
  const char* const option = options.min_ranks != standard.min_ranks               ? "--min-ranks"
                             : options.spares != standard.spares                   ? "--spares"
                             : options.max_failures != standard.max_failures       ? "--max-failures"
                             : options.replace_timeout != standard.replace_timeout ? "--replace-timeout"
                             : options.stop_limit != standard.stop_limit           ? "--stop-limit"
                                                                                   : nullptr;
  require<UsageError>(option == nullptr, option == nullptr ? "" : option,
                      " is for the launcher, but another one has started this rank: expected duet launch with it");
}

std::atomic<int> calls{0};

}  // namespace

int spawn(const std::function<void(int)>& body, int ranks, LaunchOptions options) {
  const int call = calls++;
  if (is_launched_rank()) {
    const auto wanted = environment_variable(kCall);
    if (!wanted) check_launched(options);
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
