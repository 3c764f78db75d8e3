// The losses of an elastic job, as its launcher counts them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/launch.h"
#include "ddp/store/store.h"

namespace duet::ddp {

/// Returns those of an elastic job with these options.
JobArbiter::Sizes sizes_of(const LaunchOptions& options);

/// The memory and the store of the job's ranks, in files that are gone with the launcher.
class JobLosses {
 public:
  /// Losses above `most`, without kStepsBetween steps between any two, end the job. Throws CommError where there is
  /// no memory for the files.
  JobLosses(const JobArbiter::Sizes& sizes, int most, bool one_host = true);

  const RankFile& memory() const { return memory_file_; }
  const RankFile& store() const { return store_file_; }
  JobMemory& job() { return *job_; }
  JobArbiter& arbiter() { return *arbiter_; }

  enum class Loss {
    replaced,  // another process is to have the rank's number; the others wait for it
    spared,    // a spare process replaces it
    left_out,  // the others go on meanwhile
    outside,   // it was not one of the ranks that train; another process is to wait in its place
    begins,    // no step was complete: all ranks are to start again
    ends_job,  // for the reason()
  };
  /// Of losses that do not end the job, in words.
  static const char* consequence(Loss loss);
  /// The process of a rank has ended by itself, or was killed: how, in words, and where in a step its record says that
  /// it was.
  /// `counts`: as another loss.
  Loss lose(int rank, const std::string& how = "", Phase phase = Phase::none, bool counts = true);
  /// What is added to the message of a job that was ended by a loss; empty: nothing.
  const std::string& reason() const { return reason_; }
  /// The last step that any rank had completed when the last one was lost.
  std::int64_t step() const { return step_; }
  /// Whether any lost rank has no process yet that has the state of the training.
  bool recovers() const;
  /// What came of losses since the last call: a rank's new process has that state, and after what time, or the others
  /// go on without one.
  std::vector<std::string> recoveries();
  /// Lets ranks that were left out join the others where their processes are ready. Throws CommError where another
  /// process has written into the memory.
  void admit_ready();
  /// Whether the training has ended without this rank's new process.
  bool is_superfluous(int rank) const { return job_->ended() && !job_->is_member(rank); }
  struct Absence {
    int rank = -1;  // the first one
    std::string message{};
  };
  /// Ranks that have not joined the others within the limit after the newest loss.
  std::optional<Absence> overdue(Milliseconds limit) const;
  /// Whether a rank that ends now leaves the others in the midst of the training.
  bool trains(int rank) const { return job_->has_joined(rank) && !job_->ended(); }
  /// Returns the error of a rank that has left the others with exit code 0.
  std::string left_early(int rank) const;
  /// Forgets the ranks, for others that begin from the start; the memory stays where there are other hosts.
  void begin();

 private:
  struct LastLoss {
    std::int64_t within = 0;  // which step it computed; 0: none
    std::string how{};
    bool left_out = false;
    bool told = true;    // what came of it
    bool joins = false;  // was left out, and has been admitted since
  };
  Loss end(const std::string& reason);
  static constexpr std::int64_t kStepsBetween = 100;
  const JobArbiter::Sizes sizes_;
  const int processes_, most_;
  const bool one_host_;
  RankFile memory_file_, store_file_;
  std::unique_ptr<JobMemory> job_;
  std::optional<JobArbiter> arbiter_;
  bool admitted_ = false;  // a rank since the last loss
  int losses_ = 0;
  std::int64_t step_ = 0;
  std::string reason_{};
  std::vector<LastLoss> last_;  // by rank; also from before begin()
};

}  // namespace duet::ddp
