// What the launcher of an elastic job, its arbiter, and its ranks agree on, in memory that the launcher keeps. The
// transitions are those of tests/elastic/protocol.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/monotonic.h"

namespace duet::ddp {

/// Returns the prefix of the keys that a generation's ranks use in their store.
inline std::string generation_prefix(std::uint32_t generation) {
  return "generation/" + std::to_string(generation) + "/";
}

/// Where the ranks of a generation go on.
struct RecoveryPlan {
  std::int64_t commits = 0;  // that are complete: see Recovery::commits()
  int source = 0;            // a rank with the state behind them
};

/// A rank that was lost.
struct JobLoss {
  int rank = 0;
  std::int64_t step = 0;          // the last complete one, after which all go on
  std::int64_t lost_ns = 0;       // when the launcher saw it, by the monotonic clock
  std::int64_t recovered_ns = 0;  // when the next generation had the state after `step`; 0: not yet
};

/// The memory, mapped by launcher and ranks. A generation is a set of processes: each loss of one begins a new one, and
/// so does each process that joins, which only the launcher does. Ranks are named by the numbers that the launcher gave
/// them, whichever they have in the group of a generation. One word holds the generation and whether the job has ended,
/// so that a loss comes either before the end, or after it.
class JobMemory {
 public:
  static constexpr int kMostRanks = 1024;       // with spare ones
  static constexpr std::int64_t kNoState = -1;  // of a process that has just started
  static constexpr std::uint32_t kLosses = 64;  // older ones are overwritten
  static std::size_t bytes();
  /// Maps the file at `path`, of bytes() bytes, all zero at first. Throws CommError where it cannot be mapped.
  explicit JobMemory(const std::string& path);
  ~JobMemory();
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  /// Makes it as it was at first. No process uses it meanwhile.
  void clear();

  /// In a whole group. Throws CommError for a number that cannot be one.
  int ranks() const;
  /// With spare ones, whose numbers are those behind.
  int processes() const;
  /// What the rank has completed (Recovery::commits()), or kNoState.
  std::int64_t committed(int rank) const;
  /// The steps of that.
  std::int64_t steps(int rank) const;
  bool ended() const;
  /// For how many generations all ranks have arrived, counted up to the last of these.
  std::uint32_t planned() const;
  /// Whether the memory of another host decides.
  bool follows() const;
  /// Fewer ranks than these do not go on; with all of them, none is ever left out.
  int least_ranks() const;
  /// Whether the rank is one of the newest generation. Used by the launcher.
  bool is_member(int rank) const;
  /// Whether the rank is none, and its process waits until it is.
  bool applies(int rank) const;
  /// Whether the rank has made its JobMember.
  bool has_joined(int rank) const;
  /// Whether the rank has arrived for a generation, and has not gone on in it.
  bool recovers(int rank) const;
  /// The last kLosses - 1 at most, the oldest first.
  std::vector<JobLoss> losses() const;
  /// Counts what changes but commits; and waits for another count, at most so long.
  std::uint32_t changes() const;
  void await_change(std::uint32_t changes, Clock::duration limit) const;

 private:
  friend class JobArbiter;
  friend class JobMember;
  friend class JobFollower;
  struct Layout;
  Layout* memory_;
};

/// What a process has written into the memory of its host.
struct JobLine {
  std::int32_t rank = 0, replacement = 0;  // the second: how many processes had its number before
  std::int64_t committed = 0;
  std::uint32_t arrived = 0, resumed = 0, finished = 0, joined = 0, applies = 0;
};

/// The launcher's side.
class JobArbiter {
 public:
  /// Begins the first generation, of processes without a step.
  struct Sizes {
    int ranks = 1;
    int least_ranks = 1;  // that go on without lost ones; as many as `ranks`: they wait for them
    int spares = 0;       // processes that wait to replace one
  };
  JobArbiter(JobMemory& memory, const Sizes& sizes);
  /// The process of a rank has ended, and nothing of it writes any more: begins a new generation, in which a spare one
  /// that is ready takes its part, or which goes on without it where enough are left, or in which another process has
  /// its number. `step` is the last complete one.
  /// False: the job has ended before.
  bool lose(int rank, std::int64_t step);
  /// Begins a new generation with one more rank, which applies. False: none is missing, or the job has ended before.
  bool admit(int rank);
  /// Whether the newest generation has as many ranks as a whole group.
  bool is_whole() const;
  /// Whether another rank than a lost one has a state after a step or more, where one has completed so many: what
  /// others have done may not have come from their hosts, but they are at most one step behind.
  bool any_step(std::int64_t steps) const;
  /// The ranks that have not arrived for the newest generation; none in the first, which needs no arrivals.
  std::vector<int> missing() const;
  /// A process on another host has written this there.
  void take(const JobLine& line);
  /// What the memories of other hosts are to follow.
  std::vector<std::byte> decisions() const;
  /// Throws CommError where the memory has other decisions than those of this arbiter.
  void require_own() const;

 private:
  int count_members() const;
  int ready_spare() const;
  bool begin_generation(int leaves, int joins);
  JobMemory::Layout& memory_;
  const Sizes sizes_;
  const int processes_;
  std::uint32_t generation_ = 0, lost_ = 0;  // that it has begun, and ranks that were lost
  std::vector<int> members_;                 // of the generation
};

/// The side of a host whose launcher does not decide: its memory follows that of the arbiter's.
class JobFollower {
 public:
  explicit JobFollower(JobMemory& memory);
  /// Forgets the processes, for others that begin from the start.
  void clear();
  /// Throws CommError for what no arbiter says. `own` processes are on this host, which has written their lines itself.
  void take(const std::vector<std::byte>& decisions, const std::vector<int>& own);
  /// Another process is to have this number; `is_first`: the job has begun with it.
  void begin(int rank, bool is_first);
  JobLine line(int rank, int replacement) const;

 private:
  JobMemory::Layout& memory_;
};

/// A rank's side. Throws CommError for numbers that no launcher and no rank have written.
class JobMember {
 public:
  /// `rank`: also that of a spare process.
  JobMember(JobMemory& memory, int rank);

  std::uint32_t generation() const;
  /// Whether there is a newer generation than `own`.
  bool is_behind(std::uint32_t own) const { return generation() != own; }
  /// So much is complete: parameters and state are those behind it.
  void commit(std::int64_t commits);
  /// Leaves the group of the last generation; returns the newest one, once this rank is a member of it.
  std::uint32_t arrive();
  /// The ranks of the generation for which this one has arrived; of all before. Their order is that of their numbers in
  /// the group, in which a spare process has the place of the one that it replaces.
  const std::vector<int>& members() const { return members_; }
  int place_of(int rank) const;
  int rank() const { return rank_; }
  /// Waits for the plan of that generation, which the last rank to arrive makes; empty: there is a newer generation.
  std::optional<RecoveryPlan> await_plan(std::uint32_t generation);
  /// This rank calls a collective of all in its generation, which begins without one.
  void count_call();
  void begin_calls();
  /// Waits until all ranks have ended their training in this generation. False: there is a newer one. Throws UsageError
  /// where a rank of this host calls a collective that this one has not called: it would wait for ever.
  bool finish(std::uint32_t generation);
  /// Waits for a newer generation, at most so long.
  bool await_loss(std::uint32_t generation, Clock::duration limit);

 private:
  std::uint32_t await_membership();
  JobMemory::Layout& memory_;
  int rank_, processes_;
  bool recovers_ = false;  // has arrived, and has not gone on
  std::vector<int> members_;
};

}  // namespace duet::ddp
