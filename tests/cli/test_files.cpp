// Children of the program and the files that it keeps for them.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compare/comparison.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "tests/support/catch2.h"
#include "train/system/child_process.h"
#include "train/system/files.h"

using namespace duet;
using namespace duet::cli;

namespace {

bool dies_at_fork = false;

/// From now on children are killed between fork and exec while `dies_at_fork` holds.
void install_fork_handler() {
  static const int installed = ::pthread_atfork(nullptr, nullptr, [] {
    if (dies_at_fork) ::raise(SIGKILL);
  });
  REQUIRE(installed == 0);
}

/// A process that runs `body`, and after `stop()` exits without destructors.
class OtherRun {
 public:
  explicit OtherRun(const std::function<std::string()>& body) {
    std::array<int, 2> report{}, go_on{};
    REQUIRE(::pipe(report.data()) == 0);
    REQUIRE(::pipe(go_on.data()) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(go_on[1]);
      const std::string text = body();
      char byte = 0;
      const bool sent = ::write(report[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      ::close(report[1]);
      [[maybe_unused]] const ssize_t end = ::read(go_on[0], &byte, 1);
      ::_exit(sent ? 0 : 1);
    }
    ::close(report[1]);
    ::close(go_on[0]);
    go_on_ = go_on[1];
    for (std::array<char, 200> bytes; true;) {
      const ssize_t got = ::read(report[0], bytes.data(), bytes.size());
      if (got <= 0) break;
      text_.append(bytes.data(), static_cast<std::size_t>(got));
    }
    ::close(report[0]);
  }
  ~OtherRun() { stop(); }
  OtherRun(const OtherRun&) = delete;
  OtherRun& operator=(const OtherRun&) = delete;
  const std::string& text() const { return text_; }
  void stop() {
    if (pid_ <= 0) return;
    ::close(go_on_);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  int go_on_ = -1;
  std::string text_;
};

std::string leave_folder() {
  static TemporaryFolder* left = nullptr;
  left = new TemporaryFolder;
  write_atomically(left->path() + "/log", "epoch 1");
  return left->path();
}

}  // namespace

TEST_CASE("a child that is killed before exec is a failed child") {
  install_fork_handler();
  const TemporaryFolder folder;
  dies_at_fork = true;
  const ChildEnd end = run_program("true", {}, folder.path() + "/log");
  dies_at_fork = false;
  CHECK_FALSE(end.ok);
  CHECK(end.reason == "ended by signal 9 (Killed)");
}

TEST_CASE("a failed child's reason is never an earlier child's") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  write_atomically(log, "duet: what another child said\n");
  CHECK(run_program("false", {}, log).reason == "exit code 1, no output");
  CHECK_THAT(run_program("true", {}, folder.path() + "/nowhere/log").reason,
             duet_test::ContainsSubstring("cannot open " + folder.path() + "/nowhere/log: No such file"));
}

TEST_CASE("a cell whose process cannot run is a failed row") {
  install_fork_handler();
  CompareOptions options;
  options.modes = {Mode::ddp};
  options.devices = {2};
  options.time_budget_s = 0;
  options.quiet = true;
  dies_at_fork = true;
  const Run struck = run_cells(options, {}, options).runs.at(0);
  dies_at_fork = false;
  CHECK_FALSE(struck.ok);
  CHECK(struck.mode == "ddp");
  CHECK(struck.error == "ended by signal 9 (Killed)");
}

TEST_CASE("folders of runs that have ended are removed at the next start, those of running ones are not") {
  const TemporaryFolder base;
  ::setenv("TMPDIR", base.path().c_str(), 1);
  std::filesystem::create_directory(base.path() + "/duet-others");  // without a run's lock
  {
    OtherRun living(leave_folder), gone(leave_folder);
    gone.stop();
    CHECK(std::filesystem::exists(gone.text() + "/log"));
    {
      const TemporaryFolder next;
      CHECK(std::filesystem::exists(living.text() + "/log"));
      CHECK_FALSE(std::filesystem::exists(gone.text()));
    }
    living.stop();
    CHECK(std::filesystem::exists(living.text() + "/log"));
    const TemporaryFolder next;
    CHECK_FALSE(std::filesystem::exists(living.text()));
  }
  CHECK(std::filesystem::exists(base.path() + "/duet-others"));
  ::unsetenv("TMPDIR");
}
