// TorchScript files as networks of duet's, and their steps.
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "ddp/script_steps.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/nn/network_module.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"
#include "tests/support/scratch.h"

// Not all of duet: its namespace torch would be as good as LibTorch's.
using duet::Shape;
using duet::zeros;
using namespace duet_test;
using duet_test::Approx;
namespace nn = duet::nn;

namespace {

/// Of a network of samples of (3, 8, 8), with 4 classes.
std::string script_file(const duet_test::Scratch& scratch) {
  std::string file = scratch.path("net.pt");
  ::torch::jit::Module script("Net");
  script.register_parameter("weight", ::torch::full({3 * 8 * 8, 4}, 0.25).requires_grad_(), false);
  script.define(
      "def forward(self, x):\n"
      "    assert x.size(1) == 3, 'three channels'\n"
      "    return torch.flatten(x, 1).matmul(self.weight)\n");
  script.save(file);
  return file;
}

}  // namespace

TEST_CASE("a TorchScript file is a network") {
  const duet_test::Scratch scratch;
  const std::string file = script_file(scratch);
  const Shape sample{3, 8, 8};  // with a name, as GCC 14 takes the reference for one into it
  const nn::NetworkModule& network = nn::load_script_network(file, sample);
  CHECK(network.classes == 4);
  const auto model = nn::make_network(network, file, sample, 4);
  CHECK((*model)(zeros({2, 3, 8, 8})).shape() == Shape{2, 4});
  CHECK(model->parameter_count() == 3 * 8 * 8 * 4);
}

TEST_CASE("a file of another kind, or for other samples than its network takes, is an error of one line") {
  const duet_test::Scratch scratch;
  const std::string file = script_file(scratch);
  const std::string fails = file + ": fails on samples of ", options = " (--input, --image-size): LibTorch: ";
  const auto message = [&](const Shape& sample) {
    try {
      nn::load_script_network(file, sample);
    } catch (const duet::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message({3, 9, 9}).starts_with(fails + "3x9x9" + options));
  CHECK(message({3, 9, 9}).ends_with("shapes cannot be multiplied (1x243 and 192x4)"));
  CHECK(message({1, 8, 8}).starts_with(fails + "1x8x8" + options));
  CHECK(message({1, 8, 8}).ends_with("three channels"));
  duet_test::write_text(file, "\1no archive");
  CHECK(message({3, 8, 8}).starts_with(file + ": cannot load TorchScript: "));
  CHECK_THAT(message({3, 8, 8}), !ContainsSubstring("corrupted"));
  const std::vector<char> pickled = ::torch::jit::pickle_save(::torch::zeros({2}));
  duet_test::write_text(file, std::string(pickled.begin(), pickled.end()));
  CHECK(message({3, 8, 8}) ==
        file + ": expected TorchScript, torch.jit.script(model).save(FILE), but it is of torch.save");
  duet_test::write_text(file, std::string("\x80\2\x8a\x0al\xfc\x9c\x46\xf9 "));
  CHECK(message({3, 8, 8}).ends_with("but it is a Python pickle, such as a legacy file of torch.save"));
}

TEST_CASE("a TorchScript file tells its fixed mode and its fixed batch size") {
  const duet_test::Scratch scratch;
  const Shape sample{3, 8, 8};
  /// Loads a network whose forward is this, and returns what is said.
  const auto load = [&](const std::string& name, const std::string& body) {
    ::torch::jit::Module script("Net");
    script.register_parameter("weight", ::torch::full({192, 4}, 0.25).requires_grad_(), false);
    script.register_attribute("training", c10::BoolType::get(), true);
    script.define("def forward(self, x):\n    return " + body + "\n");
    script.save(scratch.path(name));
    const duet_test::Said said;
    nn::load_script_network(scratch.path(name), sample);
    return said.text();
  };
  const std::string product = "torch.flatten(x, 1).matmul(self.weight)";
  CHECK(load("plain", "torch.dropout(" + product + ", 0.5, self.training)").empty());
  CHECK_THAT(load("train", "torch.dropout(" + product + ", 0.5, True)"),
             ContainsSubstring("evaluation and training run dropout as training does: was traced in train() mode"));
  CHECK_THAT(load("eval", "torch.dropout(" + product + ", 0.5, False)"),
             ContainsSubstring("evaluation and training run dropout as evaluation does: was traced in eval() mode"));
  for (const int batch : {1, 8})
    CHECK_THROWS_WITH(
        load("fixed" + std::to_string(batch), "x.view(" + std::to_string(batch) + ", 192).matmul(self.weight)"),
        ContainsSubstring("takes batches of " + std::to_string(batch) +
                          (batch == 1 ? " sample only" : " samples only")));
}

TEST_CASE("a frozen TorchScript file cannot be trained") {
  const duet_test::Scratch scratch;
  const std::string file = scratch.path("frozen.pt");
  auto script = ::torch::jit::load(script_file(scratch));
  script.eval();
  ::torch::jit::freeze(script).save(file);
  const Shape sample{3, 8, 8};
  CHECK_THROWS_AS(nn::load_script_network(file, sample), duet::DataError);
  CHECK_THROWS_WITH(nn::load_script_network(file, sample),
                    file + ": has no parameters that require a gradient (torch.jit.freeze turns them into constants)");
}

TEST_CASE("steps of a TorchScript file bring gradients together by the wrapper as by averaging") {
  using duet::ddp::ScriptSync;
  const duet_test::Scratch scratch;
  duet::ddp::ScriptStepsOptions options = {
      .file = script_file(scratch), .sample_shape = {3, 8, 8}, .classes = 4, .images = 64, .rows = 8};
  const auto steps_of = [&](ScriptSync sync, bool synchronises) {
    options.sync = sync;
    std::vector<std::vector<duet::ddp::ScriptStepTimes>> ranks(2);
    duet::ddp::run_rank_threads(2,
                                [&](duet::ddp::ProcessGroup& group) {
                                  const auto steps = duet::ddp::make_script_steps(options, group);
                                  for (int i = 0; i < 4; ++i)
                                    ranks[static_cast<std::size_t>(group.rank())].push_back(steps->run(synchronises));
                                },
                                {.backend = "memory"});
    return ranks;
  };
  const auto wrapped = steps_of(ScriptSync::wrapper, true), averaged = steps_of(ScriptSync::averaged, true);
  const auto none = steps_of(ScriptSync::none, true), no_sync = steps_of(ScriptSync::wrapper, false);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(wrapped[rank][3].loss == Approx(averaged[rank][3].loss));
    CHECK(none[rank][3].loss == Approx(no_sync[rank][3].loss));
    CHECK(wrapped[rank][3].loss != Approx(none[rank][3].loss).epsilon(1e-3));
    CHECK(averaged[rank][3].exposed > 0);
    CHECK(wrapped[rank][3].communication > 0);
    CHECK(wrapped[rank][3].communication >= wrapped[rank][3].exposed);
    CHECK(no_sync[rank][3].communication == 0);
    CHECK(none[rank][3].exposed == 0);
  }
  duet::ddp::SoloGroup alone;
  options.rows = options.images;
  CHECK_THROWS_WITH(duet::ddp::make_script_steps(options, alone), "64 images for 1 ranks with batches of 64");
  options.file = scratch.path("nothing.pt");
  CHECK_THROWS_WITH(duet::ddp::make_script_steps(options, alone), ContainsSubstring("cannot load TorchScript"));
}
