// Runs of this or another program in processes of their own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace duet::cli {

struct ChildEnd {
  bool ok = false;
  std::string reason;  // why not
  int signal = 0;      // that this process received meanwhile, or 0
};

/// When this program was started, by monotonic_ns(): the time before exec where a Child of another is this process or
/// one that has started it, else the first call's.
std::int64_t started_ns();

/// The program that runs this process, for Child and run_program().
inline constexpr const char* kThisProgram = "/proc/self/exe";

/// A program that runs. It dies with the thread that made it, and with this object.
class Child {
 public:
  /// Starts the program `file` (looked for on PATH) with these arguments by fork and exec, and notes the time for its
  /// started_ns(). Its output goes to `log`; its last line there is the reason of a failure. A child that cannot be
  /// started has ended.
  Child(const std::string& file, const std::vector<std::string>& arguments, std::string log);
  /// Ends the child by end().
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// How it ended; nothing while it runs.
  const std::optional<ChildEnd>& poll();
  /// Sends a signal unless it has ended.
  void signal(int number);
  /// Waits, and calls `poll` about 50 times a second. A noted SIGINT or SIGTERM is forwarded to the child, which is
  /// killed if it does not end by that.
  const ChildEnd& wait(const std::function<void()>& poll = [] {});
  /// Sends SIGTERM and waits; kills a child that does not end by that.
  void end();

 private:
  std::string file_, log_;
  pid_t pid_ = -1;
  std::optional<ChildEnd> end_;
};

ChildEnd run_program(
    const std::string& file, const std::vector<std::string>& arguments, const std::string& log,
    const std::function<void()>& poll = [] {});

}  // namespace duet::cli
