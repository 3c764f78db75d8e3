// duet launch with a blocked reader of its output, closed streams, and replaced files.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using duet_test::ContainsSubstring;
using duet_test::Ran;
using duet_test::Scratch;

namespace {

constexpr int kLimitS = 60;  // before a program that hangs is killed; the right one takes a second

/// duet launch as a process whose stdout is a pipe that is read only when asked for.
class Launched {
 public:
  explicit Launched(const std::vector<std::string>& arguments) {
    REQUIRE(::pipe2(out_.data(), O_CLOEXEC) == 0);
    const std::string err = scratch_.path("err");
    std::vector<char*> argv = {std::getenv("DUET_PROGRAM"), const_cast<char*>("launch")};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out_[1], 1);
      ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666), 2);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out_[1]);
  }
  ~Launched() { ::close(out_[0]); }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  std::string err() const { return duet_test::read_text(scratch_.path("err")); }
  /// Waits until stderr has this text; false if the program has ended before.
  bool says(const std::string& text) const {
    siginfo_t end{};
    while (err().find(text) == std::string::npos) {
      ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT);
      if (end.si_pid == pid_) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  std::string read_all() const {
    std::string text;
    std::array<char, 65536> bytes;
    for (ssize_t got; (got = ::read(out_[0], bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(got));
    return text;
  }
  /// Exit code, 128 + the signal, or -1 after kLimitS.
  int wait() const {
    int status = 0;
    for (int i = 0; i < kLimitS * 100; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      if (::waitpid(pid_, &status, WNOHANG) == pid_)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
    return -1;
  }

 private:
  Scratch scratch_;
  std::array<int, 2> out_{};
  pid_t pid_ = -1;
};

void wait_for(const std::string& file) {
  for (int i = 0; i < kLimitS * 100 && !std::filesystem::exists(file); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Rank 1 fills all pipes; rank 0 waits for a file, then does `act`.
std::vector<std::string> flood(const Scratch& scratch, const std::string& act) {
  const std::string go = scratch.path("go");
  return {"-n",
          "2",
          "--",
          "/bin/sh",
          "-c",
          "if [ $RANK = 1 ]; then exec yes " + std::string(1000, 'x') + "; fi; sleep 1; touch " + scratch.path("full") +
              "; while [ ! -e " + go + " ]; do sleep 0.02; done; " + act};
}

/// The child of a process that has this name; waits for it; -1: there is none.
pid_t child_called(const std::string& name, pid_t parent) {
  for (int i = 0; i < kLimitS * 100; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "stat");
      pid_t pid = -1, its_parent = -1;
      std::string title, state;
      if (file >> pid >> title >> state >> its_parent && title == "(" + name + ")" && its_parent == parent) return pid;
    }
  }
  return -1;
}

/// A shell's command line with duet in place of DUET.
Ran shell(std::string line, const Scratch& scratch) {
  const std::string program = std::getenv("DUET_PROGRAM");
  for (std::size_t at; (at = line.find("DUET")) != std::string::npos;) line.replace(at, 4, program);
  const std::string out = scratch.path("out"), err = scratch.path("err");
  const int status = std::system(
      ("(ulimit -c 0; exec timeout " + std::to_string(kLimitS) + " /bin/sh -c '" + line + "') > " + out + " 2> " + err)
          .c_str());
  return {WEXITSTATUS(status), duet_test::read_text(out), duet_test::read_text(err)};
}

}  // namespace

TEST_CASE("a launcher whose output is not read names a killed rank before it gives up the output") {
  const Scratch scratch;
  const Launched launched(flood(scratch, "kill -9 $$"));
  wait_for(scratch.path("full"));
  duet_test::write_text(scratch.path("go"), "");
  CHECK(launched.says("duet: rank 0 was killed by signal 9 (SIGKILL); its job's output is not read"));
  CHECK(launched.wait() == 1);
  CHECK_THAT(launched.err(), ContainsSubstring("duet: rank 0 was killed by signal 9 (SIGKILL); ") &&
                                 ContainsSubstring(" bytes of output were not written"));
}

TEST_CASE("a launcher whose output is not read names a stopped rank") {
  const Scratch scratch;
  const Launched launched(flood(scratch, "kill -STOP $$"));
  wait_for(scratch.path("full"));
  duet_test::write_text(scratch.path("go"), "");
  CHECK(launched.says("duet: rank 0 has been stopped by a signal for 1000 ms"));
  launched.send(SIGTERM);
  CHECK(launched.wait() == 128 + SIGTERM);
}

TEST_CASE("a launcher whose output is not read ends by SIGTERM and Ctrl-C") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Scratch scratch;
    const Launched launched(flood(scratch, ""));
    wait_for(scratch.path("full"));
    launched.send(signal);
    CHECK(launched.wait() == 128 + signal);
    CHECK_THAT(launched.err(), ContainsSubstring("duet: ended by signal " + std::to_string(signal)));
  }
}

TEST_CASE("a launcher with a slow reader loses no line") {
  const Scratch scratch;
  const Launched launched({"-n", "2", "--", "/bin/sh", "-c",
                           "i=0; while [ $i -lt 20000 ]; do echo $RANK $i " + std::string(100, 'x') +
                               "; i=$((i+1)); done; touch " + scratch.path("") + "end$RANK"});
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the pipe and the queue fill meanwhile, or not
  const std::string text = launched.read_all();
  CHECK(launched.wait() == 0);
  CHECK(std::count(text.begin(), text.end(), '\n') == 40000);
  std::array<int, 2> next{};
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    const int rank = text[begin] - '0';
    REQUIRE((rank == 0 || rank == 1));
    REQUIRE(std::stoi(text.substr(begin + 2, 6)) == next[static_cast<std::size_t>(rank)]++);
  }
}

TEST_CASE("closed standard streams do not mix with the launcher's own descriptors") {
  const Scratch scratch;
  // It still runs while the launcher forwards its line.
  const std::string rank = "/bin/sh -c \"echo some text; sleep 0.5\"";
  const Ran ran = shell("DUET launch -n 2 -- " + rank + " <&- >&-", scratch);
  CHECK(ran.status == 0);
  CHECK(ran.err.empty());
  const Ran all = shell("DUET launch -n 2 -- " + rank + " <&- >&- 2>&-", scratch);
  CHECK(all.status == 0);
}

TEST_CASE("output that cannot be written is exit code 1, of all commands") {
  const Scratch scratch;
  for (const char* command : {"info", "--help", "train --help", "launch -n 1 -- /bin/echo text",
                              "train --mode single --data synthetic --train-images 64 --test-images 8 --epochs 1",
                              "train --mode ddp --devices 2 --data synthetic --train-images 64 --test-images 8 "
                              "--epochs 1"}) {
    CAPTURE(command);
    const Ran ran = shell(std::string("DUET ") + command + " > /dev/full", scratch);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, ContainsSubstring("cannot write"));
  }
}

TEST_CASE("a pipe in place of a rank's error file does not block the launcher") {
  const Scratch scratch;
  const Ran ran = shell("DUET launch -n 2 --log-dir " + scratch.path("logs") +
                            " -- /bin/sh -c \"mkfifo \\$TORCHELASTIC_ERROR_FILE; exit 3\"",
                        scratch);
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, ContainsSubstring(" ended with exit code 3"));
}

TEST_CASE("a guard that was killed is reported and replaced") {
  const Scratch scratch;
  const Launched launched(
      {"-n", "1", "--", "/bin/sh", "-c",
       "touch " + scratch.path("runs") + "; until [ -e " + scratch.path("go") + " ]; do sleep 0.02; done"});
  wait_for(scratch.path("runs"));
  const pid_t guard = child_called("duet-guard", launched.pid());
  REQUIRE(guard > 0);
  CHECK(::kill(guard, SIGKILL) == 0);
  for (int i = 0; i < kLimitS * 100 && launched.err().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK_THAT(launched.err(),
             ContainsSubstring("the job's guard process was killed by signal 9; another one was started"));
  const pid_t next = child_called("duet-guard", launched.pid());
  CHECK(next > 0);
  CHECK(next != guard);
  duet_test::write_text(scratch.path("go"), "");
  CHECK(launched.wait() == 0);
}
