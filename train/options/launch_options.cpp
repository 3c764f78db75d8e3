#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ddp/launch/launch.h"
#include "ddp/store/network.h"
#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/parse_number.h"
#include "train/options/command_line.h"
#include "train/system/display.h"
#include "train/system/machine.h"

namespace duet::cli {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kDefaultPort = 29500;  // torchrun's, where hosts must agree on one
constexpr double kMaxSeconds = 8e5;

void check_streams(const char* option, const std::string& text, const LaunchOptions& options) {
  if (text.empty()) return;
  ddp::RankStreams streams;
  try {
    streams = ddp::parse_streams(text);
  } catch (const UsageError& error) {
    throw UsageError(concat(option, ": ", error.what()));
  }
  const int first = options.job.node_rank * options.job.ranks, end = first + options.job.ranks;
  for (const auto& [rank, bits] : streams.ranks)
    require<UsageError>(rank >= first && rank < end, option, " is ", text, ", but rank ", rank,
                        " is not one of the ranks ", first, " to ", end - 1, " here");
  require<UsageError>(!streams.any() || !options.job.log_folder.empty(), option, " is ", text,
                      ", but no --log-dir says where the files go");
}

/// The ports of --port-range, else of DUET_PORT_RANGE.
ddp::PortRange range_of(const LaunchOptions& options) {
  const std::string& text = options.job.port_range;
  return text.empty() ? ddp::port_range() : ddp::parse_port_range(text, "--port-range");
}

/// The options of the rendezvous, of which only one may be given.
void check_meeting(const LaunchOptions& options) {
  const bool master = !options.master_addr.empty() || options.master_port != 0;
  const std::string given = !options.rdzv_endpoint.empty() ? "--rdzv-endpoint is " + options.rdzv_endpoint
                            : !options.master_addr.empty() ? "--master-addr is " + options.master_addr
                                                           : concat("--master-port is ", options.master_port);
  require<UsageError>(options.rdzv_endpoint.empty() || !master, given,
                      ", but --master-addr and --master-port say the same; use one of them");
  require<UsageError>(!options.standalone || (options.rdzv_endpoint.empty() && !master), given,
                      ", but --standalone takes a free port of this host");
  require<UsageError>(!options.standalone || options.job.nodes == 1, "--nnodes is ", options.job.nodes,
                      ", but --standalone is for one");
  require<UsageError>(options.job.nodes == 1 || !options.rdzv_endpoint.empty() || !options.master_addr.empty(),
                      "--nnodes is ", options.job.nodes,
                      ", but no --rdzv-endpoint HOST:PORT says where the ranks meet");
  const bool c10d = options.rdzv_backend == "c10d";
  require<UsageError>(!c10d || options.job.nodes == 1 || options.node_rank_given,
                      "--rdzv-backend is c10d with --nnodes ", options.job.nodes,
                      ", but no --node-rank says which host this is: duet launch does not assign them");
  const int port = endpoint_of(options).port;
  const ddp::PortRange range = range_of(options);
  require<UsageError>(!range.limits() || port == 0 || (range.first <= port && port <= range.last),
                      "the range of ports is ", range.first, "-", range.last, ", but rank 0 is to have port ", port);
}

/// Names of an option, and those with underscores in place of their inner dashes.
std::string both(const std::string& names) {
  std::string underscores = names;
  for (std::size_t i = 1; i + 1 < names.size(); ++i)
    if (names[i] == '-' && names[i - 1] != '-' && names[i - 1] != ',' && names[i + 1] != '-') underscores[i] = '_';
  return concat(names, ",", underscores.substr(underscores.rfind(',') + 1));
}

const std::vector<std::string> kCounts = {"auto", "gpu", "cpu"};

/// What -n says: a number, or what this host has.
int count_of(const std::string& text) {
  if (const auto count = parse_number<int>(text)) return *count;
  require<UsageError>(std::find(kCounts.begin(), kCounts.end(), text) != kCounts.end(), "-n: unknown '", text,
                      "', expected a number, ", listed(kCounts, "or"));
  const std::string why = text == "cpu" ? "" : why_unavailable(DeviceKind::cuda);
  const bool gpus = text != "cpu" && why.empty();
  require<DeviceError>(gpus || text != "gpu", "-n gpu: there is no GPU: ", why);
  return gpus ? backend(DeviceKind::cuda).device_count() : usable_cores();
}

/// Reads a number of hosts, or torchrun's MIN:MAX.
void take_hosts(const std::string& text, LaunchOptions& options) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const int least = parse_number<int>(text.substr(0, colon)).value_or(0);
  const int most = colon == text.size() ? least : parse_number<int>(text.substr(colon + 1)).value_or(0);
  require<UsageError>(1 <= least && least <= most && most <= kMaxDevices, "--nnodes is ", text, ", expected 1 to ",
                      kMaxDevices, ", or MIN:MAX of these");
  options.least_nodes = least;
  options.job.nodes = most;
}

void add_seconds(CLI::App& app, const std::string& names, ddp::Milliseconds& time, double least, const char* about) {
  const auto take = [&time](double seconds) { time = ddp::Milliseconds(std::llround(seconds * 1000)); };
  app.add_option_function<double>(names, take, about)
      ->check(in_range(least, kMaxSeconds))
      ->default_str(concat(time.count() / 1000));
}

/// How the ranks find each other.
void add_meeting(CLI::App& app, LaunchOptions& options) {
  app.add_option(both("--rdzv-endpoint"), options.rdzv_endpoint,
                 "place where all ranks meet, on rank 0's host: HOST, HOST:PORT or [IPV6]:PORT; required with several "
                 "hosts. Default: 127.0.0.1 and a free port, or 29500 with several hosts");
  app.add_option(both("--rdzv-backend"), options.rdzv_backend,
                 "accepted as in torchrun: both names mean that the ranks meet on rank 0's host")
      ->check(one_of({"static", "c10d"}));
  app.add_option(both("--rdzv-id"), options.job.run_id,
                 "name of the job, the same on all hosts; ranks with another name can't join, and restarts resume only "
                 "this job's checkpoints. Default: a new one");
  app.add_option(both("--master-addr"), options.master_addr,
                 "host of rank 0, where all ranks meet: its name or address, without a port. Default: 127.0.0.1");
  app.add_option(both("--master-port"), options.master_port,
                 "port on rank 0's host where all ranks meet; 0: a free one, or 29500 with several hosts")
      ->check(in_range(0, kMaxPort));
  app.add_option("--interface", options.job.interface,
                 "network interface over which ranks exchange data, such as eth0; beyond loopback set DUET_SECRET_FILE "
                 "or DUET_SECRET on all hosts. Default: the one that leads to rank 0");
  add_port_range(app, both("--port-range"), options.job.port_range);
  app.add_flag("--standalone", options.standalone, "run on one host, over loopback and a free port (the default)");
}

}  // namespace

Endpoint endpoint_of(const LaunchOptions& options) {
  Endpoint endpoint;
  const ddp::PortRange range = range_of(options);
  const int agreed = range.limits() ? range.first : kDefaultPort;
  const int otherwise = options.job.nodes > 1 ? agreed : 0;
  endpoint.port = options.master_port != 0 ? options.master_port : otherwise;
  if (!options.master_addr.empty()) endpoint.address = ddp::parse_host(options.master_addr, "--master-addr");
  if (options.rdzv_endpoint.empty()) return endpoint;
  const std::string& text = options.rdzv_endpoint;
  const ddp::HostAndPort place = ddp::parse_endpoint(text, "--rdzv-endpoint", false);
  endpoint.address = place.host;
  if (place.port.empty()) return endpoint;
  endpoint.port = parse_number<int>(place.port).value_or(-1);
  require<UsageError>(endpoint.port >= 0 && endpoint.port <= kMaxPort, "--rdzv-endpoint is ", text,
                      ", expected a port from 0 to ", kMaxPort, " after the colon");
  require<UsageError>(options.job.nodes == 1 || endpoint.port != 0, "--rdzv-endpoint is ", text,
                      ", but several hosts need a fixed port");
  return endpoint;
}

void add_elastic(CLI::App& app, ddp::LaunchOptions& job, std::string (*names)(const std::string&)) {
  app.add_flag(
      "--elastic", job.elastic,
      "replace a lost rank and repeat the step in flight (ddp); results stay bitwise identical, over NCCL to rounding");
  app.add_option(names("--min-ranks"), job.min_ranks,
                 "minimum number of ranks: if at least N survive a failure, continue without the lost rank; 0 waits "
                 "for its replacement")
      ->check(in_range(0));
  app.add_option("--spares", job.spares,
                 "number of additional processes of an elastic job that wait to replace a lost rank at once")
      ->check(in_range(0));
  app.add_option(names("--max-failures"), job.max_failures,
                 "maximum number of failures that an elastic job survives; 100 steps without one start a new count")
      ->check(in_range(0));
  add_seconds(app, names("--replace-timeout"), job.replace_timeout, 0.001,
              "seconds after a failure within which all ranks of an elastic job must have connected again");
  add_seconds(app, names("--stop-limit"), job.stop_limit, 0,
              "seconds for which a rank may be suspended (SIGSTOP) before the job fails, or replaces it if elastic");
}

void add_launch(CLI::App& app, LaunchOptions& options) {
  app.footer(
      "Underscores in place of dashes, as torchrun spells names, mean the same. SIGUSR1, SIGUSR2 and SIGXCPU, which "
      "schedulers send before a time limit, reach the ranks; the job continues unless a rank ends by them.");
  app.add_option_function<std::string>(
         both("-n,--nproc,--nproc-per-node"), [&](const std::string& text) { options.job.ranks = count_of(text); },
         "number of processes (ranks) on this host, or a word: cpu for one per core, gpu for one per GPU, or auto for "
         "gpu if there is one, else cpu")
      ->check(Check([](const std::string&) { return std::string(); }, one_of(kCounts).get_description()))
      ->default_str(std::to_string(options.job.ranks));
  app.add_option_function<std::string>(
         "--nnodes", [&](const std::string& text) { take_hosts(text, options); },
         "number of hosts, each with a duet launch of the same -n; MIN:MAX: an elastic job starts on MAX hosts and "
         "continues while MIN are left")
      ->default_str(std::to_string(options.job.nodes));
  const CLI::Option* const node_rank =
      app.add_option(both("--node-rank"), options.job.node_rank, "number of this host, from 0");
  app.callback([&options, node_rank] {
    options.node_rank_given = node_rank->count() > 0;
    if (options.least_nodes < options.job.nodes && options.job.min_ranks == 0)
      options.job.min_ranks = options.least_nodes * options.job.ranks;
  });
  add_meeting(app, options);
  app.add_option(
         both("--max-restarts"), options.job.max_restarts,
         "number of times to restart a failed job (one host only); duet train then resumes from its --checkpoint")
      ->check(in_range(0));
  add_elastic(app, options.job, both);
  app.add_option(both("--log-dir"), options.job.log_folder,
                 "directory for log files; each job adds one with attempt_A/rank_R/{stdout.log,stderr.log,error.json}");
  app.add_option(
      "-r,--redirects", options.redirects,
      "streams that go to log files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:NUMBER,... Default: 0");
  app.add_option(
      "-t,--tee", options.tee,
      "streams that go to log files and, after \"[rank R] \", to the terminal; numbers as for --redirects. Default: 0");
  app.add_flag_callback(
      both("--no-python"), [] {}, "accepted as in torchrun, without effect: programs run as they are, without Python");
  app.add_flag(both("--no-pin"), options.no_pin,
               "let every rank use all cores; otherwise each has an equal share of them");
  add_seconds(app, both("--rdzv-timeout"), options.job.join_timeout, 0.001,
              "seconds that ranks wait for each other before they fail and name the missing ones");
  add_seconds(app, "--timeout", options.job.timeout, 0.001,
              "seconds that one collective may take before it fails and names the missing ranks");
  add_seconds(app, "--grace", options.job.grace, 0, "seconds from SIGTERM to SIGKILL when a job is ended");
  app.add_flag("--verbose", options.job.verbose,
               "also print each rank's cores, process and host, and the directory of log files");
  app.add_option("command", options.job.command, "program and its arguments, after --")
      ->default_str("")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.positionals_at_end();
}

void check(const LaunchOptions& options) {
  require<UsageError>(options.job.ranks >= 1 && options.job.ranks <= kMaxDevices, "-n is ", options.job.ranks,
                      ", expected 1 to ", kMaxDevices, " processes");
  require<UsageError>(options.job.node_rank >= 0 && options.job.node_rank < options.job.nodes, "--node-rank is ",
                      options.job.node_rank, ", expected 0 to ", options.job.nodes - 1, " with --nnodes ",
                      options.job.nodes);
  check_meeting(options);
  require<UsageError>(options.least_nodes == options.job.nodes || options.job.elastic, "--nnodes is ",
                      options.least_nodes, ":", options.job.nodes,
                      ", but only a job with --elastic continues on fewer hosts, expected one number");
  require<UsageError>(options.job.max_restarts == 0 || options.job.nodes == 1, "--max-restarts is ",
                      options.job.max_restarts, ", but with --nnodes ", options.job.nodes,
                      " a launcher is not notified of failures on other hosts");
  check_streams("--tee", options.tee, options);
  check_streams("--redirects", options.redirects, options);
  require<UsageError>(!options.job.command.empty(), "no program given, expected duet launch -n N -- PROGRAM ARGS");
}

}  // namespace duet::cli
