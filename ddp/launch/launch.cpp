#include "ddp/launch/launch.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ddp/group/work.h"
#include "ddp/launch/job.h"
#include "ddp/launch/job_guard.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/launch/rank_output.h"
#include "ddp/launch/rank_process.h"
#include "ddp/store/secret.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr int kMaxRanks = 1024;
// How long a failed or interrupted job waits for a reader of its output that takes nothing.
constexpr Milliseconds kReaderPatience{10'000}, kReaderPatienceInterrupted{1000};

void check(const LaunchOptions& options) {
  require<UsageError>(options.ranks >= 1 && options.ranks <= kMaxRanks, "a job has 1 to 1024 ranks, got ",
                      options.ranks);
  require<UsageError>(!options.command.empty() && !options.command[0].empty(), "there is no program to launch");
  require<UsageError>(options.master_port >= 0 && options.master_port <= 65535,
                      "port must have value from 0 to 65535 but was ", options.master_port);
  require<UsageError>(options.nodes >= 1 && options.nodes <= kMaxRanks, "a job has 1 to 1024 nodes, got ",
                      options.nodes);
  require<UsageError>(options.node_rank >= 0 && options.node_rank < options.nodes, "the rank of a node is 0 to ",
                      options.nodes - 1, ", got ", options.node_rank);
  require<UsageError>(options.nodes == 1 || options.master_port != 0, "a job of ", options.nodes,
                      " nodes needs a port, the same on all of them");
  require<UsageError>(options.max_restarts >= 0, "the number of restarts must not be negative, got ",
                      options.max_restarts);
  require<UsageError>(options.nodes == 1 || options.max_restarts == 0, "a job of ", options.nodes,
                      " nodes cannot be restarted: its launchers are not connected");
  require<UsageError>(options.timeout.count() > 0 && options.timeout <= std::chrono::hours(240),
                      "an operation may take 1 ms to 240 hours, got ", options.timeout.count(), " ms");
  require<UsageError>(options.join_timeout.count() > 0 && options.join_timeout <= std::chrono::hours(240),
                      "ranks wait for each other for 1 ms to 240 hours, got ", options.join_timeout.count(), " ms");
  require<UsageError>(
      options.grace.count() >= 0 && options.interrupt_grace.count() >= 0 && options.stop_limit.count() >= 0,
      "times must not be negative, got a grace of ", options.grace.count(), " ms, ", options.interrupt_grace.count(),
      " ms after a signal, and a stop limit of ", options.stop_limit.count(), " ms");
}

/// The cores of each local rank; empty if no rank is pinned.
std::vector<std::vector<int>> plan_cores(const LaunchOptions& options, OutputThread& output) {
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

/// All hosts must come to the same one.
std::string run_id_of(const LaunchOptions& options, const std::string& job) {
  if (!options.run_id.empty()) return options.run_id;
  return options.nodes == 1 ? job : concat("duet-", options.master_address, "-", options.master_port);
}

/// A secret for a job on one host; empty where the user gives one, and for several hosts.
std::string own_secret(const LaunchOptions& options) {
  const auto names_secret = [](const auto& variable) {
    return variable.first == kSecretVariable || variable.first == kSecretFileVariable;
  };
  const bool given =
      !given_secret().empty() || std::any_of(options.environment.begin(), options.environment.end(), names_secret);
  if (given || options.nodes > 1) return {};
  const std::string bytes = random_bytes(32);
  return to_hex(std::as_bytes(std::span(bytes)));
}

/// Waits until the ranks' output is written: after a success as long as it takes, else while its reader takes
/// something. A signal ends the wait.
void drain(OutputThread& output, const SignalPipe& signals, LaunchResult& result) {
  std::uint64_t written = output.written();
  const bool interrupted = result.exit_code > 128;
  const Milliseconds patience = interrupted ? kReaderPatienceInterrupted : kReaderPatience;
  for (auto deadline = Clock::now() + patience; !output.idle();) {
    std::array<pollfd, 2> events = {pollfd{signals.descriptor(), POLLIN, 0}, pollfd{output.descriptor(), POLLIN, 0}};
    ::poll(events.data(), events.size(), 100);
    output.acknowledge();
    if (const int signal = signals.next()) {
      if (result.exit_code == 0) result = interrupted_by(signal);
      break;
    }
    if (output.written() != written) deadline = Clock::now() + patience;
    written = output.written();
    if (result.exit_code != 0 && Clock::now() >= deadline) break;
  }
  const std::size_t dropped = output.stop();
  if (dropped > 0) result.message += concat("; ", dropped, " bytes of output were not written: their reader took none");
  output.rethrow();
  if (output.failure() == 0 || result.exit_code != 0) return;
  result.exit_code = 1;
  result.message = concat("cannot write all that the ranks have printed: ", errno_text(output.failure()));
}

}  // namespace

void remark(const LaunchOptions& options, OutputThread& output, const std::string& text) {
  output.post(text.size(), [&options, text] {
    if (options.on_remark)
      options.on_remark(text);
    else
      write_all(STDERR_FILENO, text + "\n");
  });
}

void remark(const LaunchOptions& options, const std::string& text) {
  if (options.on_remark)
    options.on_remark(text);
  else
    write_if_read(STDERR_FILENO, text + "\n");
}

LaunchResult launch(const LaunchOptions& options) {
  check(options);
  open_closed_streams();
  const std::string job = random_run_id();
  const SignalPipe signals;
  OutputThread output;
  std::optional<ReservedPort> port;  // rank 0's host has it
  if (options.node_rank == 0) port.emplace(options.master_address, options.master_port);
  const std::string folder = options.log_folder.empty() ? "" : concat(options.log_folder, "/", job);
  const auto cores = plan_cores(options, output);
  if (options.verbose && !folder.empty()) remark(options, output, "files of the ranks are in " + folder);
  JobGuard guard(job);
  RankVariables common{
      .port = port ? port->port() : options.master_port, .run_id = run_id_of(options, job), .job = job};
  common.secret = own_secret(options);
  for (;; ++common.attempt) {
    LaunchResult result = run_job(options, signals, output, guard, common, cores, folder);
    end_processes_of(job);
    result.restarts = common.attempt;
    if (result.failed_rank < 0 || common.attempt == options.max_restarts) {
      drain(output, signals, result);
      return result;
    }
    remark(options, output,
           concat(result.message, "; restart ", common.attempt + 1, " of ", options.max_restarts,
                  result.report.empty() ? "" : "\n", result.report));
  }
}

}  // namespace duet::ddp
