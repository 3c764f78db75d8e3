// Launches of tests, and the state of their processes.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/launch/job_processes.h"
#include "ddp/launch/launch.h"
#include "lib/monotonic.h"

namespace duet_test {

using duet::Clock;
using duet::ddp::LaunchOptions;
using duet::ddp::LaunchResult;

struct Outcome {
  std::map<int, std::vector<std::string>> out, err;
  std::vector<std::string> remarks;
  LaunchResult result;
  Clock::duration took{};

  /// What all ranks have written to stderr.
  std::string errors() const {
    std::string all;
    for (const auto& [rank, lines] : err)
      for (const std::string& line : lines) all += line;
    return all;
  }
};

inline Outcome run(int ranks, std::vector<std::string> command, LaunchOptions options = {}) {
  Outcome outcome;
  options.ranks = ranks;
  options.command = std::move(command);
  options.on_line = [&](int rank, bool is_stderr, std::string_view line) {
    (is_stderr ? outcome.err : outcome.out)[rank].emplace_back(line);
  };
  options.on_remark = [&](const std::string& text) { outcome.remarks.push_back(text); };
  const auto begin = Clock::now();
  outcome.result = duet::ddp::launch(options);
  outcome.took = Clock::now() - begin;
  return outcome;
}

inline Outcome run_worker(int ranks, std::vector<std::string> arguments, LaunchOptions options = {}) {
  arguments.insert(arguments.begin(), DUET_DDP_WORKER);
  return run(ranks, std::move(arguments), std::move(options));
}

/// False once the process has ended, waited for or not.
inline bool alive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return static_cast<bool>(file >> number >> name >> state) && state != "Z" && state != "X";
}

inline bool gone_within(pid_t pid, Clock::duration limit) {
  const auto end = Clock::now() + limit;
  while (alive(pid) && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

/// A launcher with two ranks that print their process number and sleep, in a process of its own.
struct Launcher {
  explicit Launcher(const char* scenario = "sleep") {
    duet::ddp::Pipe output = duet::ddp::make_pipe();
    ::fcntl(output.read.get(), F_SETFL, 0);
    pid = ::fork();
    if (pid == 0) {
      ::dup2(output.write.get(), STDOUT_FILENO);
      ::dup2(output.write.get(), STDERR_FILENO);
      ::execl(DUET_DDP_WORKER, DUET_DDP_WORKER, "launch", scenario, nullptr);
      ::_exit(127);
    }
    output.write.close();
    source = std::move(output.read);
    while (ranks.size() < 2) ranks.push_back(static_cast<pid_t>(std::atoi(line().c_str())));
  }
  std::string line() {
    std::string text;
    for (char byte = 0; ::read(source.get(), &byte, 1) == 1 && byte != '\n';) text += byte;
    return text;
  }
  int wait() {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid;
  duet::ddp::Descriptor source;
  std::vector<pid_t> ranks;
};

}  // namespace duet_test
