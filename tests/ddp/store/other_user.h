// Code of a test that runs as another user of this host.
#pragma once

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/support/scratch.h"

namespace duet_test {

inline constexpr uid_t kOtherUser = 65534;

/// Why a test cannot be another user; empty if it can.
inline const char* why_no_other_user() { return ::geteuid() == 0 ? "" : "only root can be another user"; }

/// Runs `action` in a child process of that user, which has a folder for temporary files of its own; returns what it
/// returns, or -1 for a child that did not end by itself.
template <class Action>
int as_other_user(Action&& action) {
  const Scratch scratch;
  ::chmod(scratch.folder().c_str(), 0711);
  const std::string folder = scratch.path("tmp");
  ::mkdir(folder.c_str(), 0700);
  if (::chown(folder.c_str(), kOtherUser, kOtherUser) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("TMPDIR", folder.c_str(), 1);
    const bool other =
        ::setresgid(kOtherUser, kOtherUser, kOtherUser) == 0 && ::setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
    ::_exit(other ? action() : 125);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace duet_test
