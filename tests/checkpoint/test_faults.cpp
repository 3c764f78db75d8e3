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
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using duet::DataError;
using duet_test::ContainsSubstring;
using duet_test::Fault;
using duet_test::Scratch;

namespace {

duet::Checkpoint at_step(std::int64_t step) {
  duet::Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.arch = "SimpleCNN";
  checkpoint.model = {{"fc.weight", duet::zeros({30})}};
  return checkpoint;
}

int calls_of_a_save() {
  const Scratch scratch;
  duet_test::plan_fault(Fault::none, 0);
  duet::save_checkpoint(scratch.folder(), at_step(1));
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

TEST_CASE("a call that a signal interrupts is made again") {
  const Scratch scratch;
  duet_test::plan_fault(Fault::error, 2, EINTR);  // the first write
  CHECK_NOTHROW(duet::write_atomically(scratch.path("a"), std::string("text")));
  duet_test::end_faults();
  CHECK(duet_test::read_text(scratch.path("a")) == "text");
}

TEST_CASE("a limit on the size of files ends a save cleanly") {
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), at_step(1));
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 200;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string save, prepare;
  try {
    duet::save_checkpoint(scratch.folder(), at_step(2));
  } catch (const DataError& error) {
    save = error.what();
  }
  try {
    duet::prepare_checkpoint_folder(scratch.folder(), 1);
  } catch (const DataError& error) {
    prepare = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, handler);
  CHECK_THAT(save, ContainsSubstring("cannot write") && ContainsSubstring("File too large"));
  CHECK_THAT(prepare, ContainsSubstring("File too large"));
  CHECK(scratch.names() == std::vector<std::string>{"checkpoint-00000001.safetensors"});
}

TEST_CASE("a full disk is found before training, and a save on it keeps the old checkpoint") {
  const Scratch scratch;
  const std::string disk = scratch.path("disk");
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=16k") != 0) DUET_SKIP("no right to mount a small disk");
  std::string prepare, save;
  std::int64_t step = 0;
  try {
    duet::prepare_checkpoint_folder(disk);
  } catch (const DataError& error) {
    prepare = error.what();
  }
  duet::save_checkpoint(disk, at_step(1));
  duet::Checkpoint large = at_step(2);
  large.model = {{"fc.weight", duet::zeros({10000})}};
  try {
    duet::save_checkpoint(disk, large);
  } catch (const DataError& error) {
    save = error.what();
  }
  step = duet::load_checkpoint(disk).checkpoint.step;
  const auto files = std::distance(std::filesystem::directory_iterator(disk), {});
  ::umount(disk.c_str());
  CHECK_THAT(prepare, ContainsSubstring("No space left on device"));
  CHECK_THAT(save, ContainsSubstring("No space left on device"));
  CHECK(step == 1);
  CHECK(files == 1);
}
