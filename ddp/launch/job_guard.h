// Kills a job's processes when the launcher has died.
#pragma once

#include <sys/types.h>

#include <string>

#include "ddp/launch/rank_process.h"

namespace duet::ddp {

/// Set for every process of a job to a name that no other job has; what they start inherits it.
inline constexpr const char* kJobVariable = "DUET_JOB";

/// The full name of a job that this process starts: it begins with that of the job that this process is in, if any, so
/// that ending the outer one ends the inner one's processes, its launcher and guard included.
std::string job_within(const std::string& name);

/// Kills all processes of this user that were started with DUET_JOB=`job` or in a job within it, this one excepted,
/// until there are none: also those that have left their process group, session and parent. Finds none without /proc,
/// and before Linux 5.1. Calls nothing but system calls. Returns how many were found.
int end_processes_of(const std::string& job) noexcept;

/// A process that does so as soon as this one has died, for any reason, and does nothing else.
class JobGuard {
 public:
  /// Throws CommError when no process can be made.
  explicit JobGuard(const std::string& job);
  ~JobGuard();
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;

  /// Starts another process if this one has ended, and returns how it ended; empty if it runs. Throws CommError, after
  /// which there is none.
  std::string replace_if_ended();

 private:
  void start();
  const std::string text_;  // in the environment of the job's processes
  pid_t pid_ = -1;
  Descriptor alive_;  // the end of a pipe that closes with this process
};

}  // namespace duet::ddp
