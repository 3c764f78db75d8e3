// Limits, closed outputs, cut files and missing interfaces: what a program finds around it, told in a line.
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "compare/results.h"
#include "ddp/launch/rank_environment.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

namespace {

namespace fs = std::filesystem;
using duet_test::ContainsSubstring;
using duet_test::Ran;
using duet_test::Scratch;
using Arguments = std::vector<std::string>;

Arguments operator+(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const Arguments kTrain = {"train", "--data",  "synthetic", "--train-images", "333",   "--test-images",
                          "20",    "--batch", "64",        "--model",        "linear"};
const Arguments kSingle = {"--mode", "single"}, kDp = {"--mode", "dp", "--devices", "2"},
                kDdp = {"--mode", "ddp", "--devices", "2"},
                kThreads = {"--mode", "ddp", "--devices", "2", "--workers", "thread"};

/// Runs the program with files of so many bytes at most.
Ran with_files_of(rlim_t bytes, const Arguments& arguments) {
  return duet_test::duet(arguments, [&] {
    const rlimit both{bytes, bytes};
    std::signal(SIGXFSZ, SIG_DFL);
    return ::setrlimit(RLIMIT_FSIZE, &both) == 0;
  });
}

/// Runs the program with a pipe as its standard output that is closed after one line has been read.
Ran read_one_line(const Arguments& arguments, void (*broken_pipe)(int) = SIG_DFL) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  std::thread reader([&] {
    for (char byte = 0; ::read(ends[0], &byte, 1) == 1 && byte != '\n';) {
    }
    ::close(ends[0]);
  });
  const Ran ran = duet_test::duet(arguments, [&] {
    std::signal(SIGPIPE, broken_pipe);
    return ::dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO;
  });
  ::close(ends[1]);
  reader.join();
  return ran;
}

/// Runs the program in a network namespace of its own, in which loopback is down; exit code 126 where none can be made.
Ran without_loopback(const Arguments& arguments) {
  return duet_test::duet(arguments, [] { return ::unshare(CLONE_NEWNET) == 0; });
}

}  // namespace

TEST_CASE("ranks whose shared memory the limit on files forbids do without it") {
  for (const Arguments& mode : {kDdp, kDdp + Arguments{"--elastic"}, kThreads}) {
    const Scratch folder;
    const std::string result = folder.path("result");
    const Ran ran = with_files_of(1 << 17, kTrain + mode + Arguments{"--epochs", "1", "--result", result});
    INFO(mode.back() << "\n" << ran.err);
    REQUIRE(ran.status == 0);
    CHECK(duet::cli::run_from_json(duet_test::read_text(result)).backend == (mode == kThreads ? "memory" : "tcp"));
  }
  CHECK(with_files_of(0, {"launch", "-n", "2", "--", "true"}).status == 0);
}

TEST_CASE("a file that the limit on files cuts is named with it") {
  for (const Arguments& mode : {kSingle, kDp, kDdp, kThreads}) {
    const Scratch folder;
    const std::string kept = folder.path("kept");
    const Ran ran = with_files_of(4096, kTrain + mode + Arguments{"--epochs", "2", "--checkpoint", kept});
    INFO(mode.back() << "\n" << ran.err);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, ContainsSubstring("cannot write " + kept) && ContainsSubstring("File too large (errno 27)"));
    CHECK(duet_test::files_in(kept).empty());
  }
}

TEST_CASE("a training whose output nothing reads any more ends with a checkpoint and a line") {
  for (const Arguments& mode : {kSingle, kDp, kDdp, kThreads}) {
    const Scratch folder;
    const std::string kept = folder.path("kept");
    const Ran ran = read_one_line(kTrain + mode + Arguments{"--epochs", "1000000", "--checkpoint", kept});
    INFO(mode.back() << "\n" << ran.err);
    CHECK(ran.status == 128 + SIGPIPE);
    CHECK_THAT(ran.err, ContainsSubstring("nothing reads the "));
    CHECK_FALSE(duet_test::files_in(kept, "checkpoint-").empty());
    CHECK(duet_test::processes_with(folder.folder()) == 0);
  }
}

TEST_CASE("a job of other programs whose output nothing reads any more is ended, and told") {
  const Ran ran = read_one_line({"launch", "-n", "2", "--", "yes"});
  CHECK(ran.status == 128 + SIGPIPE);
  CHECK(ran.err == "duet: ended by signal 13 (SIGPIPE): nothing reads the output of the ranks any more\n");
}

TEST_CASE("where SIGPIPE is ignored a training goes on without its reader, and then says so") {
  for (const Arguments& mode : {kSingle, kDdp}) {
    const Scratch folder;
    const std::string result = folder.path("result");
    const Ran ran = read_one_line(kTrain + mode + Arguments{"--epochs", "40", "--result", result}, SIG_IGN);
    INFO(mode.back() << "\n" << ran.err);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, ContainsSubstring("cannot write "));
    CHECK(duet::cli::run_from_json(duet_test::read_text(result)).test_accuracy.size() == 40);
  }
}

TEST_CASE("a network's file that is not all there is refused by name, wherever it was cut") {
  const Scratch folder;
  const std::string network = folder.path("own.so");
  fs::copy_file(std::getenv("DUET_NETWORK"), network);
  const std::uintmax_t size = fs::file_size(network);
  for (const std::uintmax_t left : {size - 1, size - size / 8, size / 2, size / 4, std::uintmax_t{8192},
                                    std::uintmax_t{4096}, std::uintmax_t{1000}}) {
    if (left >= size) continue;
    fs::copy_file(std::getenv("DUET_NETWORK"), network, fs::copy_options::overwrite_existing);
    fs::resize_file(network, left);
    const Ran ran = duet_test::duet({"train", "--data", "synthetic", "--model", network});
    INFO(left << " of " << size << "\n" << ran.err);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, ContainsSubstring("cannot load a network: " + network + " has " + std::to_string(left) +
                                          " bytes, but its ELF headers name "));
  }
}

TEST_CASE("a network's file that is cut while it is used ends the training with a line that names it") {
  const Scratch folder;
  const std::string network = folder.path("own.so"), progress = folder.path("progress");
  fs::copy_file(std::getenv("DUET_NETWORK"), network);
  const auto cut = [&] {
    if (!duet_test::there(progress)) return false;
    fs::resize_file(network, 0);
    return true;
  };
  const Ran ran = duet_test::duet_interrupted({"train", "--data", "synthetic", "--train-images", "333", "--test-images",
                                               "20", "--epochs", "1000000", "--model", network, "--progress", progress},
                                              cut, 0);
  CHECK(ran.status == 128 + SIGBUS);
  CHECK(ran.err == "duet: " + network +
                       " is mapped into memory and has become shorter, or its disk or memory has failed: signal 7 "
                       "(SIGBUS)\n");
}

TEST_CASE("ranks of a host without a loopback interface end at once, and say what to do") {
  if (without_loopback({"--version"}).status == 126) DUET_SKIP("no network namespace can be made here");
  for (const Arguments& mode :
       {kDdp, kThreads + Arguments{"--backend", "tcp"}, kThreads + Arguments{"--backend", "gloo"}}) {
    Arguments arguments = kTrain + mode + Arguments{"--epochs", "1"};
    // So that a test that fails does not last.
    if (mode == kDdp)
      arguments = Arguments{"launch", "-n", "2", "--rdzv-timeout", "3", "--", std::getenv("DUET_PROGRAM")} + arguments;
    const Ran ran = without_loopback(arguments);
    INFO(arguments.back() << "\n" << ran.err);
    if (ran.err.find("the Gloo module was not built") != std::string::npos) continue;
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, ContainsSubstring("the loopback interface lo of this host") &&
                            ContainsSubstring("is down; bring it up (ip link set lo up)"));
  }
  CHECK(without_loopback(kTrain + kThreads + Arguments{"--epochs", "1"}).status == 0);
}

TEST_CASE("a training that goes on from a checkpoint of numbers that are not finite says so") {
  for (const Arguments& mode : {kSingle, kDdp}) {
    const Scratch folder;
    const std::string kept = folder.path("kept");
    const Arguments train = kTrain + mode + Arguments{"--model", "simple_cnn", "--lr", "1e30"};
    REQUIRE(duet_test::duet(train + Arguments{"--epochs", "1", "--checkpoint", kept}).status == 0);
    const Ran ran = duet_test::duet(train + Arguments{"--epochs", "2", "--resume", kept});
    INFO(ran.err);
    CHECK(ran.status == 0);
    CHECK_THAT(ran.err, ContainsSubstring(kept) && ContainsSubstring(": conv1.bias holds nan; ") &&
                            ContainsSubstring(" tensors are not finite"));
  }
}

TEST_CASE("a rank that was killed on another host is the first that a launcher names") {
  for (const int ranks : {1, 2}) {
    const duet::ddp::ReservedPort port("127.0.0.1", 0);
    const std::string last = std::to_string(2 * ranks - 1), number = std::to_string(ranks);
    const auto launch = [&](const std::string& host) {
      return duet_test::duet(Arguments{"launch", "-n", number, "--nnodes", "2", "--node-rank", host, "--rdzv-endpoint",
                                       "127.0.0.1:" + std::to_string(port.port()), "--", std::getenv("DUET_PROGRAM")} +
                             kTrain + Arguments{"--mode", "ddp", "--epochs", "1000000", "--backend", "tcp"});
    };
    ::setenv("DUET_FAULT", ("update:" + last + ":9:9").c_str(), 1);
    Ran other;
    std::thread second([&] { other = launch("1"); });
    const Ran first = launch("0");
    second.join();
    ::unsetenv("DUET_FAULT");
    INFO(first.err << other.err);
    CHECK(first.status == 1);
    CHECK_THAT(other.err, ContainsSubstring("duet: rank " + last + " was killed by signal 9 (SIGKILL)\n"));
    // Where two ranks ran there, the other one may have closed its connections before what the killed one sent was
    // read.
    const std::string end = " on another host, see its launcher: rank ";
    CHECK((first.err.find("duet: lost rank " + last + end) != std::string::npos ||
           (ranks == 2 && first.err.find("duet: lost rank 2" + end) != std::string::npos)));
  }
}
