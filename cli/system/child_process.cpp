#include "cli/system/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "cli/system/files.h"
#include "cli/system/signals.h"
#include "ddp/launch/rank_resolver.h"
#include "lib/base/descriptor.h"
#include "lib/base/start_thread.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr int kPatience = 250;  // polls between a signal to a child and SIGKILL
constexpr int kNotStarted = 127;

/// The last line that says something, without the program's name; indented ones belong to the one before them.
std::string last_line(const std::string& file) {
  std::istringstream in(read_file(file));
  std::string last;
  for (std::string line; std::getline(in, line);)
    if (line.find_first_not_of(" \t\r") == 0) last = line;
  const std::string prefix = "duet: ";
  return last.starts_with(prefix) ? last.substr(prefix.size()) : last;
}

/// Waits for the child; forwards a noted signal, and kills a child that does not end by it.
int wait_for(pid_t child, const std::function<void()>& poll) {
  int status = 0;
  int signalled = 0;
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    require<CommError>(ended == 0 || errno == EINTR, "waiting for process ", child, ": ", last_errno);
    if (noted_signal() != 0 && signalled++ % kPatience == 0) ::kill(child, signalled == 1 ? noted_signal() : SIGKILL);
    poll();
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace

ChildEnd run_program(const std::string& file, const std::vector<std::string>& arguments, const std::string& log,
                     const std::function<void()>& poll) {
  const char* const shown_as = file == kThisProgram ? "duet" : file.c_str();
  std::vector<char*> argv = {const_cast<char*>(shown_as)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ddp::forget_rank();
  ::setenv("DUET_STARTED_NS", std::to_string(monotonic_ns()).c_str(), 1);
  ChildEnd end;
  // Opened here, so that it exists and is empty wherever the child ends.
  const ddp::Descriptor out(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!out.open()) {
    end.reason = concat("cannot open ", log, ": ", last_errno);
    return end;
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    end.reason = cannot_start(shown_as, errno);
    return end;
  }
  if (child == 0) {  // only calls that are safe between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() == parent && ::dup2(out.get(), 1) == 1 && ::dup2(out.get(), 2) == 2)
      ::execvp(file.c_str(), argv.data());
    ::_exit(kNotStarted);
  }
  const int status = wait_for(child, poll);
  end.signal = noted_signal();
  end.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (end.ok) return end;
  end.reason = last_line(log);
  if (WIFSIGNALED(status))
    end.reason = concat("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  if (end.reason.empty() && WEXITSTATUS(status) == kNotStarted) end.reason = concat("cannot start ", file);
  if (end.reason.empty()) end.reason = concat("exit code ", WEXITSTATUS(status), ", no output");
  return end;
}

}  // namespace duet::cli
