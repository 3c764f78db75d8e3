// The tutorial's own training on the real MNIST, against losses recorded from PyTorch with its generator.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/data/dataset.h"
#include "lib/data/mnist/mnist.h"
#include "lib/ops/losses.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "train/setup.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;

namespace {

/// A rank whose peers are run by the same thread; it never communicates.
class LockStep final : public ddp::ProcessGroup {
 public:
  LockStep(int rank, int size) : ProcessGroup(rank, size) {}
  const char* backend() const override { return "lock step"; }

 protected:
  std::unique_ptr<ddp::ProcessGroup> connect_subset(const ddp::Subset&) const override { return nullptr; }
  ddp::Work start(const ddp::Call&) override { return {}; }
};

std::optional<data::Mnist> real_mnist() {
  for (const char* name : {"DUET_DATA", "DUET_SOURCE_ROOT"}) {
    const char* place = std::getenv(name);
    if (!place) continue;
    const std::filesystem::path folder =
        std::string(name) == "DUET_DATA" ? place : std::string(place) + "/../shared/data";
    const auto files = data::find_mnist(folder, data::MnistKind::mnist);
    if (files.complete()) return data::read_mnist(files, data::MnistKind::mnist);
  }
  return std::nullopt;
}

/// `train` must outlive them.
Images images_of(const data::Dataset& train) {
  return {.train = std::shared_ptr<const data::Dataset>(std::shared_ptr<void>(), &train),
          .test = nullptr,
          .name = "",
          .description = ""};
}

/// The first `steps` losses of every rank of the tutorial's program with `size` ranks.
std::vector<std::vector<float>> first_losses(const data::Dataset& train, int size, int steps) {
  TrainOptions options;
  options.mode = Mode::averaging;
  options.devices = size;
  options.compat = Compat::torch;
  std::vector<std::unique_ptr<LockStep>> groups;
  std::vector<Setup> ranks;
  std::vector<data::Loader::Iterator> batches;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(std::make_unique<LockStep>(rank, size));
    ranks.push_back(make_setup(options, images_of(train), *groups.back()));
    batches.push_back(ranks.back().loader->begin());
  }
  std::vector<std::vector<float>> losses(static_cast<std::size_t>(steps));
  for (auto& of_step : losses) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].optimizer->zero_grad();
      const Variable loss = ops::nll_loss(ranks[r].net()(batches[r]->images), batches[r]->labels);
      of_step.push_back(loss.item());
      loss.backward();
      ++batches[r];
    }
    const std::span<float> mean = ranks[0].model().parameters().gradients().span<float>();
    for (std::size_t i = 0; i < mean.size(); ++i) {
      for (std::size_t r = 1; r < ranks.size(); ++r)
        mean[i] += ranks[r].model().parameters().gradients().span<float>()[i];
      mean[i] /= static_cast<float>(size);
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (r > 0) copy(ranks[0].model().parameters().gradients(), ranks[r].model().parameters().gradients());
      ranks[r].optimizer->step();
    }
  }
  return losses;
}

/// The means over the ranks of the first losses of `--compat torch --mode ddp`.
std::vector<double> ddp_losses(const data::Dataset& train, int size, std::size_t steps) {
  TrainOptions options;
  options.mode = Mode::ddp;
  options.devices = size;
  options.compat = Compat::torch;
  options.batch = 60;
  options.lr = 0.05;
  options.seed = 7;
  std::mutex mutex;
  std::vector<double> means(steps);
  run_ranks(Over::shm, size, [&](ddp::ProcessGroup& group) {
    const Device device{DeviceKind::cpu, group.rank()};
    Setup rank = make_setup(options, images_of(train), group, {device});
    auto batch = rank.loader->begin();
    for (double& mean : means) {
      rank.optimizer->zero_grad();
      const Variable loss = ops::nll_loss(rank.net()(batch->images.alias(device)), batch->labels.alias(device));
      {
        const std::lock_guard lock(mutex);
        mean += static_cast<double>(loss.item()) / size;
      }
      loss.backward();
      rank.optimizer->step();
      ++batch;
    }
  });
  return means;
}

}  // namespace

TEST_CASE("--compat torch --mode ddp has the losses of PyTorch's DistributedDataParallel on 2, 3 and 4 ranks") {
  const auto mnist = real_mnist();
  if (!mnist) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  std::vector<std::int64_t> first(600);
  std::iota(first.begin(), first.end(), 0);
  const data::Subset train(mnist->train, first);
  // PyTorch 2.15 on CPU over gloo: DistributedSampler(seed=7), batches of 60 / ranks, SGD(lr=0.05, momentum=0.5).
  const std::map<int, std::vector<double>> recorded = {
      {2, {2.31112, 2.31551, 2.26986, 2.26143, 2.31347, 2.25960}},
      {3, {2.29869, 2.28825, 2.26394, 2.25879, 2.31393, 2.25844}},
      {4, {2.33353, 2.29494, 2.27938, 2.24841, 2.26373, 2.23043}},
  };
  for (const auto& [size, expected] : recorded) {
    const std::vector<double> got = ddp_losses(train, size, expected.size());
    for (std::size_t step = 0; step < expected.size(); ++step) {
      INFO(size << " ranks, step " << step << ": " << got[step] << ", recorded " << expected[step]);
      CHECK(std::fabs(got[step] - expected[step]) < 5e-5);
    }
  }
}

TEST_CASE("the tutorial's losses on 1, 2 and 4 ranks") {
  const auto mnist = real_mnist();
  if (!mnist) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  const auto one = first_losses(mnist->train, 1, 3);
  const auto two = first_losses(mnist->train, 2, 3);
  const auto four = first_losses(mnist->train, 4, 3);
  const auto close = [](const std::vector<float>& got, const std::vector<double>& expected, double tolerance) {
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO("rank " << i << ": " << got[i] << ", recorded " << expected[i]);
      CHECK(std::fabs(static_cast<double>(got[i]) - expected[i]) < tolerance);
    }
  };
  close(one[0], {2.324996}, 1e-5);
  close(one[1], {2.314517}, 1e-4);
  close(one[2], {2.320168}, 1e-4);
  close(two[0], {2.288114, 2.306412}, 1e-5);
  close(two[1], {2.325903, 2.309914}, 1e-4);
  close(two[2], {2.312059, 2.307460}, 1e-4);
  close(four[0], {2.290099, 2.302217, 2.296123, 2.333001}, 1e-5);
  close(four[2], {2.253739, 2.312598, 2.323469, 2.325662}, 1e-4);
}
