// What the launcher gives to a rank: torchrun's variables, and the rendezvous port.
#pragma once

#include <string>
#include <vector>

#include "ddp/launch/launch.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// By which a launcher passes options to ranks.
inline constexpr const char* kJoinTimeoutVariable = "DUET_JOIN_TIMEOUT_MS";
inline constexpr const char* kTimeoutVariable = "DUET_TIMEOUT_MS";

/// A port that is reserved while this lives. The socket never listens, so rank 0 may bind the same port as well:
/// both allow address reuse, as every server of this kind does.
class ReservedPort {
 public:
  /// 0 picks a free one. Throws CommError with port and errno when it is taken.
  ReservedPort(const std::string& address, int port);
  int port() const { return port_; }

 private:
  int port_;
  Descriptor socket_;
};

/// A name for a run that no other run has.
std::string random_run_id();

/// What a launch passes to each of its ranks.
struct RankVariables {
  int local_rank = 0;
  int port = 0;
  int attempt = 0;
  std::string run_id{};       // equal on all hosts
  std::string secret{};       // empty: the ranks have one, or need none
  std::string job{};          // of this launcher's processes: see ddp/launch/job_guard.h
  std::string error_file{};   // to which the rank writes its error
  std::string record_file{};  // what it does: see ddp/group/flight_recorder.h
};

/// All variables of a rank, as "NAME=value": this process's own, torchrun's, and those of the options.
std::vector<std::string> rank_environment(const LaunchOptions& options, const RankVariables& rank);

}  // namespace duet::ddp
