#include "ddp/launch/job_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <utility>

#include "lib/base/environment.h"
#include "lib/base/start_thread.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

// After a fork from a program with threads only system calls are safe: no opendir(), no memory from the heap.

constexpr std::size_t kTextBytes = 512;
constexpr int kRounds = 200;  // of 10 ms: a process that a dying one has just started is found in the next
constexpr long kRoundNs = 10'000'000;

// In an entry that getdents64 gives: its size, and its name.
constexpr std::size_t kBytesOffset = 16, kNameOffset = 19;

enum class Content { kNone, kOther, kText };

/// Whether a file in a process's folder holds `text`, which is at most kTextBytes long, or something else, or nothing.
Content look_for(int process, const char* name, const char* text, std::size_t length) {
  const int file = ::openat(process, name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return Content::kOther;  // of another user, or gone
  std::array<char, 8192> bytes;
  std::size_t have = 0;
  Content content = Content::kNone;
  for (ssize_t got; content != Content::kText && (got = ::read(file, bytes.data() + have, bytes.size() - have)) > 0;) {
    have += static_cast<std::size_t>(got);
    content = ::memmem(bytes.data(), have, text, length) != nullptr ? Content::kText : Content::kOther;
    const std::size_t keep = std::min(have, length - 1);  // the text may lie across two reads
    std::memmove(bytes.data(), bytes.data() + have - keep, keep);
    have = keep;
  }
  ::close(file);
  return content;
}

/// Whether a process has `text` in its environment: kNone while it is in execve(), where the kernel has set neither its
/// arguments nor its environment.
Content environment_of(int process, const char* text, std::size_t length) {
  Content content = look_for(process, "environ", text, length);
  if (content != Content::kNone) return content;
  if (look_for(process, "cmdline", text, length) == Content::kNone) {
    char byte;  // kernel threads and zombies have no program
    return ::readlinkat(process, "exe", &byte, 1) > 0 ? Content::kNone : Content::kOther;
  }
  content = look_for(process, "environ", text, length);  // execve() has set it meanwhile, or it is really empty
  return content == Content::kNone ? Content::kOther : content;
}

struct Scan {
  int killed = 0;
  bool all_read = true;  // no process was in execve()
};

/// One scan of all processes. Their numbers are never used: /proc may be that of an outer PID namespace, in which this
/// process and others have other ones. An open folder of /proc stands for one process, as a pidfd does.
Scan kill_all(const char* text, std::size_t length) {
  Scan scan;
  std::array<char, 16> self{};
  if (::readlink("/proc/self", self.data(), self.size() - 1) <= 0) return scan;
  const int folder = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return scan;
  alignas(8) std::array<char, 16384> bytes;
  for (long got; (got = ::syscall(SYS_getdents64, folder, bytes.data(), bytes.size())) > 0;) {
    for (long at = 0; at < got;) {
      const char* const entry = bytes.data() + at;
      const char* const name = entry + kNameOffset;
      std::uint16_t step = 0;
      std::memcpy(&step, entry + kBytesOffset, sizeof(step));
      at += step;
      if (*name < '1' || *name > '9' || std::strcmp(name, self.data()) == 0) continue;
      const int process = ::openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (process < 0) continue;
      const Content content = environment_of(process, text, length);
      if (content == Content::kNone) scan.all_read = false;
      if (content == Content::kText && ::syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0) == 0)
        ++scan.killed;
      ::close(process);
    }
  }
  ::close(folder);
  return scan;
}

int kill_until_none(const char* text, std::size_t length) {
  int found = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Scan scan = kill_all(text, length);
    found += scan.killed;
    if (scan.killed == 0 && scan.all_read) return found;
    const timespec pause{0, kRoundNs};
    ::nanosleep(&pause, nullptr);
  }
  return found;
}

[[noreturn]] void guard(int alive, const char* text, std::size_t length) {
  ::setsid();  // Ctrl-C at the terminal is not for this process
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "duet-guard");
  // The reader of the launcher's output must see end of file.
  const int low = ::dup2(alive, 0);
  if (::syscall(SYS_close_range, 1U, ~0U, 0U) != 0)
    for (int number = 1; number < 4096; ++number) ::close(number);
  char byte = 0;
  while (low == 0 && ::read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  kill_until_none(text, length);
  ::_exit(0);
}

std::string entry_of(const std::string& job) { return concat(kJobVariable, "=", job); }

}  // namespace

std::string job_within(const std::string& name) {
  const auto outer = environment_variable(kJobVariable);
  return outer ? concat(*outer, "/", name) : name;
}

int end_processes_of(const std::string& job) noexcept {
  const std::string text = entry_of(job);
  return kill_until_none(text.data(), text.size());
}

JobGuard::JobGuard(const std::string& job) : text_(entry_of(job)) {
  require<UsageError>(text_.size() <= kTextBytes, kJobVariable, " with the name of a job within it has ", text_.size(),
                      " bytes, expected at most ", kTextBytes);
  start();
}

void JobGuard::start() {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.read.get(), F_SETFL, 0);
  pid_ = ::fork();
  if (pid_ == 0) guard(pipe.read.get(), text_.data(), text_.size());
  if (pid_ < 0) throw CommError(cannot_start("the job's guard process", errno));
  alive_ = std::move(pipe.write);
}

std::string JobGuard::replace_if_ended() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return {};
  pid_ = -1;
  start();
  return WIFSIGNALED(status) ? concat("was killed by signal ", WTERMSIG(status)) : "ended";
}

JobGuard::~JobGuard() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace duet::ddp
