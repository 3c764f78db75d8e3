// Trainings that go on from a checkpoint of any step, on another number of devices.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/device.h"
#include "lib/io/checkpoint.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/module.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/parse_number.h"
#include "lib/position.h"
#include "lib/random.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;

namespace {

constexpr std::int64_t kFeatures = 6, kClasses = 3, kEpochs = 2;
constexpr const char* kArch = "Network";

/// Rows with noise that is drawn by epoch and number, as augmentation draws.
class Noisy : public data::Dataset {
 public:
  explicit Noisy(std::int64_t count) : count_(count) {}
  std::int64_t size() const override { return count_; }
  Shape sample_shape() const override { return {kFeatures}; }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    fetch_in_epoch(0, indices, samples, labels);
  }
  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override {
    for (std::size_t row = 0; row < indices.size(); ++row) {
      Mt19937(static_cast<std::uint64_t>(epoch * count_ + indices[row]))
          .randn(samples.span<float>().subspan(row * kFeatures, kFeatures));
      labels.data<std::int64_t>()[row] = indices[row] % kClasses;
    }
  }

 private:
  std::int64_t count_;
};

/// Its dropout draws by the step.
class Network : public nn::Module {
 public:
  Network() {
    register_module("first", first_);
    register_module("dropout", dropout_);
    register_module("second", second_);
    initialise(5);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return nn::chain(context, x, {first_, relu_, dropout_, second_, log_softmax_});
  }
  using nn::Module::forward;

 private:
  nn::Linear first_{kFeatures, 8}, second_{8, kClasses};
  nn::Dropout dropout_{0.3};
  nn::ReLU relu_;
  nn::LogSoftmax log_softmax_;
};

struct Place {
  std::string mode = "single";  // or "dp", "ddp"
  int devices = 1;
  int workers = 0;  // of the loader
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.mode << " " << place.devices << " (" << place.workers << " workers)";
}

struct Draw {
  Place first, second;
  std::int64_t rows = 0, batch = 0, stop = 0;  // `stop`: steps before the checkpoint
  int blocks = 8;
  bool drop_last = false;
  std::int64_t steps() const { return rows / batch + (!drop_last && rows % batch != 0 ? 1 : 0); }
};

Draw draw_of(std::uint64_t seed) {
  Mt19937 random(seed);
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random.random()) % end; };
  const auto place = [&] {
    constexpr const char* kModes[] = {"single", "dp", "ddp"};
    Place drawn{.mode = kModes[below(3)]};
    if (drawn.mode != "single") drawn.devices = static_cast<int>(1 + below(8));
    drawn.workers = static_cast<int>(below(3));
    return drawn;
  };
  Draw draw{.first = place(), .second = place()};
  draw.batch = 1 + below(24);
  draw.rows = draw.batch + below(60);
  draw.drop_last = below(2) == 0;
  draw.stop = below(kEpochs * draw.steps() + 1);
  draw.blocks = 8 << below(3);
  return draw;
}

/// A training, or a part of it.
struct Part {
  Draw draw = {};
  Place place = {};
  std::string folder = {};  // of the checkpoint
  std::int64_t stop = -1;   // where it ends with a checkpoint; -1: goes on from one, where a folder is given
};

struct Left {
  std::int64_t steps = 0;      // of this part
  std::vector<float> numbers;  // of the model and its optimizer
};

Left train(const Part& part, nn::Module& model, nn::Module& net, int rank, int ranks) {
  const Draw& draw = part.draw;
  const Noisy rows(draw.rows);
  data::Loader loader(
      rows,
      std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::RandomSampler>(rows.size(), 3),
                                                 samplers::BlockedOptions{.global_batch = draw.batch,
                                                                          .drop_last = draw.drop_last,
                                                                          .world_size = ranks,
                                                                          .rank = rank,
                                                                          .blocks = draw.blocks}),
      {.workers = part.place.workers});
  optim::AdamW optimizer(model, {.lr = 0.05f});
  std::int64_t step = 0;
  if (!part.folder.empty() && part.stop < 0) {
    const LoadedCheckpoint loaded = load_checkpoint(part.folder, kArch, model.state_dict());
    restore(loaded, kArch, model.state_dict());
    optimizer.load_state(loaded.checkpoint.optimizer);
    loader.set_position(loaded.checkpoint.position);
    step = loaded.checkpoint.step;
  }
  Left left;
  while (step != part.stop && loader.position().epoch < kEpochs)
    for (const auto& [samples, labels] : loader) {
      optimizer.zero_grad();
      ops::nll_loss(net(samples), labels).backward();
      optimizer.step();
      ++left.steps;
      if (++step == part.stop) break;
    }
  if (rank == 0 && part.stop >= 0)
    save_checkpoint(part.folder, {.position = loader.position(),
                                  .step = step,
                                  .arch = kArch,
                                  .model = model.state_dict(),
                                  .optimizer = optimizer.state()});
  NamedTensors all = model.state_dict();
  for (NamedTensor& buffer : optimizer.state()) all.push_back(std::move(buffer));
  for (const auto& [name, tensor] : all)
    left.numbers.insert(left.numbers.end(), tensor.span<float>().begin(), tensor.span<float>().end());
  return left;
}

/// What rank 0 has in the end.
Left train(const Part& part) {
  Left left;
  if (part.place.mode == "ddp") {
    const auto body = [&](ddp::ProcessGroup& group) {
      Network model;
      ddp::DistributedDataParallel net(model, group);
      Left own = train(part, model, net, group.rank(), group.size());
      if (group.rank() == 0) left = std::move(own);
    };
    ddp::run_rank_threads(part.place.devices, body, {.backend = "memory"});
    return left;
  }
  Network model;
  if (part.place.mode == "single") return train(part, model, model, 0, 1);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, part.place.devices)});
  return train(part, model, net, 0, 1);
}

void check_draw(std::uint64_t seed) {
  const Draw draw = draw_of(seed);
  INFO("DUET_DRAW=" << seed << " test_checkpoint 'a training that stops*': " << draw.first << " -> " << draw.second
                    << ", " << draw.rows << " rows in batches of " << draw.batch
                    << (draw.drop_last ? ", whole ones only" : "") << ", stops after step " << draw.stop << " of "
                    << kEpochs * draw.steps() << ", " << draw.blocks << " blocks");
  const duet_test::Scratch scratch;
  const Left whole = train({.draw = draw});
  const Left first = train({draw, draw.first, scratch.folder(), draw.stop});
  const Left resumed = train({draw, draw.second, scratch.folder()});
  CHECK(whole.steps == kEpochs * draw.steps());
  CHECK(first.steps == draw.stop);
  CHECK(resumed.steps == whole.steps - draw.stop);
  CHECK(resumed.numbers == whole.numbers);
}

}  // namespace

TEST_CASE("a training that stops after any step goes on in any mode, on any number of devices, to the same bits") {
  constexpr std::uint64_t kDraws = 100;
  if (const char* const one = std::getenv("DUET_DRAW")) {
    check_draw(parse_number<std::uint64_t>(one).value());
    return;
  }
  for (std::uint64_t seed = 1; seed <= kDraws; ++seed) check_draw(seed);
}
