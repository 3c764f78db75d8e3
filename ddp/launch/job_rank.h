// A process of a launcher's job, and the files by which it says what it does and why it ends.
#pragma once

#include <optional>
#include <string>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_processes.h"
#include "ddp/launch/launch.h"
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

  FlightRecord record() const { return FlightRecorder::read(record_file.path); }
};

}  // namespace duet::ddp
