// One run writes a folder of checkpoints, and removes only its own.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/error.h"
#include "lib/io/checkpoint.h"
#include "lib/io/folder.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using duet::DataError;
using duet::FolderLock;
using namespace duet_test;

TEST_CASE("a folder that one run writes is refused to others by the name of that run, and may be read") {
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), at_step(1));
  {
    const FolderLock lock = duet::prepare_checkpoint_folder(scratch.folder(), 1, {}, "duet-7-ab");
    CHECK(lock.warning().empty());
    CHECK_THROWS_WITH(duet::prepare_checkpoint_folder(scratch.folder(), 1),
                      ContainsSubstring("folder " + scratch.folder() + " is written by process " +
                                        std::to_string(::getpid()) + " on ") &&
                          ContainsSubstring(", run duet-7-ab, since 20") && ContainsSubstring("use another folder"));
    CHECK(duet::load_checkpoint(scratch.folder()).checkpoint.step == 1);
  }
  CHECK_NOTHROW(duet::prepare_checkpoint_folder(scratch.folder(), 1));
  CHECK(scratch.names() == std::vector<std::string>{"checkpoint-00000001.safetensors"});
}

TEST_CASE("the lock of a run that was killed is gone with it") {
  const Scratch scratch;
  int ready[2] = {};
  REQUIRE(::pipe(ready) == 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const FolderLock lock(scratch.folder());
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK_THROWS_WITH(FolderLock(scratch.folder()), ContainsSubstring("process " + std::to_string(holder)));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  for (const int end : ready) ::close(end);
  CHECK(std::filesystem::exists(scratch.path(".duet.lock")));
  CHECK_NOTHROW(FolderLock(scratch.folder()));
}

TEST_CASE("a lock does not write to a file that has another name") {
  const Scratch scratch, other;
  duet_test::write_text(other.path("precious"), "content");
  std::filesystem::create_hard_link(other.path("precious"), scratch.path(".duet.lock"));
  {
    const FolderLock lock(scratch.folder());
    CHECK_THROWS_WITH(FolderLock(scratch.folder()), ContainsSubstring("is written by another process"));
  }
  CHECK(duet_test::read_text(other.path("precious")) == "content");
  CHECK(scratch.names().empty());
}

TEST_CASE("a save removes old checkpoints of its own series only") {
  const Scratch scratch;
  for (const std::int64_t step : {1, 2}) duet::save_checkpoint(scratch.folder(), at_step(step, "another"));
  duet::save_checkpoint(scratch.folder(), at_step(3));
  duet_test::write_text(scratch.path("checkpoint-00000004.safetensors"), "damaged");
  for (const std::int64_t step : {5, 6, 7}) duet::save_checkpoint(scratch.folder(), at_step(step, "own"));
  CHECK(duet::load_checkpoint(scratch.folder()).checkpoint.series == "own");
  const std::string start = "checkpoint-0000000", end = ".safetensors";
  std::vector<std::string> expected;
  for (const char* step : {"1", "2", "3", "4", "6", "7"}) expected.push_back(start + step + end);
  CHECK(scratch.names() == expected);
}
