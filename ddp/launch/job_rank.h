// A process of a launcher's job, and the files by which it says what it does and why it ends.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/job_processes.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// What remarks call the ranks of other launchers; empty if there are none.
std::string ranks_elsewhere(const LaunchOptions& options);

/// At the path, which nothing has then; empty: in memory.
RankFile make_error_file(const std::string& path);

/// The job goes on without one where memory is short.
RankFile make_record_file();

struct JobRank {
  int rank;
  int replacement;  // processes that had its number before
  RankFile error_file, record_file;
  RankProcess process;
  // Set when the rank fails; `when` is the time in its own report, if that has one, `seen` when the launcher saw it.
  bool failed = false;
  RankError error{};  // its own report; the message in one line, empty where there is none
  Clock::time_point when{}, seen{};

  std::optional<Clock::time_point> stopped{};      // since when
  bool stop_reported = false, stop_ended = false;  // ended: by the launcher, as it lasted too long

  std::string last_words{};  // its last line on stderr that isn't blank
  bool left = false;         // wrote no error file, and an exception dropped its group before the launcher's SIGTERM

  FlightRecord record() const { return FlightRecorder::read(record_file.path); }
  /// Whether the ended process was lost: it left no error that explains its end, and no exception dropped its group
  /// before it ended other than by SIGKILL. A rank that has left the others with exit code 0 is not lost: its program
  /// would do so again.
  bool is_lost() const;
  /// Notes why the ended process has failed, by its error file, else by when an exception dropped its group. Errors
  /// that follow the SIGTERM of the launcher at `sigterm` don't count. False: the process has said nothing.
  bool note_failure(const std::optional<Clock::time_point>& sigterm);
  /// Returns how the process ended; `killed_by`: the signal that killed it, 0 for the launcher's.
  std::string ending(int killed_by) const;
  /// Returns what to add to the message about a rank that wrote no error file; empty: nothing.
  std::string hint() const;
};

/// Returns the rank of another host than `node` that these have lost first, with `per_node` ranks a host; -1: none.
int first_lost_elsewhere(const std::list<JobRank>& ranks, int per_node, int node);

/// Returns what the ranks' flight recorders hold.
std::vector<RankRecord> records_of(const std::list<JobRank>& ranks);

/// A process of an elastic job that is to start.
struct JobStart {
  int rank;
  int replacement;
  bool joins = false;
  // Set if it could not start: why, since when, and when to try again.
  std::string cause{};
  Clock::time_point since{}, next{};
};

/// Returns what the scripts hold that a command runs: its words that name a file with "#!".
std::string scripts_in(const std::vector<std::string>& command);

/// A rank that ended with exit code 0 while others of `ranks` wait for it to join a group of all `size` ranks; null:
/// none.
const JobRank* absent_for_good(const std::list<JobRank>& ranks, int size);

/// Chooses the cores of each local rank; empty if no rank is pinned.
std::vector<std::vector<int>> plan_cores(const LaunchOptions& options, LaunchOutput& output);

}  // namespace duet::ddp
