// Every system call of a save fails in turn, or is the last one before the power goes: the file before it stays whole.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "lib/io/atomic_file.h"
#include "lib/io/checkpoint.h"
#include "tests/checkpoint/faulty_files.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/scratch.h"

using duet::DataError;
using namespace duet_test;

namespace {

int calls_of_a_save() {
  const Scratch scratch;
  duet_test::plan_fault(Fault::none, 0);
  duet::save_checkpoint(scratch.folder(), at_step(1));
  return duet_test::end_faults();
}

int calls_of_a_probe() {
  const Scratch scratch;
  duet_test::plan_fault(Fault::none, 0);
  duet::require_writable(scratch.folder());
  return duet_test::end_faults();
}

bool has_temporary(const Scratch& scratch) {
  for (const std::string& name : scratch.names())
    if (name.find(".tmp.") != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("whichever call of a save fails, the checkpoint before it stays and no temporary does") {
  const int calls = calls_of_a_save();
  REQUIRE(calls > 6);
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), at_step(1));
  int failures = 0;
  for (int at = 1; at <= calls; ++at) {
    for (const int error : {ENOSPC, EIO}) {
      INFO("call " << at << " of " << calls << " fails with " << error);
      duet_test::plan_fault(Fault::error, at, error);
      try {
        duet::save_checkpoint(scratch.folder(), at_step(2));
      } catch (const DataError&) {
        ++failures;
      }
      duet_test::end_faults();
      CHECK_FALSE(has_temporary(scratch));
      const auto loaded = duet::load_checkpoint(scratch.folder());
      CHECK(loaded.warnings.empty());
    }
  }
  // Only closing the synced folder, the last calls, may fail unnoticed.
  CHECK(failures >= 2 * (calls - 3));
}

TEST_CASE("whenever a save is cut off, a whole checkpoint is there") {
  const int calls = calls_of_a_save();
  for (int at = 1; at <= calls; ++at) {
    INFO("the process ends at call " << at << " of " << calls);
    const Scratch scratch;
    duet::save_checkpoint(scratch.folder(), at_step(1));
    const pid_t child = ::fork();
    if (child == 0) {
      duet_test::plan_fault(Fault::crash, at);
      duet::save_checkpoint(scratch.folder(), at_step(2));
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == duet_test::kCrashStatus);
    const auto loaded = duet::load_checkpoint(scratch.folder());
    CHECK(loaded.warnings.empty());
    CHECK(loaded.checkpoint.step >= 1);
    duet::prepare_checkpoint_folder(scratch.folder(), loaded.checkpoint.step);
    CHECK_FALSE(has_temporary(scratch));
  }
}

TEST_CASE("whichever call of a save or a load a signal interrupts, it is made again") {
  const int calls = calls_of_a_save();
  for (int at = 1; at <= calls; ++at) {
    const Scratch scratch;
    std::string error;
    duet_test::plan_fault(Fault::error, at, EINTR);
    try {
      duet::save_checkpoint(scratch.folder(), at_step(2));
    } catch (const DataError& thrown) {
      error = thrown.what();
    }
    duet_test::end_faults();
    INFO("call " << at << " of " << calls << ": " << error);
    const bool renaming = error.find("cannot rename") == 0;  // which no signal interrupts
    CHECK(error.empty() != renaming);
    if (renaming) continue;
    duet_test::plan_fault(Fault::error, 1, EINTR);
    CHECK(duet::load_checkpoint(scratch.folder()).checkpoint.step == 2);
    duet_test::end_faults();
  }
}

TEST_CASE("a newer checkpoint that the system does not open is neither passed over nor hidden") {
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), at_step(1));
  const std::string newest = duet::save_checkpoint(scratch.folder(), at_step(2));
  for (const int error : {EACCES, EIO, EMFILE}) {
    INFO("error " << error);
    duet_test::plan_fault(Fault::error, 1, error);
    CHECK_THROWS_WITH(duet::load_checkpoint(scratch.folder()), ContainsSubstring("cannot open " + newest));
    // The calls before it open the probe, sync it, close it, and open the folder's lock.
    duet_test::plan_fault(Fault::error, calls_of_a_probe() + 2, error);
    CHECK_THROWS_WITH(duet::prepare_checkpoint_folder(scratch.folder()), ContainsSubstring("cannot open " + newest));
    duet_test::end_faults();
  }
}

TEST_CASE("who writes a file removes what writers of it left that were killed, and nothing else") {
  const Scratch scratch;
  const std::vector<std::string> others = {"a.tmp.7.txt", "a.tmp.mine", "aa.tmp.7", "b.tmp.7"};
  for (const std::string& name : others) duet_test::write_text(scratch.path(name), "x");
  for (const std::string name : {"a.tmp.7", "a.tmp.123456.2"}) duet_test::write_text(scratch.path(name), "x");
  duet::write_atomically(scratch.path("a"), std::string("text"));
  std::vector<std::string> expected = others;
  expected.insert(expected.begin(), "a");
  CHECK(scratch.names() == expected);
}

TEST_CASE("a limit on the size of files ends a save cleanly") {
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), at_step(1));
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit small = before;
  small.rlim_cur = 200;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string save = error_of<DataError>([&] { duet::save_checkpoint(scratch.folder(), at_step(2)); });
  const std::string prepare = error_of<DataError>([&] { duet::prepare_checkpoint_folder(scratch.folder(), 1); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK_THAT(save, ContainsSubstring("cannot write") && ContainsSubstring("File too large"));
  CHECK_THAT(prepare, ContainsSubstring("File too large"));
  CHECK(scratch.names() == std::vector<std::string>{"checkpoint-00000001.safetensors"});
}

TEST_CASE("a full disk is found before training, and a save on it keeps the old checkpoint") {
  const Scratch scratch;
  const std::string disk = scratch.path("disk");
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=16k") != 0) DUET_SKIP("no right to mount a small disk");
  const std::string prepare = error_of<DataError>([&] { duet::prepare_checkpoint_folder(disk); });
  duet::save_checkpoint(disk, at_step(1));
  duet::Checkpoint large = at_step(2);
  large.model = {{"fc.weight", duet::zeros({10000})}};
  const std::string save = error_of<DataError>([&] { duet::save_checkpoint(disk, large); });
  const std::int64_t step = duet::load_checkpoint(disk).checkpoint.step;
  const auto files = std::distance(std::filesystem::directory_iterator(disk), {});
  ::umount(disk.c_str());
  CHECK_THAT(prepare, ContainsSubstring("No space left on device"));
  CHECK_THAT(save, ContainsSubstring("No space left on device"));
  CHECK(step == 1);
  CHECK(files == 1);
}
