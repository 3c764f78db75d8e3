// ResNet-18 learns Fashion-MNIST, a training as people do it: alone, under DataParallel and under
// DistributedDataParallel, with the same bits. docs/howto/imagenet.md shows what comes out.
//
//   fashion_mnist [MODE [DEVICES [EPOCHS [WIDTH [IMAGES [FOLDER]]]]]]
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/data/mnist/mnist.h>
#include <duet/lib/error.h>
#include <duet/lib/io/checkpoint.h>
#include <duet/lib/io/folder.h>
#include <duet/lib/nn/resnet.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/lr_scheduler.h>
#include <duet/lib/optim/sgd.h>
#include <duet/lib/random.h>
#include <duet/samplers/batch.h>
#include <duet/samplers/sequential.h>

#include "modes.h"
#include "program.h"

using namespace duet;

namespace {

constexpr std::int64_t kBatch = 128, kTestBatch = 500, kSide = 28;
constexpr std::uint32_t kShift = 1;  // pixels, in each direction
constexpr std::int64_t kSteps = 50;  // from one printed loss, and checkpoint, to the next
constexpr std::uint64_t kSeed = 1;
constexpr const char* kArch = "ResNet-18";

class Network : public nn::ResNet {
 public:
  explicit Network(std::int64_t width)
      : ResNet(18,
               {.classes = 10, .in_channels = 1, .width = width, .stem = nn::Stem::cifar, .sync_batch_norm = true}) {
    initialise(kSeed);
  }
};

/// Images that are moved by up to kShift pixels, half of them mirrored. Drawn by epoch and number of the image, so that
/// an image is the same on any device.
class Augmented : public data::DatasetWrapper {
 public:
  explicit Augmented(const data::ImageDataset& set)
      : DatasetWrapper(set), ground_(-set.pixels().mean / set.pixels().deviation) {}

  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override {
    DatasetWrapper::fetch_in_epoch(epoch, indices, samples, labels);
    float* pixels = samples.data<float>();
    for (const std::int64_t index : indices) {
      Philox random(kSeed, static_cast<std::uint64_t>(epoch << 32 | index));
      move(random, std::span(pixels, kSide * kSide));
      pixels += kSide * kSide;
    }
  }

 private:
  void move(Philox& random, std::span<float> pixels) const {
    const std::int64_t down = std::int64_t{random.below(2 * kShift + 1)} - kShift;
    const std::int64_t right = std::int64_t{random.below(2 * kShift + 1)} - kShift;
    const bool mirrored = random.below(2) == 1;
    const std::vector<float> old(pixels.begin(), pixels.end());
    for (std::int64_t y = 0; y < kSide; ++y) {
      for (std::int64_t x = 0; x < kSide; ++x) {
        const std::int64_t from_y = y - down, from_x = (mirrored ? kSide - 1 - x : x) - right;
        const bool inside = std::min(from_y, from_x) >= 0 && std::max(from_y, from_x) < kSide;
        pixels[static_cast<std::size_t>(y * kSide + x)] =
            inside ? old[static_cast<std::size_t>(from_y * kSide + from_x)] : ground_;
      }
    }
  }

  float ground_;
};

struct Result {
  double loss = 0, accuracy = 0;  // mean; per cent
};

Result test(nn::Module& model, const data::ImageDataset& unseen) {
  const NoGrad no_grad;
  model.eval();
  auto order = std::make_unique<samplers::SequentialSampler>(unseen.size());
  data::Loader loader(
      unseen, std::make_unique<samplers::Batches>(std::move(order), samplers::BatchOptions{.batch_size = kTestBatch}));
  double losses = 0;
  std::int64_t right = 0;
  for (auto& [images, labels] : loader) {
    const Variable logits = model(images);
    losses += static_cast<double>(ops::cross_entropy(logits, labels).item()) * static_cast<double>(labels.count());
    const std::span<const float> values = logits.value().span<float>();
    for (std::size_t row = 0; row < labels.span<std::int64_t>().size(); ++row) {
      const auto chances = values.subspan(row * 10, 10);
      right += std::ranges::max_element(chances) - chances.begin() == labels.data<std::int64_t>()[row];
    }
  }
  model.train();
  const auto all = static_cast<double>(unseen.size());
  return {.loss = losses / all, .accuracy = 100 * static_cast<double>(right) / all};
}

struct Options {
  std::int64_t epochs;
  std::string folder;  // where checkpoints are read and written; empty: none are
  data::Mnist data;
};

/// `net` is the model itself, or a wrapper around it.
void train(nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group, const Options& options) {
  const Augmented seen(options.data.train);
  data::Loader loader(seen, examples::shuffled(seen, kBatch, group));
  const std::int64_t steps = options.epochs * loader.steps(), rising = (steps + 4) / 5;
  optim::SGD opt(model, {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f});
  const optim::LinearLR warm_up(opt, 0.1, 1, rising);
  const optim::CosineAnnealingLR cosine(opt, steps - rising + 1);
  optim::SequentialLR schedule(opt, {&warm_up, &cosine}, {rising});

  if (examples::rank_of(group) == 0) std::printf("data: %s\n", options.data.origin.c_str());
  const auto saves = [&] { return examples::rank_of(group) == 0 && !options.folder.empty(); };
  std::optional<FolderLock> lock;  // no other run writes there meanwhile
  if (saves()) lock.emplace(prepare_checkpoint_folder(options.folder, INT64_MAX));
  if (!options.folder.empty() && holds_checkpoint(options.folder)) {
    LoadedCheckpoint loaded = load_checkpoint(options.folder, kArch, model.state_dict());
    opt.load_state(std::exchange(loaded.checkpoint.optimizer, {}));
    restore(loaded, kArch, model.state_dict());
    schedule.set_steps(loaded.checkpoint.step);
    loader.set_position(loaded.checkpoint.position);
  }

  for (std::int64_t epoch = loader.position().epoch; epoch < options.epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    double losses = 0;  // of the rows of this rank
    std::int64_t rows = 0, all_rows = 0;
    for (auto& [images, labels] : loader) {
      opt.zero_grad();
      const Variable loss = ops::cross_entropy(net(images), labels);
      loss.backward();
      opt.step();
      schedule.step();
      losses += static_cast<double>(loss.item()) * static_cast<double>(labels.count());
      rows += labels.count();
      all_rows += labels.stamp().global;
      if (!saves() || schedule.steps() % kSteps != 0) continue;
      save_checkpoint(options.folder, {.position = loader.position(),
                                       .step = schedule.steps(),
                                       .arch = kArch,
                                       .model = model.state_dict(),
                                       .optimizer = opt.state()});
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const Result tested = test(model, options.data.test);  // on all ranks: none of them waits for another one's test
    if (examples::rank_of(group) != 0) continue;
    std::printf("epoch %lld: %.1f images/s, loss %.4f, test loss %.4f, accuracy %.2f %%\n",
                static_cast<long long>(epoch + 1), static_cast<double>(all_rows) / seconds.count(),
                losses / static_cast<double>(std::max<std::int64_t>(rows, 1)), tested.loss, tested.accuracy);
    std::fflush(stdout);
  }
  if (examples::rank_of(group) == 0) examples::print_digest(model);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage =
      "[MODE [DEVICES [EPOCHS [WIDTH [IMAGES [FOLDER]]]]]]\n"
      "MODE: single, dp or ddp; WIDTH: channels of the first convolution; FOLDER: of checkpoints, which it also "
      "resumes";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    const Options options{.epochs = arguments.number(2, 5, 1000),
                          .folder = arguments.text(5),
                          .data = data::load_mnist({.kind = data::MnistKind::fashion_mnist,
                                                    .train_images = arguments.number(4, 60'000, 60'000)})};
    require<DataError>(!options.data.drawn,
                       "found no Fashion-MNIST: Debian's package dataset-fashion-mnist has it, or "
                       "$DUET_DATA names its folder");
    return examples::run_in_mode(
        arguments, [&] { return Network(arguments.number(3, 64, 512)); },
        [&](nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group) { train(model, net, group, options); });
  });
}
