#include "ddp/launch/launch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ddp/launch/job.h"
#include "ddp/launch/job_guard.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/launch/rank_output.h"
#include "ddp/launch/rank_process.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr int kMaxRanks = 1024;
// How long a failed or interrupted job waits for a reader of its output that takes nothing, and when it says why.
constexpr Milliseconds kReaderPatience{10'000}, kReaderPatienceInterrupted{1000}, kTold{500};

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

/// Where the job's ports lie.
PortRange ports_of(const LaunchOptions& options) {
  if (options.port_range.empty()) return port_range();
  const PortRange ports = parse_port_range(options.port_range, "the range of ports");
  require<UsageError>(
      options.master_port == 0 || (ports.first <= options.master_port && options.master_port <= ports.last), "port ",
      options.master_port, " is not in the range of ports ", options.port_range);
  return ports;
}

/// All hosts must come to the same one.
std::string run_id_of(const LaunchOptions& options, const std::string& name) {
  if (!options.run_id.empty()) return options.run_id;
  return options.nodes == 1 ? name : concat("duet-", options.master_address, "-", options.master_port);
}

/// The secret for the ranks: the given one, else a random one for a job on one host. Empty where they get it otherwise,
/// or need it and have none.
std::string secret_of(const LaunchOptions& options, const std::string& given) {
  const auto names_secret = [](const auto& variable) {
    return variable.first == kSecretVariable || variable.first == kSecretFileVariable;
  };
  if (std::any_of(options.environment.begin(), options.environment.end(), names_secret)) return {};
  if (!given.empty()) return environment_variable(kSecretFileVariable) ? "" : given;
  if (options.nodes > 1) return {};
  const std::string bytes = random_bytes(32);
  return to_hex(std::as_bytes(std::span(bytes)));
}

/// Waits until the ranks' output is written: after a success as long as it takes, else while its reader takes
/// something; where it takes none, a remark says at once why the job has ended. A signal ends the wait.
void drain(const LaunchOptions& options, LaunchOutput& output, const SignalPipe& signals, LaunchResult& result) {
  std::uint64_t written = output.lines.written();
  const bool interrupted = result.exit_code > 128;
  const Milliseconds patience = interrupted ? kReaderPatienceInterrupted : kReaderPatience;
  bool told = result.exit_code == 0 || interrupted;
  auto last = Clock::now();  // when the reader took something
  while (!output.idle()) {
    std::array<pollfd, 3> events = {pollfd{signals.descriptor(), POLLIN, 0},
                                    pollfd{output.lines.descriptor(), POLLIN, 0},
                                    pollfd{output.remarks.descriptor(), POLLIN, 0}};
    ::poll(events.data(), events.size(), 100);
    output.lines.acknowledge();
    output.remarks.acknowledge();
    if (const int signal = signals.next()) {
      if (result.exit_code == 0) result = interrupted_by(signal);
      if (signal != SIGPIPE) break;  // the other stream's lines may still be read
    }
    const auto now = Clock::now();
    if (output.lines.written() != written) last = now;
    written = output.lines.written();
    if (result.exit_code != 0 && now - last >= patience) break;
    if (!told && now - last >= kTold && !output.lines.idle()) {
      told = true;
      remark(options, output, concat(result.message, "; its job's output is not read"));
    }
  }
  const std::size_t dropped = output.stop();
  if (dropped > 0) result.message += concat("; ", dropped, " bytes of output were not written: their reader took none");
  output.lines.rethrow();
  output.remarks.rethrow();
  if (output.lines.failure() == 0 || result.exit_code != 0) return;
  result.exit_code = 1;
  result.message = concat("cannot write all that the ranks have printed: ", errno_text(output.lines.failure()));
}

}  // namespace

LaunchResult interrupted_by(int signal) {
  return {.exit_code = 128 + signal,
          .signal = signal,
          .message = concat("ended by ", signal_text(signal),
                            signal == SIGPIPE ? ": nothing reads the output of the ranks any more" : "")};
}

std::string ranks_elsewhere(const LaunchOptions& options) {
  std::vector<int> others;
  for (int rank = 0; rank < options.nodes * options.ranks; ++rank)
    if (rank / options.ranks != options.node_rank) others.push_back(rank);
  return others.empty() ? "" : concat("other hosts (", rank_names(others), ")");
}

void remark(const LaunchOptions& options, LaunchOutput& output, const std::string& text) {
  output.post_remark(text.size(), [&options, text] {
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
  const PortRange ports = ports_of(options);
  open_closed_streams();
  const std::string name = random_run_id(), job = job_within(name);
  const SignalPipe signals;
  LaunchOutput output;
  std::optional<ReservedPort> port;  // rank 0's host has it
  if (options.node_rank == 0) port.emplace(options.master_address, options.master_port, ports);
  const std::string folder = options.log_folder.empty() ? "" : concat(options.log_folder, "/", name);
  const auto cores = plan_cores(options, output);
  if (options.verbose && !folder.empty()) remark(options, output, "files of the ranks are in " + folder);
  JobGuard guard(job);
  RankVariables common{
      .port = port ? port->port() : options.master_port, .run_id = run_id_of(options, name), .job = job};
  const std::string given = given_secret(), weakness = given.empty() ? "" : weakness_of(given);
  if (!weakness.empty()) remark(options, output, weakness);
  common.secret = secret_of(options, given);
  for (;; ++common.attempt) {
    LaunchResult result = run_job(options, signals, output, guard, common, cores, folder);
    end_processes_of(job);
    result.restarts = common.attempt;
    if (result.failed_rank < 0 || common.attempt == options.max_restarts) {
      drain(options, output, signals, result);
      return result;
    }
    remark(options, output,
           concat(result.message, "; restart ", common.attempt + 1, " of ", options.max_restarts,
                  result.report.empty() ? "" : "\n", result.report));
  }
}

}  // namespace duet::ddp
