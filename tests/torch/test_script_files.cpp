// TorchScript files: as networks of duet's, and as steps that `duet bench step` times.
#include <torch/script.h>
#include <torch/torch.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "ddp/script_steps.h"
#include "lib/nn/network_module.h"
#include "lib/shape.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using duet::Shape;
using duet::zeros;
using duet_test::Approx;
using duet_test::ContainsSubstring;
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
  CHECK_THROWS_WITH(nn::load_script_network(file, {3, 9, 9}), ContainsSubstring("LibTorch: "));
  CHECK_THROWS_WITH(nn::load_script_network(file, {1, 8, 8}),
                    ContainsSubstring("LibTorch: ") && ContainsSubstring("three channels"));
  duet_test::write_text(file, "no archive");
  CHECK_THROWS_WITH(nn::load_script_network(file, {1, 8, 8}), ContainsSubstring("net.pt: cannot load TorchScript: "));
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
