#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_rank.h"
#include "ddp/launch/rank_environment.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"
#include "tests/support/variable.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

TEST_CASE("an elastic job waits for a program that is missing for a moment, and names the lost rank first") {
  const Scratch scratch;
  const std::string program = scratch.path("worker");
  const auto link = [&] { std::filesystem::create_symlink(DUET_DDP_WORKER, program); };
  link();
  std::vector<std::string> remarks;
  LaunchOptions options{.ranks = 2, .command = {program, "unlinked", program}, .elastic = true};
  options.on_line = [](int, bool, std::string_view) {};
  options.on_remark = [&](const std::string& text) {
    remarks.push_back(text);
    if (text.find("has no new process yet") != text.npos && !std::filesystem::exists(program)) link();
  };
  CHECK(launch(options).message.empty());
  REQUIRE(remarks.size() >= 2);
  CHECK_THAT(remarks[0], ContainsSubstring("rank 1 was killed by signal 9 (SIGKILL)"));
  CHECK_THAT(remarks[1], ContainsSubstring("has no new process yet, the launcher keeps trying: cannot run"));
}

TEST_CASE("a script of the command is compared with its content at the start of the job") {
  const Scratch scratch;
  const std::string script = scratch.path("script"), data = scratch.path("data");
  const auto write = [](const std::string& path, const std::string& text) { std::ofstream(path) << text; };
  write(script, "#!/bin/sh\n");
  write(data, "1");
  const std::vector<std::string> command = {"/bin/sh", script, data, "--option"};
  const std::string before = scripts_in(command);
  write(data, "2");
  CHECK(scripts_in(command) == before);
  write(script, "#!/bin/sh\nexit\n");
  CHECK(scripts_in(command) != before);
}

namespace {

/// The only folder in a folder.
std::string job_folder(const Scratch& scratch) {
  REQUIRE(scratch.names().size() == 1);
  return scratch.path(scratch.names().front());
}

std::vector<std::string> lines_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::vector<int> numbers(const std::vector<Cpu>& cpus) {
  std::vector<int> all;
  for (const Cpu& cpu : cpus) all.push_back(cpu.number);
  return all;
}

}  // namespace

TEST_CASE("a failed job is restarted, as often as allowed") {
  const std::vector<std::string> fails_twice = {"/bin/sh", "-c",
                                                "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                                                "[ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT -ge 2 ] || kill -9 $$"};
  const Outcome enough = run(2, fails_twice, {.max_restarts = 3});
  CHECK(enough.result.exit_code == 0);
  CHECK(enough.result.restarts == 2);
  CHECK(enough.out.at(1) == std::vector<std::string>{"0 of 3", "1 of 3", "2 of 3"});
  CHECK(enough.remarks == std::vector<std::string>{"rank 1 was killed by signal 9 (SIGKILL); restart 1 of 3",
                                                   "rank 1 was killed by signal 9 (SIGKILL); restart 2 of 3"});
  const Outcome too_few = run(2, fails_twice, {.max_restarts = 1});
  CHECK(too_few.result.exit_code == 1);
  CHECK(too_few.result.restarts == 1);
  CHECK(too_few.result.message == "rank 1 was killed by signal 9 (SIGKILL)");
}

TEST_CASE("a job that was interrupted is not restarted") {
  Launcher launcher("restarting");
  ::kill(launcher.pid, SIGTERM);
  CHECK(launcher.line() == "ended by signal 15 (SIGTERM)");
  CHECK(launcher.wait() == 128 + SIGTERM);
}

TEST_CASE("ranks of several hosts count on") {
  const Outcome outcome = run(2,
                              {"/bin/sh", "-c",
                               "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
                               "$MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RUN_ID"},
                              {.nodes = 3, .node_rank = 1, .master_address = "first", .master_port = 7});
  CHECK(outcome.out.at(2) == std::vector<std::string>{"2 0 6 2 1 3 first:7 duet-first-7"});
  CHECK(outcome.out.at(3) == std::vector<std::string>{"3 1 6 2 1 3 first:7 duet-first-7"});
}

TEST_CASE("lines go into files, or into files and on") {
  const Scratch scratch;
  const std::vector<std::string> command = {"/bin/sh", "-c", "echo out $RANK; echo err $RANK >&2"};
  const Outcome outcome = run(
      3, command, {.redirects = parse_streams("0:3,1:1"), .tee = parse_streams("2:1"), .log_folder = scratch.folder()});
  CHECK(outcome.out.count(0) + outcome.err.count(0) == 0);
  CHECK(outcome.out.count(1) == 0);
  CHECK(outcome.err.at(1) == std::vector<std::string>{"err 1"});
  CHECK(outcome.out.at(2) == std::vector<std::string>{"out 2"});
  const std::string folder = job_folder(scratch) + "/attempt_0/rank_";
  CHECK(lines_in(folder + "0/stdout.log") == std::vector<std::string>{"out 0"});
  CHECK(lines_in(folder + "0/stderr.log") == std::vector<std::string>{"err 0"});
  CHECK(lines_in(folder + "1/stdout.log") == std::vector<std::string>{"out 1"});
  CHECK_FALSE(std::filesystem::exists(folder + "1/stderr.log"));
  CHECK(lines_in(folder + "2/stdout.log") == std::vector<std::string>{"out 2"});
}

TEST_CASE("the error of the rank that failed first is the cause, and stays in its file") {
  const Scratch scratch;
  // Both lost a peer; rank 1 did so first, but reports it and ends last.
  const Outcome outcome = run_worker(2, {"errors"}, {.log_folder = scratch.folder()});
  // On a slow machine its end is the launcher's, so the words between differ.
  CHECK_THAT(outcome.result.message, ContainsSubstring("rank 1 ") && ContainsSubstring("lost the network"));
  const auto error = read_error_file(job_folder(scratch) + "/attempt_0/rank_1/error.json");
  REQUIRE(error);
  CHECK(error->message == "lost the network");
  CHECK(error->consequence);
}

TEST_CASE("an error file of torch's own form is read, and one of no form is not") {
  const Outcome outcome =
      run(2, {"/bin/sh", "-c",
              "[ $RANK = 0 ] || { echo '{\"message\": {\"message\": \"from Python\", \"extraInfo\": "
              "{\"timestamp\": \"17\"}}}' >$TORCHELASTIC_ERROR_FILE; exit 3; }"});
  CHECK(outcome.result.message == "rank 1 ended with exit code 3: from Python");
  const Scratch scratch;
  for (const char* text : {"", "{", "[]", "{\"message\": 3}", "{\"message\": {\"message\": []}}"}) {
    write_text(scratch.path("error"), text);
    CHECK_FALSE(read_error_file(scratch.path("error")));
  }
}

TEST_CASE("a path of /proc that leads to no launcher's file is not written") {
  const Scratch scratch;
  const std::string text(FlightRecorder::bytes(), 'x');
  write_text(scratch.path("file"), text);
  const Descriptor file(::open(scratch.path("file").c_str(), O_RDWR | O_CLOEXEC));
  const std::string path = concat("/proc/", ::getpid(), "/fd/", file.get());
  CHECK_FALSE(write_error_file(path, 0, {.message = "why"}));
  ::setenv(kFlightRecorderVariable, path.c_str(), 1);
  FlightRecorder::make();
  ::unsetenv(kFlightRecorderVariable);
  CHECK((read_text(scratch.path("file")) == text));
}

TEST_CASE("an error file that is nested as deep as its size allows is read") {
  const Scratch scratch;
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  for (const std::string& extra : {deep, "{\"report\": " + deep + "}", "{\"monotonic_ns\": " + deep + "}"}) {
    write_text(scratch.path("error"), "{\"message\": {\"message\": \"why\", \"extraInfo\": " + extra + "}}");
    const auto error = read_error_file(scratch.path("error"));
    REQUIRE(error);
    CHECK(error->message == "why");
    CHECK(error->report.empty());
    CHECK(error->monotonic_ns == -1);
  }
  write_text(scratch.path("error"), "{\"message\": {\"message\": " + deep + "}}");
  CHECK_FALSE(read_error_file(scratch.path("error")));
}

TEST_CASE("a stopped rank is named after a second, and ends the job at the limit") {
  const Outcome outcome = run(2, {"/bin/sh", "-c", "if [ $RANK = 1 ]; then kill -STOP $$; fi; exec sleep 100"},
                              {.grace = 200ms, .stop_limit = 1500ms});
  CHECK(outcome.result.message == "rank 1 was stopped by a signal for more than 1500 ms");
  CHECK(outcome.result.exit_code == 1);
  REQUIRE(outcome.remarks.size() == 1);
  CHECK_THAT(outcome.remarks.front(), ContainsSubstring("rank 1 has been stopped by a signal for 1000 ms"));
  CHECK(outcome.took < 30s);
}

TEST_CASE("a stopped rank that continues does not fail the job") {
  const bool elastic = GENERATE(false, true);
  const Scratch scratch;
  const std::string waits = "[ $RANK = 0 ] || { echo $$; kill -STOP $$; until [ -e \"$0\" ]; do sleep 0.02; done; }";
  pid_t stopped = 0;
  std::vector<std::string> remarks;
  const LaunchResult result =
      launch({.ranks = 2,
              .command = {"/bin/sh", "-c", waits, scratch.path("end")},
              .elastic = elastic,
              .stop_limit = 60s,
              .on_line = [&](int, bool, std::string_view line) { stopped = std::stoi(std::string(line)); },
              .on_remark =
                  [&](const std::string& text) {
                    if (remarks.empty())
                      ::kill(stopped, SIGCONT);
                    else
                      write_text(scratch.path("end"), "");
                    remarks.push_back(text);
                  }});
  CHECK(result.exit_code == 0);
  REQUIRE(remarks.size() == 2);
  CHECK_THAT(remarks.front(), ContainsSubstring(elastic ? "; another process replaces it if that lasts 60000 ms"
                                                        : "; the job ends if that lasts 60000 ms"));
  CHECK(remarks.back() == "rank 1 continues");
}

TEST_CASE("what ranks have detached ends with them, and with a launcher that is killed") {
  const Outcome outcome = run(2, {"/bin/sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"});
  CHECK(outcome.result.exit_code == 0);
  for (int rank = 0; rank < 2; ++rank) CHECK(gone_within(std::stoi(outcome.out.at(rank).at(0)), 20s));
  Launcher launcher("detached");
  for (const pid_t detached : launcher.ranks) CHECK(alive(detached));
  ::kill(launcher.pid, SIGKILL);
  CHECK(launcher.wait() == -SIGKILL);
  for (const pid_t detached : launcher.ranks) CHECK(gone_within(detached, 20s));
}

TEST_CASE("what the ranks of an inner launcher have detached ends with the outer launcher, which is killed") {
  Launcher launcher("nested");
  for (const pid_t detached : launcher.ranks) CHECK(alive(detached));
  ::kill(launcher.pid, SIGKILL);
  CHECK(launcher.wait() == -SIGKILL);
  for (const pid_t detached : launcher.ranks) CHECK(gone_within(detached, 20s));
}

TEST_CASE("ranks of a job within an elastic one are not ranks of that") {
  const duet_test::Variable store(kElasticStoreVariable, "x"), replacement(kReplacementVariable, "1");
  std::string shown;
  const std::string show = concat("echo $", kElasticStoreVariable, "$", kReplacementVariable);
  const LaunchResult result =
      launch({.command = {"/bin/sh", "-c", show}, .on_line = [&](int, bool, std::string_view line) { shown = line; }});
  CHECK(result.exit_code == 0);
  CHECK(shown.empty());
}

TEST_CASE("cores are shared out by nodes, and no core has two ranks") {
  // Two nodes of two cores with two threads each, numbered as kernels do.
  std::vector<Cpu> cpus;
  for (int number = 0; number < 8; ++number)
    cpus.push_back({.number = number, .core = number % 4, .node = number % 4 / 2});
  const auto two = share_cpus(cpus, 2);
  CHECK(numbers(two.at(0)) == std::vector<int>{0, 4, 1, 5});
  CHECK(numbers(two.at(1)) == std::vector<int>{2, 6, 3, 7});
  CHECK(describe(two[1]) == "cores 2-3,6-7 (NUMA node 1)");
  CHECK(describe(cpus) == "cores 0-7 (NUMA nodes 0-1)");
  const auto three = share_cpus(cpus, 3);
  CHECK(numbers(three.at(0)) == std::vector<int>{0, 4});
  CHECK(numbers(three.at(2)) == std::vector<int>{2, 6, 3, 7});
  CHECK(numbers(share_cpus(cpus, 8).at(1)) == std::vector<int>{4});
  CHECK(share_cpus(cpus, 9).empty());
}

TEST_CASE("the machine's cores are read from its files") {
  const Scratch scratch;
  const std::vector<Cpu> own = usable_cpus(scratch.folder());
  REQUIRE_FALSE(own.empty());
  const int first = own.front().number;
  CHECK(own.front().core == first);
  const std::string topology = scratch.path(concat("cpu/cpu", first, "/topology"));
  std::filesystem::create_directories(topology);
  std::filesystem::create_directories(scratch.path("node/node3"));
  write_text(topology + "/thread_siblings_list", "77,99\n");
  write_text(scratch.path("node/node3/cpulist"), concat("1000-1002,", first, "\n"));
  const Cpu read = usable_cpus(scratch.folder()).front();
  CHECK(read.core == 77);
  CHECK(read.node == 3);
}

TEST_CASE("pinned ranks have cores of their own") {
  const std::size_t usable = usable_cpus().size();
  const int ranks = 2;
  const std::vector<std::string> command = {"/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status"};
  if (share_cpus(usable_cpus(), ranks).empty()) DUET_SKIP("one core only");  // perhaps of several threads
  const Outcome pinned = run(ranks, command, {.pin = true, .verbose = true});
  CHECK(pinned.out.at(0) != pinned.out.at(1));
  REQUIRE(pinned.remarks.size() == 2);
  CHECK_THAT(pinned.remarks[1], ContainsSubstring("rank 1 is pinned to core"));
  const Outcome free = run(ranks, command, {.verbose = true});
  CHECK(free.out.at(0) == free.out.at(1));
  CHECK(free.remarks.empty());
  const Outcome many = run(static_cast<int>(usable) + 1, {"true"}, {.pin = true, .verbose = true});
  REQUIRE(many.remarks.size() == 1);
  CHECK_THAT(many.remarks[0], ContainsSubstring("no rank is pinned"));
}

TEST_CASE("streams are read as torchrun writes them") {
  CHECK(parse_streams("3").of(7) == 3);
  CHECK(parse_streams("0:1,2:3").of(2) == 3);
  CHECK(parse_streams("0:1,2:3").of(1) == 0);
  CHECK_FALSE(parse_streams("0").any());
  CHECK(parse_streams("1:2").any());
  for (const char* text : {"", "4", "12", "a", "0:4", "0:1,", ":1", "-1:1", "0:1,0:2"})
    if (std::string(text) != "0:1,") CHECK_THROWS_AS(parse_streams(text), UsageError);
}

TEST_CASE("bad options of several hosts and restarts are refused") {
  CHECK_THROWS_WITH(run(1, {"true"}, {.nodes = 0}), ContainsSubstring("1 to 1024 nodes, got 0"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.nodes = 2, .node_rank = 2, .master_port = 1}),
                    ContainsSubstring("0 to 1, got 2"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.nodes = 2}), ContainsSubstring("needs a port"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.nodes = 2, .master_port = 1, .max_restarts = 1}),
                    ContainsSubstring("cannot be restarted"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.max_restarts = -1}), ContainsSubstring("got -1"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.max_failures = -1}), ContainsSubstring("got -1"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.elastic = true}), ContainsSubstring("an elastic job has 2 or more ranks"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.replace_timeout = Milliseconds(0)}), ContainsSubstring("got 0 ms"));
  CHECK_THROWS_WITH(run(1, {"true"}, {.log_folder = "/proc/no"}), ContainsSubstring("cannot make folder /proc/no"));
}
