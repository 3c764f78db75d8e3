#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddp/launch/job_processes.h"
#include "ddp/store/tcp_store.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

TEST_CASE("the tests' ranks refuse a scenario, collective, rule or choice that they do not have") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> unknown = {
      {{"no_such"}, "ddp_worker has no scenario 'no_such'"},
      {{"die", "shm", "no_such"}, "no collective is called 'no_such'"},
      {{"gradient", "no_such"}, "no rule for gradients is called 'no_such'"},
      {{"unused", "no_such"}, "got 'no_such'"},
      {{"proxied", "no_such"}, "no task is called 'no_such'"},
  };
  for (const auto& [arguments, message] : unknown) {
    const Outcome outcome = run_worker(2, arguments);
    CAPTURE(arguments[0]);
    CHECK(outcome.result.exit_code != 0);
    CHECK_THAT(outcome.result.message, ContainsSubstring(message));
  }
}

TEST_CASE("ranks get torchrun's variables") {
  const auto values = [](const char* name) {
    const Outcome outcome = run_worker(2, {"environment", name});
    REQUIRE(outcome.result.exit_code == 0);
    return std::vector<std::string>{outcome.out.at(0).at(0), outcome.out.at(1).at(0)};
  };
  using Pair = std::vector<std::string>;
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) CHECK(values(name) == Pair{"0", "1"});
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) CHECK(values(name) == Pair{"2", "2"});
  CHECK(values("GROUP_RANK") == Pair{"0", "0"});
  CHECK(values("MASTER_ADDR") == Pair{"127.0.0.1", "127.0.0.1"});
  CHECK(values("TORCHELASTIC_RESTART_COUNT") == Pair{"0", "0"});
  CHECK(values("OMP_NUM_THREADS") == Pair{"1", "1"});
  const auto ports = values("MASTER_PORT");
  CHECK(ports[0] == ports[1]);
  CHECK(std::stoi(ports[0]) > 0);
}

TEST_CASE("a rank killed by SIGKILL ends the job, named with its signal") {
  const Outcome outcome = run_worker(3, {"kill"}, {.grace = 60s});
  CHECK(outcome.result.message == "rank 1 was killed by signal 9 (SIGKILL)");
  CHECK(outcome.result.exit_code == 1);
  CHECK(outcome.result.failed_rank == 1);
  CHECK(outcome.result.signal == SIGKILL);
  CHECK(outcome.took < 30s);  // no process waited for the grace; start and rendezvous included
}

TEST_CASE("a rank that throws is the cause, not the ranks that lost it") {
  const Outcome outcome = run_worker(3, {"throw"});
  CHECK(outcome.result.message == "rank 1 ended with exit code 1: label 10 of image 7");
  CHECK(outcome.err.at(1) == std::vector<std::string>{"rank 1: label 10 of image 7"});
}

TEST_CASE("a rank that stalls while it unwinds is still the cause") {
  const Outcome outcome = run_worker(3, {"throw_late"});
  CHECK(outcome.result.message == "rank 1 ended with exit code 1: label 10 of image 7");
}

TEST_CASE("a rank that received a signal is the cause, not those that ended with it, whichever ends first") {
  const Scratch scratch;
  const std::string form =
      "echo '{\"message\": {\"message\": \"MESSAGE\", \"extraInfo\": {EXTRA}}}' "
      ">$TORCHELASTIC_ERROR_FILE; ";
  const auto file = [&](const std::string& message, const std::string& extra) {
    std::string text = form;
    text.replace(text.find("MESSAGE"), 7, message);
    return text.replace(text.find("EXTRA"), 5, extra);
  };
  const std::string ready = scratch.path("ready"), wait = "until [ -e " + ready + " ]; do sleep 0.02; done; ";
  const std::string stay = "touch " + ready + "; while :; do sleep 0.05; done";
  const auto of_two = [&](const std::string& first, const std::string& second) {
    return run(2, {"/bin/sh", "-c", "if [ $RANK = 0 ]; then " + wait + first + "fi; " + second});
  };
  const std::string received = "received signal 15 (SIGTERM)";
  const Outcome outcome = of_two(
      file("ended after step 3: rank 1 " + received, "\"consequence\": true, \"monotonic_ns\": 1") + "exit 143; ",
      file(received, "\"by_signal\": true, \"monotonic_ns\": 2") + stay);
  CHECK(outcome.result.message == "rank 1 " + received);
  CHECK(outcome.result.failed_rank == 1);
  // Such a file of a later time than the launcher's own SIGTERM is about that.
  const Outcome stopped =
      of_two(file("lost rank 7", "\"consequence\": true, \"monotonic_ns\": 1") + "exit 1; ",
             "late() { " + file(received, "\"by_signal\": true, \"monotonic_ns\": 9000000000000000000") +
                 "exit 143; }; trap late TERM; " + stay);
  CHECK(stopped.result.message == "rank 0 ended with exit code 1: lost rank 7");
}

TEST_CASE("an exit code is reported") {
  const Outcome outcome = run_worker(2, {"exit"});
  CHECK(outcome.result.message == "rank 1 ended with exit code 3");
  CHECK(outcome.result.exit_code == 1);
}

TEST_CASE("ranks that ignore SIGTERM are killed after the grace") {
  const auto begin = Clock::now();
  const Outcome outcome =
      run(2, {"/bin/sh", "-c", "trap '' TERM; if [ $RANK = 1 ]; then exit 4; fi; while :; do sleep 0.05; done"});
  CHECK(outcome.result.message == "rank 1 ended with exit code 4");
  CHECK(Clock::now() - begin < 20s);  // rank 0 would never end
}

TEST_CASE("output comes in whole lines") {
  const Outcome outcome = run_worker(3, {"lines", "300"});
  for (int rank = 0; rank < 3; ++rank) {
    const auto& lines = outcome.out.at(rank);
    REQUIRE(lines.size() == 301);
    for (int i = 0; i < 300; ++i)
      CHECK(lines[static_cast<std::size_t>(i)] == std::string(200, static_cast<char>('a' + rank)));
    CHECK(lines.back() == "no end");
  }
}

TEST_CASE("of a line that is redrawn, the first state in a second and the last are passed on") {
  const Outcome outcome = run(1, {"/usr/bin/printf", "\r10%%\r20%%\r30%%\nplain\r\n\n\rlast\r   \r\n1\r2\r  \r3"});
  CHECK(outcome.out.at(0) == std::vector<std::string>{"10%", "30%", "plain", "", "last", "2", "3"});
}

TEST_CASE("a rank that never stops printing does not hold up the end of the job") {
  const Outcome outcome = run(2, {"/bin/sh", "-c", "if [ $RANK = 1 ]; then sleep 0.1; exit 5; fi; exec yes"});
  CHECK(outcome.result.message == "rank 1 ended with exit code 5");
  CHECK(outcome.took < 20s);
}

TEST_CASE("what a rank has started does not outlive it") {
  const Outcome outcome = run_worker(2, {"orphan"});
  CHECK(outcome.result.message == "rank 0 ended with exit code 3");
  for (int rank = 0; rank < 2; ++rank) CHECK(gone_within(std::stoi(outcome.out.at(rank).at(0)), 20s));
}

TEST_CASE("signals to the launcher that end its ranks end it too, with 128 and their number") {
  const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU);
  Launcher launcher;
  const auto begin = Clock::now();
  ::kill(launcher.pid, signal);
  CHECK(launcher.line() == concat("ended by signal ", signal, " (SIG", ::sigabbrev_np(signal), ")"));
  CHECK(launcher.wait() == 128 + signal);
  CHECK(Clock::now() - begin < 20s);  // the signal itself ended them, not the grace of 60 s
  for (const pid_t rank : launcher.ranks) CHECK_FALSE(alive(rank));
}

TEST_CASE("signals that announce a time limit reach ranks, which continue if they handle them") {
  const Scratch scratch;
  const std::string ready = scratch.path("ready");
  for (const char* const signal : {"USR1", "USR2", "XCPU", "CONT"}) {
    CAPTURE(signal);
    std::filesystem::remove(ready);
    const std::string script = concat("trap 'told=", signal, "' ", signal, "; if [ $RANK = 1 ]; then touch ", ready,
                                      "; else until [ -e ", ready, " ]; do sleep 0.01; done; kill -", signal,
                                      " $PPID; fi; until [ \"$told\" ]; do sleep 0.01; done; echo $told");
    const Outcome outcome = run(2, {"/bin/sh", "-c", script});
    CHECK(outcome.result.exit_code == 0);
    for (int rank = 0; rank < 2; ++rank) CHECK(outcome.out.at(rank) == std::vector<std::string>{signal});
  }
}

TEST_CASE("only signals that end a job end a launcher's wait for that of host 0") {
  const SignalPipe signals;
  bool ended = false;
  for (const int signal : {SIGCONT, SIGUSR1, SIGXCPU, SIGTERM, SIGUSR1}) {
    CAPTURE(signal);
    ended = ended || signal == SIGTERM;
    ::raise(signal);
    CHECK(signals.next() == signal);
    pollfd ending{signals.ending(), POLLIN, 0};
    CHECK(::poll(&ending, 1, 0) == (ended ? 1 : 0));
  }
}

TEST_CASE("a second Ctrl-C kills ranks that do not end at the first") {
  Launcher launcher("stubborn");
  const auto first = Clock::now();
  ::kill(launcher.pid, SIGINT);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string line = launcher.line();
    INFO("after " << duet::microseconds_since(first) << " us; a rank that does not print is killed after 60 s");
    CHECK(line == "signalled");
  }
  const auto begin = Clock::now();
  ::kill(launcher.pid, SIGINT);
  std::string last = "signalled";
  while (last == "signalled") last = launcher.line();  // they receive the second as well
  CHECK(last == "ended by signal 2 (SIGINT)");
  CHECK(launcher.wait() == 128 + SIGINT);
  CHECK(Clock::now() - begin < 20s);  // the grace is 60 s
  for (const pid_t rank : launcher.ranks) CHECK_FALSE(alive(rank));
}

TEST_CASE("ranks die with a launcher that is killed") {
  Launcher launcher;
  ::kill(launcher.pid, SIGKILL);
  CHECK(launcher.wait() == -SIGKILL);
  for (const pid_t rank : launcher.ranks) CHECK(gone_within(rank, 20s));
}

TEST_CASE("a missing rank is named after the timeout") {
  // On a busy machine rank 2 or 0 may be missing as well.
  const Outcome outcome = run_worker(3, {"missing"}, {.join_timeout = 3s});
  CHECK_THAT(outcome.result.message, ContainsSubstring(" of 3 did not join within 3000 ms") &&
                                         (ContainsSubstring(": rank 1 of") || ContainsSubstring(": ranks 1, 2 of") ||
                                          ContainsSubstring(": ranks 0, 1 of")));
}

TEST_CASE("a rank that ended with exit code 0 ends the job when the others wait for it to join") {
  const auto [groups, elastic] = GENERATE(table<const char*, bool>({{"1", false}, {"2", false}, {"1", true}}));
  const Outcome outcome = run_worker(3, {"absent", groups}, {.join_timeout = 60s, .elastic = elastic});
  CHECK(outcome.result.message == "rank 1 ended with exit code 0, but the others wait for it to join them");
  CHECK(outcome.result.failed_rank == 1);
}

TEST_CASE("ranks that end with exit code 0 without joining are a success") {
  CHECK(run_worker(3, {"absent", "0"}, {.elastic = true}).result.exit_code == 0);
}

TEST_CASE("an exception that main() doesn't report ends an elastic job by its cause") {
  const auto [how, cause] = GENERATE(table<const char*, const char*>(
      {{"printed", " after an exception that main() didn't pass to ddp::report_failure(); its last line on stderr: "},
       {"uncaught", "rank 1 was killed by signal 6 (SIGABRT): "}}));
  const Outcome outcome = run_worker(2, {"unreported", how}, {.elastic = true});
  CHECK_THAT(outcome.result.message, ContainsSubstring(concat(cause, "label 10 of image 7")));
  CHECK(outcome.remarks.empty());
}

TEST_CASE("a rank that is killed while an exception unwinds is lost, not failed") {
  const Outcome outcome = run_worker(2, {"unreported", "killed"}, {.elastic = true, .max_failures = 1});
  REQUIRE(!outcome.remarks.empty());
  CHECK_THAT(outcome.remarks[0], ContainsSubstring("(SIGKILL) before the first step; all ranks start again"));
}

TEST_CASE("spawn starts the own program again") {
  const duet_test::Scratch scratch;
  const auto output = [&](const std::string& arguments) {
    const std::string command =
        std::string(DUET_DDP_WORKER) + " spawn " + arguments + " >" + scratch.path("out") + " 2>" + scratch.path("err");
    const int status = std::system(command.c_str());
    return WEXITSTATUS(status);
  };
  const auto lines_of = [&](const char* name) {
    std::ifstream file(scratch.path(name));
    std::multiset<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  };
  using Lines = std::multiset<std::string>;
  CHECK(output("") == 0);
  CHECK(lines_of("out") == Lines{"first 0", "first 1", "second 0 3", "second 1 3"});
  CHECK(lines_of("err").empty());
  CHECK(output("fail") == 1);
  CHECK(lines_of("err").count("rank 1: as asked") == 1);
  CHECK(lines_of("err").count("rank 1 ended with exit code 1: as asked") == 1);
}

TEST_CASE("bad launches are refused") {
  CHECK_THROWS_WITH(run(0, {"true"}), ContainsSubstring("1 to 1024 ranks, got 0"));
  CHECK_THROWS_WITH(run(100000, {"true"}), ContainsSubstring("got 100000"));
  CHECK_THROWS_AS(run(1, {}), UsageError);
  CHECK_THROWS_WITH(run(2, {"/no/such/program"}),
                    ContainsSubstring("cannot run /no/such/program: No such file or directory (errno 2)"));
  const TcpStore taken({.port = 0, .serve = true});
  CHECK_THROWS_WITH(run(1, {"true"}, {.master_port = taken.port()}),
                    ContainsSubstring(std::to_string(taken.port())) && ContainsSubstring("errno 98"));
  CHECK(run(2, {"true"}).result.exit_code == 0);
}
