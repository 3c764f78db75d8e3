#include "ddp/launch/job_processes.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr int kReadsAtOnce = 16;  // more than a full pipe, but a rank that never stops must not hold up the others
constexpr std::size_t kMaxLine = std::size_t{1} << 20;
constexpr std::chrono::seconds kRedraw{1};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

/// All that the child does between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* command, char* const* environment, const std::array<int, 2>& outputs,
                         const cpu_set_t* cores, int parent, int errors) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the launcher died before the line above took effect
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Without these cores it runs all the same, only slower.
  if (cores != nullptr) ::sched_setaffinity(0, sizeof(*cores), cores);
  const int null = ::open("/dev/null", O_RDONLY);
  const bool ready = null >= 0 && ::dup2(null, STDIN_FILENO) >= 0 && ::dup2(outputs[0], STDOUT_FILENO) >= 0 &&
                     ::dup2(outputs[1], STDERR_FILENO) >= 0;
  if (null > STDERR_FILENO) ::close(null);
  if (ready) ::execvpe(command[0], command, environment);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = ::write(errors, &reason, sizeof(reason));
  ::_exit(127);
}

}  // namespace

Pipe make_pipe() {
  std::array<int, 2> ends{};
  require<CommError>(::pipe2(ends.data(), O_CLOEXEC) == 0, "cannot make a pipe: ", last_errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void LineReader::read(const std::function<void(std::string_view)>& on_line) {
  std::array<char, 16384> bytes;
  for (int reads = 0; source_.open() && reads < kReadsAtOnce;) {
    const ssize_t got = ::read(source_.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return hand_on_state(on_line);
    if (got <= 0) {
      source_.close();
      if (!rest_.empty()) rest_ += '\n', hand_on_lines(on_line);
      return;
    }
    ++reads;
    rest_.append(bytes.data(), static_cast<std::size_t>(got));
    hand_on_lines(on_line);
    if (rest_.size() < kMaxLine) continue;
    on_line(rest_);
    rest_.clear();
  }
}

void LineReader::hand_on_lines(const std::function<void(std::string_view)>& on_line) {
  std::size_t begin = 0;
  for (std::size_t end; (end = rest_.find_first_of("\r\n", begin)) != std::string::npos;) {
    const std::size_t next = rest_.find_first_not_of('\r', end);
    if (next == std::string::npos) break;  // the line may end here, or be redrawn
    const bool ends = rest_[next] == '\n';
    const std::string_view state = std::string_view(rest_).substr(begin, end - begin);
    const bool blank = state.find_first_not_of(" \t") == state.npos;
    if (ends) {
      if ((erased_ || blank) && !state_.empty()) on_line(state_);
      if (!blank || state_.empty()) on_line(state);
      state_.clear();
      erased_ = false;
    } else if (blank) {  // some bars erase their line before each state
      erased_ = erased_ || !state_.empty();
      hand_on_state(on_line);
    } else {
      state_ = state;
      erased_ = false;
      hand_on_state(on_line);
    }
    begin = ends ? next + 1 : next;
  }
  rest_.erase(0, begin);
}

/// Once a second.
void LineReader::hand_on_state(const std::function<void(std::string_view)>& on_line) {
  const auto now = Clock::now();
  if (state_.empty() || now - redrawn_ < kRedraw) return;
  on_line(std::exchange(state_, {}));
  redrawn_ = now;
}

RankProcess::RankProcess(const std::string& name, const std::vector<std::string>& command,
                         const std::vector<std::string>& environment, const std::vector<int>& cores) {
  Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  const std::vector<char*> arguments = pointers(command), variables = pointers(environment);
  const std::array<int, 2> outputs = {out.write.get(), err.write.get()};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  const int parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(arguments.data(), variables.data(), outputs, cores.empty() ? nullptr : &set, parent, failure.write.get());
  if (pid_ < 0) throw CommError(cannot_start(name, errno));
  ::setpgid(pid_, pid_);  // parent and child both do it, so that no order of the two is a race
  end_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  lines_ = {LineReader(std::move(out.read)), LineReader(std::move(err.read))};
  failure.write.close();
  ::fcntl(failure.read.get(), F_SETFL, 0);  // blocks until exec has closed the other end, or reported why it failed
  int reason = 0;
  const ssize_t got = uninterrupted([&] { return ::read(failure.read.get(), &reason, sizeof(reason)); });
  if (got == 0) return;
  ::waitpid(pid_, &status_, 0);
  ended_ = true;
  throw UsageError(concat("cannot run ", command[0], ": ", errno_text(reason)));
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(other.pid_),
      ended_(std::exchange(other.ended_, true)),
      status_(other.status_),
      end_(std::move(other.end_)),
      lines_(std::move(other.lines_)) {}

RankProcess::~RankProcess() {
  if (ended_) return;
  send(SIGKILL);
  ::waitpid(pid_, &status_, 0);
}

bool RankProcess::look() {
  siginfo_t info{};
  if (ended_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_)
    return ended_;
  ::kill(-pid_,
         SIGKILL);  // what the rank itself has started must not outlive it; its number is not free before waitpid
  ::waitpid(pid_, &status_, 0);
  ended_ = true;
  end_.close();
  return true;
}

bool RankProcess::stopped() const {
  siginfo_t info{};
  return !ended_ && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

int RankProcess::signal() const { return WIFSIGNALED(status_) ? WTERMSIG(status_) : 0; }
int RankProcess::exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + signal(); }
void RankProcess::send(int signal) const {
  if (!ended_) ::kill(-pid_, signal);
}

namespace {

std::atomic<int> signal_pipe{-1}, ending_event{-1};

void note_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  const bool counts = signal != SIGPIPE || output_is_closed();
  [[maybe_unused]] ssize_t written = counts ? ::write(signal_pipe.load(), &byte, 1) : 0;
  const std::uint64_t one = 1;
  if (counts && !is_left_to_ranks(signal)) written = ::write(ending_event.load(), &one, sizeof one);
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe() : pipe_(make_pipe()), ending_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  int none = -1;
  require<UsageError>(signal_pipe.compare_exchange_strong(none, pipe_.write.get()), "one launch at a time");
  ending_event.store(ending_.get());
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &action, &before_[i]);
    const bool keeps = kSignals[i] == SIGPIPE ? before_[i].sa_handler == SIG_IGN
                                              : is_left_to_ranks(kSignals[i]) && before_[i].sa_handler != SIG_DFL;
    if (keeps) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
}

SignalPipe::~SignalPipe() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  signal_pipe.store(-1);
}

int SignalPipe::next() const {
  unsigned char byte = 0;
  return ::read(pipe_.read.get(), &byte, 1) == 1 ? byte : 0;
}

namespace {

// After a fork from a program with threads only system calls are safe: no opendir(), no memory from the heap.

constexpr std::size_t kTextBytes = 512;
constexpr int kRounds = 200;  // rounds of 10 ms: a process that a dying one has just started is found in the next
constexpr long kRoundNs = 10'000'000;

// In an entry that getdents64 gives: its size, and its name.
constexpr std::size_t kBytesOffset = 16, kNameOffset = 19;

enum class Content { kNone, kOther, kText };

/// Whether a file in a process's folder holds `text`, which is at most kTextBytes long, or something else, or nothing.
Content look_for(int process, const char* name, const char* text, std::size_t length) {
  const int file = ::openat(process, name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return Content::kOther;  // the process is another user's, or gone
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
