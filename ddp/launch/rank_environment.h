// What the launcher gives to a rank: torchrun's variables, the rendezvous port, and cores.
#pragma once

#include <string>
#include <vector>

#include "ddp/launch/launch.h"
#include "ddp/store/network.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// By which a launcher passes options to ranks.
inline constexpr const char* kJoinTimeoutVariable = "DUET_JOIN_TIMEOUT_MS";
inline constexpr const char* kTimeoutVariable = "DUET_TIMEOUT_MS";
inline constexpr const char* kVerboseVariable = "DUET_VERBOSE";

/// A port that is reserved while this lives. The socket never listens, so rank 0 may bind the same port as well:
/// both allow address reuse, as every server of this kind does.
class ReservedPort {
 public:
  /// 0 picks a free one of the range. Throws CommError with ports and errno when there is none.
  ReservedPort(const std::string& address, int port, const PortRange& range = {});
  int port() const { return port_; }

 private:
  int port_;
  Descriptor socket_;
};

/// A name for a run that no other run has.
std::string random_run_id();

/// Where the job's ports lie.
PortRange ports_of(const LaunchOptions& options);
/// The name of the run: on all hosts the same one. `name`: of this launch.
std::string run_id_of(const LaunchOptions& options, const std::string& name);
/// The secret for the ranks: the given one, else a random one for a job on one host. Empty where they get it otherwise,
/// or need it and have none.
std::string secret_of(const LaunchOptions& options, const std::string& given);

/// What a launch passes to each of its ranks.
struct RankVariables {
  int rank = 0, local_rank = 0;
  int port = 0;
  int attempt = 0;
  std::string run_id{};                         // equal on all hosts
  std::string secret{};                         // empty: the ranks have one, or need none
  std::string job{};                            // name of the job, for its processes: see ddp/launch/job_processes.h
  std::string error_file{};                     // to which the rank writes its error
  std::string record_file{};                    // what it does: see ddp/group/flight_recorder.h
  std::string elastic_file{}, elastic_store{};  // see ddp/launch/losses.h; empty: the job is not elastic
  int process = 0;                              // its number in the job, with spare ones
  bool joins = false;                           // takes the state of the training from another rank
  int replacement = 0;                          // processes that this number had before, in an elastic job
};

/// All variables of a rank, as "NAME=value": this process's own, torchrun's, and those of the options.
std::vector<std::string> rank_environment(const LaunchOptions& options, const RankVariables& rank);

/// One hardware thread, as the kernel numbers them.
struct Cpu {
  int number = 0;
  int core = 0;  // equal for the hardware threads of one core
  int node = 0;  // NUMA
};

/// The hardware threads that this process may use, from the files below `folder`. What those do not say counts as one
/// node, with a core for each thread.
std::vector<Cpu> usable_cpus(const std::string& folder = "/sys/devices/system");

/// Shares them out in the order of nodes and cores, a run of neighbours to each rank, so that no core has two ranks and
/// as few ranks as can be lie across two nodes. Where ranks outnumber cores, hardware threads are shared out; where
/// they outnumber those too, the result is empty: no rank is pinned.
std::vector<std::vector<Cpu>> share_cpus(std::vector<Cpu> cpus, int ranks);

/// "cores 0-3,8 (NUMA node 1)".
std::string describe(const std::vector<Cpu>& cpus);

}  // namespace duet::ddp
