#include "train/system/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <thread>
#include <utility>

#include "ddp/launch/rank_resolver.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"
#include "train/system/files.h"
#include "train/system/signals.h"

namespace duet::cli {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr int kPatience = 250;  // polls between a signal to a child and SIGKILL
constexpr int kNotStarted = 127;
constexpr const char* kStarted = "DUET_STARTED_NS";

/// The last line that says something, without the program's name; indented ones belong to the one before them.
std::string last_line(const std::string& file) {
  std::istringstream in(read_file(file));
  std::string last;
  for (std::string line; std::getline(in, line);)
    if (line.find_first_not_of(" \t\r") == 0) last = line;
  const std::string prefix = "duet: ";
  return last.starts_with(prefix) ? last.substr(prefix.size()) : last;
}

}  // namespace

std::int64_t started_ns() {
  ::setenv(kStarted, std::to_string(monotonic_ns()).c_str(), 0);  // for ranks that this process starts
  return parse_number<std::int64_t>(std::getenv(kStarted)).value_or(monotonic_ns());
}

Child::Child(const std::string& file, const std::vector<std::string>& arguments, std::string log)
    : file_(file), log_(std::move(log)) {
  const char* const shown_as = file == kThisProgram ? "duet" : file.c_str();
  std::vector<char*> argv = {const_cast<char*>(shown_as)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ddp::forget_rank();
  ::setenv(kStarted, std::to_string(monotonic_ns()).c_str(), 1);
  // Opened here, so that it exists and is empty wherever the child ends.
  const ddp::Descriptor out(::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!out.open()) {
    end_ = ChildEnd{.reason = concat("cannot open ", log_, ": ", last_errno)};
    return;
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) {
    end_ = ChildEnd{.reason = cannot_start(shown_as, errno)};
    return;
  }
  if (pid_ == 0) {  // only calls that are safe between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() == parent && ::dup2(out.get(), 1) == 1 && ::dup2(out.get(), 2) == 2)
      ::execvp(file.c_str(), argv.data());
    ::_exit(kNotStarted);
  }
}

Child::~Child() {
  try {
    end();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "duet: %s\n", printable(error.what()).c_str());
  }
}

const std::optional<ChildEnd>& Child::poll() {
  if (end_) return end_;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  require<CommError>(ended == 0 || ended == pid_ || errno == EINTR, "waiting for process ", pid_, ": ", last_errno);
  if (ended != pid_) return end_;
  ChildEnd end{.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0, .reason = "", .signal = noted_signal()};
  if (!end.ok) end.reason = last_line(log_);
  if (WIFSIGNALED(status))
    end.reason = concat("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  if (!end.ok && end.reason.empty() && WEXITSTATUS(status) == kNotStarted) end.reason = concat("cannot start ", file_);
  if (!end.ok && end.reason.empty()) end.reason = concat("exit code ", WEXITSTATUS(status), ", no output");
  return end_ = end;
}

void Child::signal(int number) {
  if (!poll()) ::kill(pid_, number);
}

const ChildEnd& Child::wait(const std::function<void()>& poll_too) {
  for (int signalled = 0; !poll(); std::this_thread::sleep_for(kPoll)) {
    if (noted_signal() != 0 && signalled++ % kPatience == 0) signal(signalled == 1 ? noted_signal() : SIGKILL);
    poll_too();
  }
  return *end_;
}

void Child::end() {
  for (int polls = 0; !poll(); std::this_thread::sleep_for(kPoll))
    if (polls++ % kPatience == 0) signal(polls == 1 ? SIGTERM : SIGKILL);
}

ChildEnd run_program(const std::string& file, const std::vector<std::string>& arguments, const std::string& log,
                     const std::function<void()>& poll) {
  return Child(file, arguments, log).wait(poll);
}

}  // namespace duet::cli
