// The launchers of an elastic job on several hosts: that of the first host, the arbiter, decides; those of the others
// start the processes that it asks for, tell it what they do, and their memory follows its.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/job_processes.h"
#include "ddp/launch/launch.h"
#include "ddp/store/store.h"

namespace duet::ddp {

/// What has come to this launcher from another one.
struct HostEvent {
  enum class Kind {
    start,    // a process of `rank` is to start here; `replacement`: how many had its number before; `joins`: one has
              // trained with it
    lost,     // that of `rank` was lost: `text` says how, `phase` where in a step
    ends,     // the job has ended, for the reason `text`
    remarks,  // `text` is to be told
  };
  Kind kind = Kind::ends;
  int rank = -1, replacement = 0;
  Phase phase = Phase::none;
  bool joins = false;
  bool is_same_loss = false;  // as the event before: a host was lost with all its processes
  std::string text{};
};

/// Used by the thread that supervises the processes.
class JobHosts {
 public:
  virtual ~JobHosts() = default;
  /// Becomes readable when something has come, or the memory has changed.
  virtual int descriptor() const = 0;
  /// Sends what has changed, and returns what has come. `is_idle`: no process runs on this host.
  virtual std::vector<HostEvent> exchange(bool is_idle) = 0;
  /// The process of a rank on this host is lost. Not for the arbiter.
  virtual void lose(int rank, const std::string& how, Phase phase) = 0;
  enum class Start { here, elsewhere, later };
  /// Another process is to have the number of a rank that was lost: on the same host where that is left, else on
  /// another one where it is `needed`, else once its host takes part again. For the arbiter.
  virtual Start replace(int rank, bool needed) = 0;
  /// All ranks begin from the start, as no step was complete: those of this host. For the arbiter, whose processes are
  /// dead.
  virtual std::vector<int> begin_again() = 0;
  /// What the keys of the ranks in the launchers' store begin with, in which they have met since.
  virtual std::string store() const = 0;
  /// Whether another host may still need this launcher.
  virtual bool is_needed() const = 0;
  /// The job has ended here; empty: well. The arbiter tells the others, and waits until they know unless it `leaves`;
  /// these tell it, which loses the host if it only `leaves`.
  virtual void end(const std::string& failure, bool leaves) = 0;
};

/// Where the launchers meet.
struct JobMeeting {
  int port = 0;
  std::string run{}, secret{};
};
/// For the host with the arbiter: serves the store at which launchers and ranks meet. In the end it waits until the
/// others know, but no longer than kHostLimit, and until a signal of `signals` (may be null) ends the job. Throws
/// CommError where it cannot.
std::unique_ptr<JobHosts> make_job_arbiter(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                                           JobArbiter& arbiter, const SignalPipe* signals);
/// For another host; `end_processes` kills those of this one, and is false if the job ends here. Throws CommError if
/// the arbiter's doesn't answer within the time, or before a signal ends the job.
std::unique_ptr<JobHosts> make_job_follower(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                                            Milliseconds timeout, const SignalPipe& signals,
                                            std::function<bool()> end_processes);

}  // namespace duet::ddp
