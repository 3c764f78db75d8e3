// The from-scratch tutorial on the real MNIST: every draw of every rank in the tutorial's order, and its losses.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/data/mnist/mnist.h"
#include "lib/data/partitioner.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

/// The real MNIST in $DUET_DATA or shared/data next to the source tree; read once.
const data::Mnist* real_mnist() {
  static const std::optional<data::Mnist> mnist = []() -> std::optional<data::Mnist> {
    std::vector<std::filesystem::path> places;
    if (const char* const data = std::getenv("DUET_DATA")) places.emplace_back(data);
    if (const char* const root = std::getenv("DUET_SOURCE_ROOT"))
      places.push_back(std::filesystem::path(root) / "../shared/data");
    for (const auto& place : places) {
      const data::MnistFiles files = data::find_mnist(place, data::MnistKind::mnist);
      if (files.complete()) return data::read_mnist(files, data::MnistKind::mnist);
    }
    return std::nullopt;
  }();
  return mnist ? &*mnist : nullptr;
}

/// One rank of the tutorial: its part of the data in its order, its model, and its generator.
struct Rank {
  Rank(const data::Dataset& all, int rank, int size) : data_set(all), batch(128 / size) {
    const data::IndexLists parts =
        data::partition_indices(all.size(), data::equal_fractions(size), {.warn = [](const std::string&) {}});
    const std::vector<std::int64_t>& part = parts[static_cast<std::size_t>(rank)];
    model.context().stream = &generator;
    generator.random_int64();  // the loader's base seed
    Mt19937 sampler(static_cast<std::uint64_t>(generator.random_int64()));
    for (const std::int64_t i : sampler.randperm(static_cast<std::int64_t>(part.size())))
      order.push_back(part[static_cast<std::size_t>(i)]);
  }
  /// Loss of batch number `step`; leaves its gradient in the model.
  float backward(std::size_t step) {
    const auto n = static_cast<std::size_t>(batch);
    const Tensor images = empty({batch, 1, 28, 28}), labels = empty({batch}, DType::i64);
    data_set.fetch({order.data() + step * n, n}, images, labels);
    opt.zero_grad();
    const Variable loss = ops::nll_loss(model(images), labels);
    loss.backward();
    return loss.item();
  }

  const data::Dataset& data_set;
  std::int64_t batch;
  Mt19937 generator{1234};
  nn::SimpleCNN model{generator};
  optim::SGD opt{model, {.lr = 0.01f, .momentum = 0.5f}};
  std::vector<std::int64_t> order;
};

struct Run {
  explicit Run(int size) {
    for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<Rank>(real_mnist()->train, r, size));
  }
  /// The losses of all ranks; averages their gradients as the tutorial does, the sum first, and updates.
  std::vector<float> step() {
    std::vector<float> losses;
    for (const auto& rank : ranks) losses.push_back(rank->backward(count));
    ++count;
    const Tensor sum = ranks[0]->model.parameters().gradients().clone();
    for (std::size_t r = 1; r < ranks.size(); ++r) backend(sum).add(sum, ranks[r]->model.parameters().gradients(), sum);
    for (float& value : sum.span<float>()) value /= static_cast<float>(ranks.size());
    for (const auto& rank : ranks) {
      copy(sum, rank->model.parameters().gradients());
      rank->opt.step();
    }
    return losses;
  }
  std::vector<std::unique_ptr<Rank>> ranks;
  std::size_t count = 0;
};

void check(const std::vector<float>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(static_cast<double>(got[i]) - expected[i]) < 1e-4);
}

void check_order(const Rank& rank, const std::vector<std::int64_t>& first) {
  CHECK(std::vector<std::int64_t>(rank.order.begin(), rank.order.begin() + static_cast<std::ptrdiff_t>(first.size())) ==
        first);
}

}  // namespace

TEST_CASE("the tutorial's first losses on MNIST, one rank") {
  if (!real_mnist()) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  Run run(1);
  check_order(*run.ranks[0], {48449, 25898, 824, 49676, 10817, 40530});
  for (const double loss : {2.324996, 2.314517, 2.320168}) check(run.step(), {loss});
}

TEST_CASE("the tutorial's first losses on MNIST, two ranks") {
  if (!real_mnist()) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  Run run(2);
  check_order(*run.ranks[0], {8559, 23730, 7840, 1446});
  check_order(*run.ranks[1], {48449, 12905, 39526, 17904});
  check(run.step(), {2.288114, 2.306412});
  check(run.step(), {2.325903, 2.309914});
  check(run.step(), {2.312059, 2.307460});
}

TEST_CASE("the tutorial's first losses on MNIST, four ranks") {
  if (!real_mnist()) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  Run run(4);
  check(run.step(), {2.290099, 2.302217, 2.296123, 2.333001});
  run.step();
  check(run.step(), {2.253739, 2.312598, 2.323469, 2.325662});
}
