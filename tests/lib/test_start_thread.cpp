#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/patience.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/support/few_threads.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet_test;

namespace {

/// which_thread_limit() in a child process after `prepare`; empty if that returns false, or one of them throws.
template <class Prepare>
std::string limit_after(Prepare&& prepare) {
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const std::string text = prepare() ? which_thread_limit() : "";
      ::_exit(::write(ends[1], text.data(), text.size()) < 0);
    } catch (...) {
      ::_exit(1);
    }
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

/// which_thread_limit() where /proc/self/cgroup and files below /sys/fs/cgroup have these texts; empty if that cannot
/// be arranged here.
std::string limit_with(const std::string& groups, const std::vector<std::pair<std::string, std::string>>& files) {
  const Scratch scratch;
  const std::string own = scratch.path("cgroup"), root = "/sys/fs/cgroup";
  duet_test::write_text(own, groups);
  return limit_after([&] {
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("none", root.c_str(), "tmpfs", 0, nullptr) == 0 &&
                         ::mount(own.c_str(), "/proc/self/cgroup", nullptr, MS_BIND, nullptr) == 0;
    for (const auto& [name, text] : files) {
      if (!mounted) break;
      std::filesystem::create_directories(std::filesystem::path(root + name).parent_path());
      duet_test::write_text(root + name, text);
    }
    return mounted;
  });
}

}  // namespace

TEST_CASE("with_patience() tries again only while a Patience lives") {
  int tries = 0;
  const auto fourth = [&] {
    require(++tries >= 4, "short");
    return tries;
  };
  CHECK_THROWS_WITH(with_patience(fourth), "short");
  {
    const Patience patience(std::chrono::seconds(60));
    CHECK(with_patience(fourth) == 4);
  }
  tries = 0;
  CHECK_THROWS_WITH(with_patience(fourth), "short");
}

TEST_CASE("the control group that is full is named, of either version and wherever it is mounted") {
  const std::string two = "0::/job/task\n", one = "9:cpu:/job/task\n8:pids:/job/task\n0::/\n";
  if (limit_with(two, {}).empty()) DUET_SKIP("file systems cannot be mounted here");
  CHECK(limit_with(two, {{"/job/task/pids.max", "7\n"}, {"/job/task/pids.current", "7\n"}}) ==
        "the control group /job/task has reached its pids.max of 7");
  CHECK(limit_with(one, {{"/pids/job/task/pids.max", "7\n"}, {"/pids/job/task/pids.current", "8\n"}}) ==
        "the control group /job/task has reached its pids.max of 7");
  CHECK(limit_with(two, {{"/job/task/pids.max", "max\n"},
                         {"/job/task/pids.current", "9\n"},
                         {"/job/pids.max", "9\n"},
                         {"/job/pids.current", "9\n"}}) == "the control group /job has reached its pids.max of 9");
  // A container's own group is mounted as the root.
  CHECK(limit_with(two, {{"/pids.max", "9\n"}, {"/pids.current", "9\n"}}) ==
        "the control group / has reached its pids.max of 9");
  CHECK(limit_with("0::/\n", {{"/pids.max", "9\n"}, {"/pids.current", "9\n"}}) ==
        "the control group / has reached its pids.max of 9");
  for (const std::string current : {"6\n", ""}) {
    const std::string text = limit_with(two, {{"/job/task/pids.max", "7\n"}, {"/job/task/pids.current", current}});
    CAPTURE(current, text);
    CHECK(!text.empty());
    CHECK(text.find("pids.max") == std::string::npos);
  }
}

TEST_CASE("a user's limit of processes is named, but not for root, which it does not apply to") {
  const auto limited = [](uid_t user) {
    return limit_after([user] {
      rlimit limit{};
      ::getrlimit(RLIMIT_NPROC, &limit);
      limit.rlim_cur = 5;
      return ::setrlimit(RLIMIT_NPROC, &limit) == 0 && ::setresuid(user, user, user) == 0;
    });
  };
  const std::string named = "this user may have 5 processes and threads (ulimit -u)";
  if (::getuid() != 0) {
    CHECK(limited(::getuid()) == named);
    return;
  }
  if (limited(65534).empty()) DUET_SKIP("root cannot be another user here");
  CHECK(limited(65534) == named);
  if (duet_test::read_text("/proc/self/uid_map").find("0          0 ") == std::string::npos)
    DUET_SKIP("root of a user namespace");
  CHECK_THAT(limited(0), ContainsSubstring("memory is short, or the machine's "));
}

TEST_CASE("only a limit that was reached is named") {
  CHECK(cannot_start("it", ENOMEM) == "cannot start it: Cannot allocate memory (errno 12)");
  CHECK_THAT(cannot_start("it", EAGAIN),
             ContainsSubstring("cannot start it: Resource temporarily unavailable (errno 11): "));
}

TEST_CASE("the limit of the address space is named also after the threads that filled it have ended") {
  const duet_test::FewThreads few(2);
  std::latch refused(1);
  std::vector<std::thread> threads;
  const auto fill = [&] {
    for (int i = 0; i < 8; ++i) threads.push_back(start_thread("a thread", [&] { refused.wait(); }));
  };
  CHECK_THROWS_WITH(fill(), ContainsSubstring("the address space is limited to "));
  refused.count_down();
  for (std::thread& thread : threads) thread.join();
  CHECK_THAT(cannot_start("it", EAGAIN), ContainsSubstring("the address space is limited to "));
}
