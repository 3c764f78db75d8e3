// One run of this or another program in a process of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace duet::cli {

struct ChildEnd {
  bool ok = false;
  std::string reason;  // why not
  int signal = 0;      // that this process received meanwhile, or 0
};

/// The program that runs this process, for run_program().
inline constexpr const char* kThisProgram = "/proc/self/exe";

/// Starts the program `file` (looked for on PATH) with these arguments by fork and exec, notes the time of the start
/// for it in DUET_STARTED_NS, and waits. Its output goes to `log`; its last line there is the reason of a failure.
/// `poll` is called about 50 times a second. The child is killed when this process ends; a noted SIGINT or SIGTERM is
/// forwarded to it. A child that cannot be started has failed, too.
ChildEnd run_program(
    const std::string& file, const std::vector<std::string>& arguments, const std::string& log,
    const std::function<void()>& poll = [] {});

}  // namespace duet::cli
