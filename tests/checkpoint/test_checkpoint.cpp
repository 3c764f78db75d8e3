#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "lib/io/atomic_file.h"
#include "lib/io/checkpoint.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/scratch.h"

using duet::DataError;
using namespace duet_test;

namespace {

using Names = std::vector<std::string>;

duet::Checkpoint filled_at_step(std::int64_t step) {
  duet::Checkpoint checkpoint;
  checkpoint.position = {step / 469, step % 469, 64};
  checkpoint.step = step;
  checkpoint.arch = "SimpleCNN";
  checkpoint.best_acc1 = 98.1 + 0.2;  // not a short decimal
  checkpoint.model = {{"fc.weight", duet::from_values<float>({2}, {static_cast<float>(step), 2})}};
  checkpoint.optimizer = {{"momentum", duet::from_values<float>({2}, {0.5f, 0.25f})}};
  checkpoint.settings = {{"seed", "1234"}};
  return checkpoint;
}

void damage(const std::string& path) {
  std::string bytes = read_text(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(path, bytes);
}

}  // namespace

TEST_CASE("a checkpoint's first number that is not finite is named, of the model and of the optimizer") {
  const Scratch scratch;
  const float infinite = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto warnings_of = [&](float weight, float momentum) {
    duet::Checkpoint checkpoint = filled_at_step(1);
    checkpoint.model.push_back({"fc.bias", duet::from_values<float>({2}, {1, weight})});
    checkpoint.optimizer[0].tensor = duet::from_values<float>({2}, {momentum, 0.25f});
    const std::string path = duet::save_checkpoint(scratch.folder(), checkpoint);
    CHECK(duet::load_checkpoint(scratch.folder()).warnings == duet::load_checkpoint(path).warnings);
    return duet::load_checkpoint(path).warnings;
  };
  const std::string path = scratch.path("checkpoint-00000001.safetensors") + ": ",
                    end = " of 3 tensors are not finite, and a run that resumes from it keeps them";
  CHECK(warnings_of(0, 0).empty());
  CHECK(warnings_of(nan, 0) == Names{path + "fc.bias holds nan; 1" + end});
  CHECK(warnings_of(-infinite, nan) == Names{path + "fc.bias holds -inf; 2" + end});
  CHECK(warnings_of(0, infinite) == Names{path + "optimizer.momentum holds inf; 1" + end});
}

TEST_CASE("a checkpoint comes back as it was") {
  const Scratch scratch;
  const std::string path = duet::save_checkpoint(scratch.folder(), filled_at_step(943));
  CHECK(path == scratch.path("checkpoint-00000943.safetensors"));
  for (const std::string& from : {path, scratch.folder()}) {
    const duet::LoadedCheckpoint loaded = duet::load_checkpoint(from);
    CHECK(loaded.path == path);
    CHECK(loaded.warnings.empty());
    CHECK(loaded.checkpoint.position == duet::data::Position{2, 5});
    CHECK(loaded.checkpoint.position.batch == 64);
    CHECK(loaded.checkpoint.step == 943);
    CHECK(loaded.checkpoint.arch == "SimpleCNN");
    CHECK(loaded.checkpoint.best_acc1 == 98.1 + 0.2);
    CHECK(loaded.checkpoint.settings == duet::Metadata{{"seed", "1234"}});
    const duet::NamedTensors model = {{"fc.weight", duet::zeros({2})}};
    duet::restore(loaded, "SimpleCNN", model);
    CHECK(model[0].tensor.data<float>()[0] == 943);
    REQUIRE(loaded.checkpoint.optimizer.size() == 1);
    CHECK(loaded.checkpoint.optimizer[0].name == "momentum");
    CHECK(loaded.checkpoint.optimizer[0].tensor.data<float>()[1] == 0.25f);
  }
}

TEST_CASE("a checkpoint of an earlier version has the epoch of its position only") {
  const Scratch scratch;
  duet::TensorFile file = duet::load_tensors(duet::save_checkpoint(scratch.folder(), filled_at_step(943)));
  REQUIRE(file.metadata.erase("epoch_step") == 1);
  duet::save_tensors(scratch.path("older"), file.tensors, file.metadata);
  const duet::Checkpoint loaded = duet::load_checkpoint(scratch.path("older")).checkpoint;
  CHECK(loaded.position == duet::data::Position{2, 0});
  CHECK(loaded.step == 943);
  file.metadata["epoch_step"] = "-1";
  duet::save_tensors(scratch.path("older"), file.tensors, file.metadata);
  CHECK_THROWS_WITH(duet::load_checkpoint(scratch.path("older")),
                    ContainsSubstring("\"epoch_step\" is \"-1\", expected a number of 0 or more"));
}

TEST_CASE("a checkpoint of another model is refused by name, and copies nothing") {
  const Scratch scratch;
  const auto loaded = duet::load_checkpoint(duet::save_checkpoint(scratch.folder(), filled_at_step(1)));
  const duet::NamedTensors model = {{"fc.weight", duet::zeros({2})}};
  CHECK_THROWS_WITH(duet::restore(loaded, "ASimpleNet", model),
                    ContainsSubstring("is of the model \"SimpleCNN\", expected \"ASimpleNet\""));
  CHECK_THROWS_WITH(duet::restore(loaded, "SimpleCNN", {{"fc.weight", duet::zeros({3})}}),
                    ContainsSubstring("\"fc.weight\" is f32[2], expected f32[3]"));
  CHECK(model[0].tensor.data<float>()[0] == 0);
}

TEST_CASE("the last two checkpoints stay, and the best") {
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), filled_at_step(1));
  duet::save_checkpoint(scratch.folder(), filled_at_step(2), true);
  write_text(scratch.path("notes.txt"), "not ours");
  duet::save_checkpoint(scratch.folder(), filled_at_step(3));
  duet::save_checkpoint(scratch.folder(), filled_at_step(4));
  CHECK(scratch.names() == Names{"checkpoint-00000003.safetensors", "checkpoint-00000004.safetensors",
                                 "model_best.safetensors", "notes.txt"});
  CHECK(duet::load_checkpoint(scratch.path("model_best.safetensors")).checkpoint.step == 2);
}

TEST_CASE("a folder gives its newest valid checkpoint, with a warning for every damaged one") {
  const Scratch scratch;
  duet::save_checkpoint(scratch.folder(), filled_at_step(9));
  const std::string newest = duet::save_checkpoint(scratch.folder(), filled_at_step(10));
  CHECK(duet::load_checkpoint(scratch.folder()).checkpoint.step == 10);
  damage(newest);
  const auto loaded = duet::load_checkpoint(scratch.folder());
  CHECK(loaded.checkpoint.step == 9);
  REQUIRE(loaded.warnings.size() == 1);
  CHECK_THAT(loaded.warnings[0], ContainsSubstring(newest) && ContainsSubstring("is damaged"));
  CHECK_THROWS_WITH(duet::load_checkpoint(newest), ContainsSubstring("is damaged"));
  damage(loaded.path);
  CHECK_THROWS_WITH(duet::load_checkpoint(scratch.folder()), ContainsSubstring("holds no valid checkpoint") &&
                                                                 ContainsSubstring(newest) &&
                                                                 ContainsSubstring(loaded.path));
}

TEST_CASE("no checkpoint at all is said so") {
  const Scratch scratch;
  CHECK_THROWS_WITH(duet::load_checkpoint(scratch.folder()), ContainsSubstring("holds no checkpoint"));
  CHECK_THROWS_WITH(duet::load_checkpoint(scratch.path("absent")), ContainsSubstring("no such file or folder"));
  duet::save_tensors(scratch.path("other"), {{"x", duet::zeros({1})}});
  CHECK_THROWS_WITH(duet::load_checkpoint(scratch.path("other")), ContainsSubstring("has no \"epoch\""));
  duet::save_tensors(scratch.path("other"), {}, {{"epoch", "3x"}});
  CHECK_THROWS_WITH(duet::load_checkpoint(scratch.path("other")), ContainsSubstring("\"epoch\" is \"3x\""));
}

TEST_CASE("a folder with a later checkpoint is refused before a run hides it") {
  const Scratch scratch;
  const std::string later = duet::save_checkpoint(scratch.folder(), filled_at_step(10));
  CHECK_THROWS_WITH(duet::prepare_checkpoint_folder(scratch.folder()),
                    ContainsSubstring("holds a checkpoint of step 10") && ContainsSubstring("resume from it"));
  CHECK_NOTHROW(duet::prepare_checkpoint_folder(scratch.folder(), 10));
  damage(later);
  CHECK_NOTHROW(duet::prepare_checkpoint_folder(scratch.folder()));
}

TEST_CASE("saving a checkpoint makes its folder") {
  const Scratch scratch;
  const std::string path = duet::save_checkpoint(scratch.path("a/b"), filled_at_step(1));
  CHECK(duet::load_checkpoint(path).checkpoint.step == 1);
  write_text(scratch.path("file"), "");
  CHECK_THROWS_WITH(duet::save_checkpoint(scratch.path("file/x"), {}),
                    ContainsSubstring("file: a file, or a link that leads"));
  CHECK_THROWS_WITH(duet::save_checkpoint("", {}), ContainsSubstring("as its name is empty"));
}

TEST_CASE("preparing a folder makes it, and removes what dead writers left") {
  const Scratch scratch;
  const std::string folder = scratch.path("a/b");
  duet::prepare_checkpoint_folder(folder);
  CHECK(std::filesystem::is_empty(folder));

  const auto temporary = [&](pid_t writer) {
    return folder + "/checkpoint-00000001.safetensors.tmp." + std::to_string(writer);
  };
  // It is locked, and of a number that no process of this host has: of another host.
  const std::string elsewhere = temporary(0);
  write_text(elsewhere, "x");
  const int writing = ::open(elsewhere.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(::flock(writing, LOCK_EX) == 0);
  const pid_t zombie = ::fork();
  if (zombie == 0) ::_exit(0);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(zombie), &ended, WEXITED | WNOWAIT) == 0);
  const std::string orphan = temporary(zombie), reused = temporary(::getppid());
  const std::string foreign = folder + "/letter.tmp." + std::to_string(zombie);
  for (const std::string& path : {orphan, reused, foreign}) write_text(path, "x");
  duet::prepare_checkpoint_folder(folder);
  CHECK_FALSE(std::filesystem::exists(orphan));
  CHECK_FALSE(std::filesystem::exists(reused));
  CHECK(std::filesystem::exists(elsewhere));
  CHECK(std::filesystem::exists(foreign));
  CHECK(::waitpid(zombie, nullptr, 0) == zombie);
  ::close(writing);
  duet::prepare_checkpoint_folder(folder);
  CHECK_FALSE(std::filesystem::exists(elsewhere));
}

TEST_CASE("a save does not touch the temporary file of another writer with its number") {
  const Scratch scratch;
  const std::string taken = scratch.path("file.tmp.") + std::to_string(::getpid());
  write_text(taken, "of another host");
  const int writing = ::open(taken.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(::flock(writing, LOCK_EX) == 0);
  duet::write_atomically(scratch.path("file"), std::string("text"));
  CHECK(read_text(scratch.path("file")) == "text");
  CHECK(read_text(taken) == "of another host");
  ::close(writing);
  duet::write_atomically(scratch.path("file"), std::string("other"));
  CHECK(scratch.names() == Names{"file"});
}

TEST_CASE("a folder that cannot be written is found before training") {
  const Scratch scratch;
  write_text(scratch.path("file"), "x");
  CHECK_THROWS_AS(duet::prepare_checkpoint_folder(scratch.path("file")), DataError);
  CHECK_THROWS_AS(duet::prepare_checkpoint_folder(scratch.path("file/below")), DataError);
  CHECK_THROWS_WITH(duet::prepare_checkpoint_folder("/proc/1"), ContainsSubstring("cannot open /proc/1"));

  // Root may write anywhere, so the rest of the test needs another user.
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  std::filesystem::create_directory(scratch.path("locked"));
  ::chmod(scratch.folder().c_str(), 0755);
  ::chmod(scratch.path("locked").c_str(), 0555);
  if (user == 0) REQUIRE(::seteuid(kNobody) == 0);
  const std::string said = error_of<DataError>([&] { duet::prepare_checkpoint_folder(scratch.path("locked")); });
  if (user == 0) REQUIRE(::seteuid(user) == 0);
  CHECK_THAT(said, ContainsSubstring(scratch.path("locked")) && ContainsSubstring("Permission denied"));
}

TEST_CASE("a file that announces other tensors than the model has is refused after its header") {
  const Scratch scratch;
  constexpr off_t kBytes = off_t{1} << 36;  // of zeros, which take no room on the disk
  const auto huge = [&](const std::string& path, const std::string& name, off_t bytes) {
    const std::string metadata = R"("__metadata__":{"arch":"SimpleCNN","epoch":"0","step":"10","best_acc1":"0"})";
    std::string header = duet::concat("{", metadata, ",\"", name, R"(":{"dtype":"U8","shape":[)", bytes,
                                      R"(],"data_offsets":[0,)", bytes, "]}}");
    std::string file;
    for (std::size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
    write_text(path, file + header);
    REQUIRE(::truncate(path.c_str(), static_cast<off_t>(8 + header.size()) + bytes) == 0);
  };
  const duet::NamedTensors model = {{"fc.weight", duet::zeros({2})}};
  const auto load = [&](const std::string& from) { return duet::load_checkpoint(from, "SimpleCNN", model); };
  const std::string path = scratch.path("checkpoint-00000010.safetensors");
  huge(path, "foreign", kBytes);
  CHECK_THROWS_WITH(load(path), ContainsSubstring("is of another model: it has the tensor \"foreign\""));
  for (const char* name : {"fc.weight", "optimizer.fc.weight.exp_avg", "module.fc.weight"}) {
    huge(path, name, kBytes);
    CHECK_THROWS_WITH(load(path), ContainsSubstring("u8[68719476736], expected f32[2]"));
  }
  CHECK_THROWS_WITH(load(scratch.folder()),
                    ContainsSubstring("holds no valid checkpoint") && ContainsSubstring("expected f32[2]"));
  duet::Checkpoint own = filled_at_step(9);
  own.optimizer = {{"fc.weight.exp_avg", duet::zeros({2})},
                   {"fc.weight.exp_avg_sq", duet::zeros({2})},
                   {"fc.weight.step", duet::zeros({1})}};
  duet::save_checkpoint(scratch.folder(), own);
  const auto loaded = load(scratch.folder());
  CHECK(loaded.checkpoint.step == 9);
  REQUIRE(loaded.warnings.size() == 1);
  CHECK_THAT(loaded.warnings[0], ContainsSubstring(path) && ContainsSubstring("is of another model"));
  CHECK_THROWS_WITH(duet::prepare_checkpoint_folder(scratch.folder(), 9, model),
                    ContainsSubstring("holds a checkpoint of step 10"));
  CHECK_THROWS_WITH(duet::load_checkpoint(loaded.path, "ASimpleNet", model),
                    ContainsSubstring("is of the model \"SimpleCNN\", expected \"ASimpleNet\""));
}

TEST_CASE("a model whose checkpoint can't be written fails when its folder is prepared") {
  const Scratch scratch;
  const std::string folder = scratch.path("ck");
  const duet::Tensor one = duet::zeros({1});
  const auto prepare = [&](const duet::NamedTensors& model) { duet::prepare_checkpoint_folder(folder, 0, model); };
  CHECK_THROWS_WITH(prepare({{"\xff", one}}), ContainsSubstring("a name or value is not UTF-8"));
  CHECK_THROWS_WITH(prepare({{"a", one}, {"a", one}}), ContainsSubstring("reserved or given twice"));
  CHECK_THROWS_WITH(prepare({{"__metadata__", one}}), ContainsSubstring("reserved or given twice"));
  // With the optimizer's names.
  CHECK_THROWS_WITH(prepare({{std::string(30'000'000, 'a'), one}}), ContainsSubstring("expected at most 100000000"));
  CHECK_NOTHROW(prepare({{"a", one}}));
}
