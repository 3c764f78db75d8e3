// A store in a file.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/same_builds.h"
#include "ddp/store/file_store.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

TEST_CASE("a left-over file does not affect the next run") {
  const Scratch scratch;
  const std::string path = scratch.path("store");
  FileStore(path, "run 1").set("key", "old");
  FileStore next(path, "run 2");
  CHECK_FALSE(next.check({"key"}));
  CHECK(FileStore(path, "run 1").get("key") == "old");
}

TEST_CASE("processes of an elastic job run the same program, and on a host the same libraries") {
  const Scratch scratch;
  FileStore store(scratch.path("store"), "run");
  require_same_builds(store, 0, 0);
  CHECK_NOTHROW(require_same_builds(store, 1, 0));
  store.set("build/0/libc.so.6", "another");
  CHECK_THROWS_WITH(require_same_builds(store, 1, 0),
                    ContainsSubstring("libc.so.6 of process 1 is another build than"));
  CHECK_NOTHROW(require_same_builds(store, 1, 1));
  store.set("build/0/", "another");
  CHECK_THROWS_AS(require_same_builds(store, 1, 1), UsageError);
}

TEST_CASE("those who take a file's key take each of its values once, while the others keep waiting") {
  const Scratch scratch;
  const std::string path = scratch.path("store");
  constexpr int kTakers = 8, kEach = 20;
  std::atomic<int> sum = 0, errors = 0;
  const auto take = [&] {
    FileStore store(path, "run");
    for (int taken = 0; taken < kEach;) try {
        sum += std::stoi(store.take("key", 60s));
        ++taken;
      } catch (const CommError&) {
        ++errors;
      }
  };
  std::vector<std::thread> takers;
  for (int i = 0; i < kTakers; ++i) takers.emplace_back(take);
  FileStore store(path, "run");
  for (int i = 1; i <= kTakers * kEach; ++i)
    while (store.compare_set("key", "", std::to_string(i)) != std::to_string(i)) std::this_thread::yield();
  for (std::thread& taker : takers) taker.join();
  CHECK(sum == kTakers * kEach * (kTakers * kEach + 1) / 2);
  CHECK(errors == 0);
}

TEST_CASE("rank 0 leaves a rendezvous last") {
  const Scratch scratch;
  FileStore store(scratch.path("store"), "run");
  std::atomic<bool> left = false;
  auto first = std::async(std::launch::async, [&] { return leave_last(store, "key", 0, 2), left.load(); });
  left = true;
  leave_last(store, "key", 1, 2);
  CHECK(first.get());
}

TEST_CASE("the last rank removes the file") {
  const Scratch scratch;
  const std::string path = scratch.path("store");
  auto first = std::make_unique<FileStore>(path, "run", 2);
  auto second = std::make_unique<FileStore>(path, "run", 2);
  first.reset();
  CHECK(std::filesystem::exists(path));
  second.reset();
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a process that keeps a store's file locked is named when the time is over") {
  const Scratch scratch;
  const std::string path = scratch.path("store");
  FileStore store(path, "run", 0, 10ms);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (::flock(file, LOCK_EX) == 0) ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(holder, &status, WUNTRACED);
  REQUIRE(WIFSTOPPED(status));
  const auto check_named = [&](const std::function<void()>& call) {
    CHECK_THROWS_WITH(call(), ContainsSubstring(concat("the lock of the store ", path, ": process ", holder, " (")) &&
                                  ContainsSubstring("), which is stopped, holds it"));
  };
  check_named([&] { store.set("key", "value"); });
  check_named([&] { store.wait({"key"}); });
  check_named([&] { FileStore(path, "run", 0, 10ms); });
  ::kill(holder, SIGKILL);
  ::waitpid(holder, &status, 0);
  store.set("key", "value");
  CHECK(store.get("key") == "value");
}

TEST_CASE("a record that its writer did not finish is cut off") {
  const Scratch scratch;
  const std::string path = scratch.path("store");
  FileStore store(path, "run");
  store.set("one", "1");
  const auto whole = std::filesystem::file_size(path);
  store.set("two", "2");
  const auto longer = std::filesystem::file_size(path);
  for (auto size = whole; size < longer; ++size) {
    std::filesystem::resize_file(path, size);
    FileStore reader(path, "run");
    CHECK(reader.check({"one"}));
    CHECK_FALSE(reader.check({"two"}));
    CHECK(std::filesystem::file_size(path) == whole);
    std::filesystem::resize_file(path, whole);
    FileStore(path, "run").set("two", "2");
  }
}

TEST_CASE("a file that is no store is refused") {
  const Scratch scratch;
  std::ofstream(scratch.path("text")) << "something else entirely";
  std::filesystem::permissions(scratch.path("text"), std::filesystem::perms(0600));
  CHECK_THROWS_WITH(FileStore(scratch.path("text"), "run"), ContainsSubstring("is not a duet store"));
  CHECK_THROWS_WITH(FileStore(scratch.path("no/such/folder"), "run"), ContainsSubstring("errno 2"));
}
