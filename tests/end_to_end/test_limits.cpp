// The program where the kernel lets it start only a few processes and threads.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scratch.h"

#ifndef DUET_SANITIZED  // sanitizers start threads of their own

namespace {

namespace fs = std::filesystem;
using duet_test::Arguments;
using duet_test::ContainsSubstring;
using duet_test::lines;
using duet_test::Ran;
using duet_test::with;

Arguments train(const Arguments& arguments) {
  return with(with(with({"train"}, arguments), duet_test::kSmallLinear), {"--epochs", "1"});
}

/// 4 ranks that do nothing.
const Arguments kSleepers = {"launch", "-n", "4", "--", "sleep", "1000"};

/// A user of this machine without any process, so that RLIMIT_NPROC counts only what a test starts.
class NewUser {
 public:
  NewUser() : owns_folder_(::chown(folder_.folder().c_str(), id_, id_) == 0) {}
  /// Runs the program with so many processes and threads at most.
  Ran run(const Arguments& arguments, rlim_t limit) const {
    return duet_test::duet(arguments, [&] {
      const rlimit both{limit, limit};
      ::setenv("TMPDIR", folder_.folder().c_str(), 1);
      return ::setrlimit(RLIMIT_NPROC, &both) == 0 && ::setresgid(id_, id_, id_) == 0 &&
             ::setresuid(id_, id_, id_) == 0;
    });
  }
  std::string path(const std::string& name) const { return folder_.path(name); }
  /// Processes, temporary files and files of shared memory.
  std::vector<std::string> left() const {
    std::vector<std::string> found = folder_.names();
    for (const char* folder : {"/proc", "/dev/shm"}) {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        struct stat status {};
        if (::stat(entry.path().c_str(), &status) == 0 && status.st_uid == id_) found.push_back(entry.path().string());
      }
    }
    return found;
  }
  /// Why there is no such user; empty if there is.
  std::string why_not() const {
    if (::geteuid() != 0) return "only root can be another user, and the kernel applies RLIMIT_NPROC to no root";
    return owns_folder_ && run({"--version"}, 100).status == 0 ? "" : "another user cannot run the program";
  }

 private:
  const uid_t id_ = 0x40000000 + static_cast<uid_t>(::getpid());
  const duet_test::Scratch folder_;
  const bool owns_folder_;
};

/// A control group with a limit, below the one of this process.
class LimitedGroup {
 public:
  explicit LimitedGroup(int limit) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line) && folder_.empty();) {
      const std::size_t path = line.find(":/");
      const bool pids = line.find(":pids:") != std::string::npos;
      if (!pids && !line.starts_with("0::")) continue;
      const std::string parent = pids ? "/sys/fs/cgroup/pids" : "/sys/fs/cgroup";
      const std::string folder = parent + line.substr(path + 1) + "/duet-test-" + std::to_string(::getpid());
      if (::mkdir(folder.c_str(), 0755) != 0) continue;
      folder_ = folder;
      if (!(std::ofstream(folder + "/pids.max") << limit << std::flush)) remove();
    }
  }
  ~LimitedGroup() { remove(); }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;
  bool made() const { return !folder_.empty(); }
  Ran run(const Arguments& arguments) const {
    return duet_test::duet(arguments,
                           [&] { return bool(std::ofstream(folder_ + "/cgroup.procs") << 0 << std::flush); });
  }
  /// Whether no process was left in it.
  bool remove() {
    const std::string folder = std::exchange(folder_, {});
    return folder.empty() || ::rmdir(folder.c_str()) == 0;
  }

 private:
  std::string folder_;
};

/// Whether the text names the limit: no thread can be started, or another rank can start none for this rank.
bool names_limit(const std::string& text) {
  const bool named = text.find("cannot start ") != std::string::npos ||
                     text.find("can start no thread for this rank") != std::string::npos;
  return named && text.find("(ulimit -u") != std::string::npos;
}

}  // namespace

TEST_CASE("what a user's limit of processes keeps from starting is named, with the limit, and nothing is left") {
  const NewUser user;
  if (const std::string why = user.why_not(); !why.empty()) DUET_SKIP(why.c_str());
  const struct {
    rlim_t limit;
    Arguments arguments;
    std::string text;
  } cases[] = {
      {1, train({"--mode", "dp", "--devices", "4"}), "cannot start worker thread 1 of a pool of 4: "},
      {3, train({"--mode", "dp", "--devices", "4"}), "cannot start worker thread 3 of a pool of 4: "},
      {3, train({"--mode", "ddp", "--workers", "thread", "--devices", "3"}), "cannot start the thread of rank 2 of 3"},
      {4, train({"--mode", "ddp", "--workers", "thread", "--devices", "3"}), ": cannot start the "},
      {1, kSleepers, "cannot start the thread that writes the ranks' output: "},
      {3, kSleepers, "cannot start the job's guard process: "},
      {4, kSleepers, "cannot start the process of rank 0 of 4: "},
      {6, kSleepers, "cannot start the process of rank 2 of 4: "},
      {3, train({"--mode", "ddp", "--workers", "process", "--devices", "4"}), "cannot start the job's guard process: "},
  };
  for (const auto& one : cases) {
    const Ran ran = user.run(one.arguments, one.limit);
    CAPTURE(one.limit, one.text, ran.out, ran.err);
    CHECK(ran.status == 1);
    const std::string error = duet_test::without_warnings(ran.err);
    CHECK(lines(error) == 1);
    CHECK(error.starts_with("duet: "));
    const std::string limit = "this user may have " + std::to_string(one.limit) + " processes and threads (ulimit -u)";
    CHECK_THAT(ran.err, ContainsSubstring(one.text) && ContainsSubstring("errno 11") && ContainsSubstring(limit));
    CHECK(user.left().empty());
  }
}

TEST_CASE("ranks that can start too few threads of their own end the job, and the limit is named") {
  const NewUser user;
  if (const std::string why = user.why_not(); !why.empty()) DUET_SKIP(why.c_str());
  // 2 threads of the launcher, its guard, 4 ranks, the store's server, its thread for each rank and the helper of each
  // rank are 16.
  for (rlim_t limit = 4; limit <= 15; ++limit) {
    const Ran ran = user.run(train({"--mode", "ddp", "--workers", "process", "--devices", "4"}), limit);
    CAPTURE(limit, ran.out, ran.err);
    CHECK(ran.status == 1);
    CHECK(names_limit(ran.err));
    CHECK(user.left().empty());
  }
  // 1 thread, 2 ranks, and of each one of Gloo's, a monitor and one that communicates, are 9.
  for (rlim_t limit = 3; limit <= 8; ++limit) {
    for (const std::string backend : {"gloo", "tcp", "shm"}) {
      if (backend == "shm" && limit > 4) continue;
      if (backend == "tcp" && limit > 6) continue;
      const Ran ran =
          user.run(train({"--mode", "ddp", "--workers", "thread", "--devices", "2", "--backend", backend}), limit);
      CAPTURE(limit, backend, ran.out, ran.err);
      if (ran.err.find("the Gloo module was not built") != std::string::npos) continue;
      CHECK(ran.status == 1);
      CHECK(lines(ran.err) == 1);
      CHECK(ran.err.starts_with("duet: rank "));
      CHECK(names_limit(ran.err));
      CHECK(user.left().empty());
    }
  }
}

TEST_CASE("a comparison reports runs that cannot be started in each of their rows") {
  const NewUser user;
  if (const std::string why = user.why_not(); !why.empty()) DUET_SKIP(why.c_str());
  const Ran ran =
      user.run({"compare", "--wide", "--modes", "dp", "--devices", "2", "--data", "synthetic", "--train-images", "333",
                "--test-images", "20", "--out", user.path("out"), "--time-budget", "1"},
               1);
  CAPTURE(ran.out, ran.err);
  CHECK(ran.status == 1);
  CHECK_THAT(ran.out, ContainsSubstring("failed: cannot start duet: ") &&
                          ContainsSubstring("this user may have 1 processes and threads (ulimit -u)"));
  CHECK(user.left() == std::vector<std::string>{"out"});
}

TEST_CASE("the pids.max of a control group that keeps something from starting is named") {
  const struct {
    int limit;
    Arguments arguments;
    std::string text;
  } cases[] = {
      {3, train({"--mode", "dp", "--devices", "4"}), "cannot start worker thread 3 of a pool of 4: "},
      {3, train({"--mode", "ddp", "--workers", "thread", "--devices", "3"}), "cannot start the thread of rank 2 of 3"},
      {3, kSleepers, "cannot start the job's guard process: "},
      {6, kSleepers, "cannot start the process of rank 2 of 4: "},
  };
  for (const auto& one : cases) {
    LimitedGroup group(one.limit);
    if (!group.made()) DUET_SKIP("no control group with a limit of processes can be made here");
    const Ran ran = group.run(one.arguments);
    CAPTURE(one.limit, one.text, ran.out, ran.err);
    CHECK(ran.status == 1);
    CHECK(lines(duet_test::without_warnings(ran.err)) == 1);
    const std::string limit = " has reached its pids.max of " + std::to_string(one.limit);
    CHECK_THAT(ran.err, ContainsSubstring(one.text) && ContainsSubstring(": the control group ") &&
                            ContainsSubstring("duet-test-") && ContainsSubstring(limit));
    CHECK(group.remove());
  }
}

#endif
