#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ddp/launch/job_processes.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

constexpr int kCannot = 100;

/// A process of the job that replaces itself by the next `count` times, and spends most of its time in execve() because
/// of its many arguments.
pid_t start_chain(const std::string& job, int count) {
  std::string env = "/usr/bin/env", sleep = "/bin/sleep", seconds = "1000", entry = concat(kJobVariable, "=", job);
  std::vector<char*> arguments(static_cast<std::size_t>(count), env.data());
  arguments.insert(arguments.end(), {sleep.data(), seconds.data(), nullptr});
  char* environment[] = {entry.data(), nullptr};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execve(env.c_str(), arguments.data(), environment);
    ::_exit(127);
  }
  return pid;
}

/// Whether it has begun its first execve(): what it was before is not of the job.
bool has_begun(pid_t pid) {
  std::ifstream file(concat("/proc/", pid, "/comm"));
  std::string name;
  return !alive(pid) || (file >> name && name == "env");
}

}  // namespace

TEST_CASE("a process is found while it is in execve, where its environment reads as empty") {
  for (int round = 0; round < 300; ++round) {
    const std::string job = concat("exec-", ::getpid(), "-", round);
    const pid_t chain = start_chain(job, 20'000);
    while (!has_begun(chain)) std::this_thread::sleep_for(1ms);
    CAPTURE(round);
    CHECK(end_processes_of(job) > 0);
    CHECK(gone_within(chain, 5s));
    ::kill(chain, SIGKILL);
    ::waitpid(chain, nullptr, 0);
  }
}

TEST_CASE("a job's processes are found in the /proc of an outer PID namespace, which has other numbers") {
  const pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(kCannot);
    const pid_t inner = ::fork();
    if (inner == 0) {
      const pid_t chain = start_chain("outer-proc", 1);
      const auto end = Clock::now() + 20s;
      while (end_processes_of("outer-proc") == 0 && Clock::now() < end) std::this_thread::sleep_for(1ms);
      ::kill(chain, SIGTERM);
      int status = 0;
      ::waitpid(chain, &status, 0);
      ::_exit(WTERMSIG(status));
    }
    int status = 0;
    ::waitpid(inner, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ::waitpid(outer, &status, 0);
  if (WEXITSTATUS(status) == kCannot) DUET_SKIP("PID namespaces cannot be made here");
  CHECK(WEXITSTATUS(status) == SIGKILL);
}
