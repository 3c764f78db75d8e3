#include "ddp/launch/check_options.h"

#include <chrono>
#include <cstdint>

#include "ddp/store/network.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

constexpr int kMaxRanks = 1024;

}  // namespace

LaunchOptions checked(LaunchOptions options) {
  options.master_address = parse_host(options.master_address, "the address of rank 0");
  require<UsageError>(options.ranks >= 1 && options.ranks <= kMaxRanks, "a job has 1 to 1024 ranks, got ",
                      options.ranks);
  const std::int64_t ranks = std::int64_t{options.nodes} * options.ranks;
  require<UsageError>(0 <= options.min_ranks && options.min_ranks <= ranks, "a job of ", ranks,
                      " ranks continues with 1 to ", ranks, " of them at least, got ", options.min_ranks);
  require<UsageError>(0 <= options.spares && options.ranks + options.spares <= kMaxRanks, "a job of ", options.ranks,
                      " ranks has 0 to ", kMaxRanks - options.ranks, " spare processes, got ", options.spares);
  require<UsageError>((options.min_ranks == 0 && options.spares == 0) || options.elastic,
                      "only an elastic job continues with fewer ranks, or has spare processes");
  require<UsageError>(options.spares == 0 || options.nodes == 1, "spare processes are for a job on one host, got ",
                      options.nodes);
  require<UsageError>(!options.elastic || ranks > 1,
                      "an elastic job has 2 or more ranks: nothing else has the state of one that is lost");
  require<UsageError>(options.max_failures >= 0, "an elastic job's failures must not be negative, got ",
                      options.max_failures);
  require<UsageError>(options.replace_timeout.count() > 0 && options.replace_timeout <= std::chrono::hours(240),
                      "a lost rank is replaced within 1 ms to 240 hours, got ", options.replace_timeout.count(), " ms");
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
  return options;
}

}  // namespace duet::ddp
