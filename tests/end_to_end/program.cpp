#include "tests/end_to_end/program.h"

#include <fcntl.h>
#include <glob.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

namespace duet_test {
namespace {

namespace fs = std::filesystem;

std::vector<char*> command(const std::vector<std::string>& arguments) {
  const char* program = std::getenv("DUET_PROGRAM");
  if (!program) throw std::runtime_error("DUET_PROGRAM is not set");
  std::vector<char*> argv = {const_cast<char*>(program)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return argv;
}

pid_t start(const std::vector<std::string>& arguments, const std::string& folder,
            const std::function<bool()>& prepare = {}) {
  const std::vector<char*> argv = command(arguments);
  const std::string out = folder + "/out", err = folder + "/err";
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::unsetenv("DUET_STARTED_NS");
    if (::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 1) == 1 &&
        ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2) == 2) {
      if (prepare && !prepare()) ::_exit(126);
      ::execv(argv[0], argv.data());
    }
    ::_exit(127);
  }
  return child;
}

int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Ran finish(pid_t child, const std::string& folder) {
  Ran ran;
  ran.status = status_of(child);
  ran.out = duet::cli::read_file(folder + "/out");
  ran.err = duet::cli::read_file(folder + "/err");
  return ran;
}

}  // namespace

Ran duet(const std::vector<std::string>& arguments) {
  const duet::cli::TemporaryFolder folder;
  return finish(start(arguments, folder.path()), folder.path());
}

Ran duet(const std::vector<std::string>& arguments, const std::function<bool()>& prepare) {
  const duet::cli::TemporaryFolder folder;
  return finish(start(arguments, folder.path(), prepare), folder.path());
}

Ran duet_interrupted(const std::vector<std::string>& arguments, const std::string& pattern, int signal) {
  return duet_interrupted(
      arguments, [&] { return there(pattern); }, signal);
}

Ran duet_interrupted(const std::vector<std::string>& arguments, const std::function<bool()>& ready, int signal) {
  const duet::cli::TemporaryFolder folder;
  const pid_t child = start(arguments, folder.path());
  for (siginfo_t ended{}; !ready(); std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    if (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == child)
      break;
  ::kill(child, signal);
  return finish(child, folder.path());
}

bool has_terminals() {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) return false;
  ::close(terminal);
  return true;
}

Ran duet_in_terminal(const std::vector<std::string>& arguments, const char* locale, unsigned short columns) {
  const std::vector<char*> argv = command(arguments);
  int terminal = -1;
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("forkpty failed");
  if (child == 0) {
    ::unsetenv("DUET_STARTED_NS");
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm", 1);
    ::setenv("LC_ALL", locale, 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Ran ran;
  for (std::array<char, 4096> bytes; true;) {
    const ssize_t got = ::read(terminal, bytes.data(), bytes.size());  // fails with EIO when no process has it open
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    ran.out.append(bytes.data(), static_cast<std::size_t>(got));
  }
  ::close(terminal);
  ran.status = status_of(child);
  return ran;
}

bool there(const std::string& pattern) {
  glob_t found{};
  const bool some = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return some;
}

std::vector<std::string> files_in(const std::string& folder, const std::string& start_of_name) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with(start_of_name)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

int processes_with(const std::string& text) {
  int count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    std::string line;
    try {
      line = duet::cli::read_file(entry.path().string() + "/cmdline");
    } catch (const std::exception&) {
      continue;
    }
    count += line.find(text) != std::string::npos && entry.path().filename().string() != std::to_string(::getpid());
  }
  return count;
}

}  // namespace duet_test
