// Hosts that are short of something, and paths that are not plain.
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "ddp/group/flight_recorder.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// Two ranks that sum, each after a command of the shell.
Outcome run_after(const std::string& preparation, const std::string& backend) {
  return run(2, {"sh", "-c", preparation + " && exec \"$0\" \"$@\"", DUET_DDP_WORKER, "rounds", "5", backend});
}

void check_works(const std::string& preparation) {
  for (const std::string backend : {"shm", "gloo"}) {
    if (backend == "gloo" && !why_no_gloo().empty()) continue;
    CAPTURE(preparation, backend);
    const Outcome outcome = run_after(preparation, backend);
    CHECK(outcome.result.message == "");
    CHECK(outcome.out == run_worker(2, {"rounds", "5"}).out);
  }
}

}  // namespace

TEST_CASE("ranks share memory where /dev/shm has hardly any") {
  if (std::system("unshare -m true 2>/dev/null") != 0) DUET_SKIP("mount namespaces cannot be made here");
  const std::string mount = "mount -t tmpfs -o size=64k none /dev/shm";
  const Outcome outcome =
      run(2, {"unshare", "-m", "sh", "-c", mount + " && exec \"$0\" \"$@\"", DUET_DDP_WORKER, "rounds", "5", "shm"});
  CHECK(outcome.result.message == "");
  CHECK(outcome.out == run_worker(2, {"rounds", "5"}).out);
}

TEST_CASE("under the /proc of an outer PID namespace a rank's error is read, and no other process's file is written") {
  if (std::system("unshare -pf --mount-proc true 2>/dev/null") != 0) DUET_SKIP("PID namespaces cannot be made here");
  const Scratch scratch;
  const std::string file = scratch.path("file"), out = scratch.path("out");
  // Process 1 here is the bystander, in the namespace within the launcher.
  const std::string text(FlightRecorder::bytes(), 'x');
  write_text(file, text);
  const int status = std::system(
      concat("unshare -pf --mount-proc ", DUET_DDP_WORKER, " bystander ", file, " >", out, " 2>&1").c_str());
  CHECK(WEXITSTATUS(status) == 1);
  CHECK_THAT(read_text(out), ContainsSubstring("rank 1 ended with exit code 1: label 10 of image 7\n"));
  CHECK((read_text(file) == text));
}

TEST_CASE("32 open files are enough for two ranks") { check_works("ulimit -n 32"); }

#ifndef DUET_SANITIZED  // they take files and terabytes for themselves
TEST_CASE("too few open files end the job at once, and are named") {
  // Fewer and fewer are left for memory, Gloo, the connection to the store, and the store itself.
  const std::string odd = why_no_gloo().empty() ? "gloo" : "shm";
  int failed = 0;
  for (int files = 16; files >= 7; --files) {
    const Outcome outcome = run_after(concat("ulimit -n ", files), files % 2 == 0 ? "shm" : odd);
    CAPTURE(files, outcome.result.message);
    CHECK(outcome.took < 60s);
    if (outcome.result.exit_code == 0) continue;
    ++failed;
    // A rank that has lost the other may be the first to end.
    const std::string said = outcome.result.message + outcome.errors();
    CHECK_THAT(said, ContainsSubstring("Too many open files") || ContainsSubstring("no file descriptor left"));
  }
  CHECK(failed > 5);
}

TEST_CASE("an address space that is too small ends the job at once") {
  check_works("ulimit -v 400000");
  const Outcome outcome = run_after("ulimit -v 60000", "auto");
  CHECK(outcome.result.exit_code == 1);
  CHECK(outcome.took < 60s);
}
#endif

TEST_CASE("logs go into a folder whose name has blanks, a line's end and letters of any language") {
  const Scratch scratch;
  const std::string folder = scratch.path("a b\n\xc3\xa4 'c' \"d\" $e");
  LaunchOptions options;
  options.redirects.every = 3;
  options.log_folder = folder;
  const Outcome outcome = run_worker(2, {"rounds", "5"}, options);
  CHECK(outcome.result.message == "");
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    files += entry.path().filename() == "stdout.log" && read_text(entry.path().string()) == "7.5\n";
  CHECK(files == 2);
}
