// One attempt of a launch: its ranks from their start to their end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/group/failure_report.h"
#include "ddp/group/work.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_guard.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/launch/rank_output.h"
#include "ddp/launch/rank_process.h"

namespace duet::ddp {

class Job {
 public:
  /// Starts the ranks. `common` is what they share; `cores` has an entry for each local rank, or none; `folder` is
  /// empty if there are no files. Throws UsageError when the program cannot be run.
  Job(const LaunchOptions& options, const SignalPipe& signals, OutputThread& output, JobGuard& guard,
      RankVariables common, const std::vector<std::vector<int>>& cores, const std::string& folder);
  /// Returns when all have ended.
  LaunchResult run();

 private:
  /// In memory, so that it is gone with the launcher; the ranks reach it by its path.
  struct File {
    Descriptor memory;
    std::string path;
  };
  struct Failure {
    bool failed = false;
    bool consequence = false;  // its own report says that it lost a peer
    bool by_signal = false;    // its own report says which signal it received
    Clock::time_point when, seen;
    std::string text;
  };
  static File make_memory_file(const char* name);
  File make_error_file(int rank) const;
  static File make_record_file();
  int global(std::size_t i) const { return options_.node_rank * options_.ranks + static_cast<int>(i); }
  bool any_alive();
  void wait_for_events();
  /// Only as long as the output thread has room, or all there is.
  void read_lines(bool all);
  void pass_on_signals();
  void look_for_failures();
  void look_for_stopped();
  void look_for_waits();
  void look_at_guard();
  std::vector<RankRecord> records() const;
  bool cause_is_on_its_way() const;
  void end_overdue();
  void remark(const std::string& text) const;
  bool ended_by_sigterm(std::size_t i) const;
  int culprit_score(std::size_t i) const;
  std::string message_of(std::size_t i) const;
  std::string report(int failed_rank) const;
  LaunchResult result() const;

  const LaunchOptions& options_;
  const SignalPipe& signals_;
  OutputThread& thread_;
  JobGuard& guard_;
  std::shared_ptr<RankOutput> output_;
  std::vector<File> error_files_, record_files_;
  std::vector<RankProcess> ranks_;
  std::vector<Failure> failed_;
  std::vector<std::optional<Clock::time_point>> stopped_;  // since when
  std::vector<bool> stop_reported_;
  WaitWatch waits_;
  Clock::time_point next_look_{};  // at the records
  int overdue_rank_ = -1;          // stopped for longer than the limit
  int interrupted_ = 0;
  std::optional<Clock::time_point> terminate_at_, cause_until_, sigterm_at_, kill_at_;
};

/// Of a launch that this signal ended.
LaunchResult interrupted_by(int signal);

/// Queues a remark of the launcher.
void remark(const LaunchOptions& options, OutputThread& output, const std::string& text);
/// Writes one at once, where there is no thread for it.
void remark(const LaunchOptions& options, const std::string& text);

}  // namespace duet::ddp
