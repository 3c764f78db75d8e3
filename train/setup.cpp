#include "train/setup.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "ddp/distributed_data_parallel.h"
#include "ddp/tutorial.h"
#include "dp/data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/data/images/drawn_images.h"
#include "lib/data/images/image_folder.h"
#include "lib/data/mnist/mnist.h"
#include "lib/data/partitioner.h"
#include "lib/error.h"
#include "lib/io/file_format.h"
#include "lib/io/folder.h"
#include "lib/nn/network_module.h"
#include "lib/nn/networks.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"
#include "train/system/display.h"
#include "train/training_loop.h"

namespace duet::cli {
namespace {

namespace fs = std::filesystem;

/// The classes' names of the networks that had checkpoints before networks had names.
std::string arch_of_name(const std::string& name) {
  if (name == "simple_cnn") return "SimpleCNN";
  return name == "linear" ? "LinearClassifier" : name;
}

/// --image-size, else the network's own.
Shape with_image_size(const Training& options, Shape sample) {
  if (options.image_size > 0) sample = sample.with(1, options.image_size).with(2, options.image_size);
  return sample;
}

ChosenNetwork network_of_file(const Training& options) {
  const std::string& path = options.model;
  require<UsageError>(options.stem == "imagenet" && !options.sync_bn, "--stem and --sync-bn are for named networks, ",
                      "not ", path);
  const bool script = is_script_file(path);
  require<UsageError>(script || options.input.empty(), "--input is for a TorchScript file, not ", path);
  const std::string format = script ? "" : describe_file(path);
  require<UsageError>(format.empty(), "--model: ", path,
                      ": expected a shared object (FILE.so) or TorchScript (FILE.pt), got ", format);
  const Shape input = with_image_size(options, script_input(options));
  const nn::NetworkModule& file = script ? nn::load_script_network(path, input) : nn::load_network_module(path);
  const Shape sample = with_image_size(options, file.sample_shape);
  return {
      .arch = fs::path(path).stem().string(),
      .sample_shape = sample,
      .classes = file.classes,
      .gives_log_probabilities = file.gives_log_probabilities,
      .make = [&file, path, sample](std::int64_t classes) { return nn::make_network(file, path, sample, classes); }};
}

/// "fetching train-images-idx3-ubyte.gz  4,816,896 of 9,912,422 bytes", rewritten.
void show_download(const std::string& file, std::uint64_t done, std::uint64_t total) {
  const std::string all = total > 0 ? " of " + grouped(static_cast<std::int64_t>(total)) : "";
  std::fprintf(stderr, "\r\x1b[Kfetching %s  %s%s bytes", file.c_str(),
               grouped(static_cast<std::int64_t>(done)).c_str(), all.c_str());
  if (total > 0 && done == total) std::fputs("\r\x1b[K", stderr);
}

std::shared_ptr<const data::Dataset> on_device(data::ImageDataset set, Device device) {
  if (device.kind == DeviceKind::cpu) return std::make_shared<data::ImageDataset>(std::move(set));
  return std::make_shared<data::ResidentImages>(set, device);
}

void require_mnist(const Training& options) {
  require<UsageError>(!data::names_drawn_images(options.data) || options.data == "synthetic", "--data is ",
                      options.data, ", but ", options.model, " takes MNIST, for which synthetic has no fields");
  try {
    data::require_mnist({.data = options.data});
  } catch (const DataError& error) {
    throw DataError(concat(options.data.empty() ? "" : "--data ", error.what()));
  }
}

Images find_mnist(const Training& options, Device device) {
  const bool shown = terminal_style(stderr, options.quiet).rewrite;
  data::Mnist found = data::load_mnist({.data = options.data,
                                        .download = options.download,
                                        .progress = shown ? show_download : data::DownloadProgress(),
                                        .train_images = options.train_images,
                                        .test_images = options.test_images});
  return {.train = on_device(std::move(found.train), device),
          .test = on_device(std::move(found.test), device),
          .name = found.drawn ? "drawn digits" : data::name(data::MnistKind::mnist),
          .description = found.origin + (found.drawn && options.data.empty() ? "; --data DIR uses yours" : "")};
}

void require_colour(const Training& options, const ChosenNetwork& network) {
  const Shape& shape = network.sample_shape;
  require<UsageError>(shape.rank() == 3 && shape[0] == 3 && shape[1] == shape[2], options.model, " takes samples ",
                      shape, ", expected (1, 28, 28) of MNIST or (3, n, n) of colour images");
  require<UsageError>(!options.download, "--download fetches MNIST, which ", options.model, " does not take");
}

bool is_drawn(const Training& options) { return options.data.empty() || data::names_drawn_images(options.data); }

std::int64_t limited(std::int64_t count, std::int64_t limit) { return limit > 0 ? std::min(count, limit) : count; }

data::DrawnSets drawn_sets(const Training& options, const ChosenNetwork& network) {
  const std::int64_t side = network.sample_shape[1];
  std::string text = options.data.empty() ? "synthetic" : options.data;
  const auto preset = [&](const std::string& field, std::int64_t value) {
    if (text.find(field + "=") == std::string::npos)
      text += concat(text.find(':') == std::string::npos ? ":" : ",", field, "=", value);
  };
  preset("size", side);
  const std::int64_t classes = options.classes > 0 ? options.classes : network.classes;
  if (classes > 0) preset("classes", classes);
  data::DrawnSets sets;
  try {
    sets = data::parse_drawn_images(text);
  } catch (const UsageError& error) {
    throw UsageError(concat("--data: ", error.what()));
  }
  require<UsageError>(sets.train.size == side, "--data draws images of size ", sets.train.size, ", but ", options.model,
                      " takes ", side, "; --image-size changes that");
  sets.train.count = limited(sets.train.count, options.train_images);
  sets.test.count = limited(sets.test.count, options.test_images);
  return sets;
}

Images draw_images(const Training& options, const data::DrawnSets& sets) {
  const std::int64_t side = sets.train.size;
  const std::string name = concat("drawn images of ", sets.train.classes, " classes, ", side, "x", side);
  return {.train = std::make_shared<data::DrawnImages>(sets.train),
          .test = std::make_shared<data::DrawnImages>(sets.test),
          .classes = sets.train.classes,
          .name = name,
          .description = concat(name, ": ", grouped(sets.train.count), " to train, ", grouped(sets.test.count),
                                " to test", options.data.empty() ? "; --data DIR uses yours" : "")};
}

/// Its first argument is a folder of images; at most `most` of them, evenly spread over its classes.
std::shared_ptr<const data::Dataset> spread(std::shared_ptr<const data::Dataset> all, std::int64_t most) {
  if (most == 0 || most >= all->size()) return all;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(most));
  for (std::int64_t i = 0; i < most; ++i)
    indices[static_cast<std::size_t>(i)] = i * (all->size() / most) + i * (all->size() % most) / most;
  auto* const part = new data::Subset(*all, std::move(indices));
  return std::shared_ptr<const data::Dataset>(part, [all = std::move(all)](const data::Subset* set) { delete set; });
}

void require_folders(const Training& options) {
  for (const char* const part : {"train", "val"}) {
    std::error_code error;
    if (fs::is_directory(fs::path(options.data) / part, error)) continue;
    throw DataError(concat("--data ", options.data, ": has no folder ", part, content_of(options.data), "; ",
                           options.model, " takes a folder with train and val, each with a folder of images for each ",
                           "class, or synthetic"));
  }
}

Images read_folder(const Training& options, std::int64_t side) {
  const fs::path root = options.data;
  data::ImageFolderOptions reading{.transform = data::RandomResizedCrop{.size = side, .seed = options.seed},
                                   .skip_broken = options.skip_broken};
  const auto train = std::make_shared<data::ImageFolder>(root / "train", reading);
  // The ratio is that of torchvision's evaluation, which resizes to 256 and crops to 224.
  reading.transform = data::ResizeCentreCrop{.resize = side * 256 / 224, .size = side};
  const auto test = std::make_shared<data::ImageFolder>(root / "val", reading);
  data::require_same_classes("--data " + options.data, *train, *test);
  Images images{.train = spread(train, options.train_images),
                .test = spread(test, options.test_images),
                .classes = static_cast<std::int64_t>(train->classes().size()),
                .name = concat("image folder of ", train->classes().size(), " classes, ", side, "x", side),
                .description = ""};
  images.description = concat(options.data, ": ", images.name, ", ", grouped(images.train->size()), " to train, ",
                              grouped(images.test->size()), " to test");
  return images;
}

/// Returns what is drawn, of images that are.
std::optional<data::DrawnSets> require_data(const Training& options, const ChosenNetwork& network) {
  const bool mnist = network.is_for_mnist(), folder = !mnist && !is_drawn(options);
  require<UsageError>(!options.skip_broken || folder, "--skip-broken is for a folder of images");
  if (mnist) {
    require_mnist(options);
    return std::nullopt;
  }
  require_colour(options, network);
  if (!folder) return drawn_sets(options, network);
  require_folders(options);
  return std::nullopt;
}

Variable nll_loss(const Variable& output, const Tensor& labels) { return ops::nll_loss(output, labels); }
Variable cross_entropy(const Variable& output, const Tensor& labels) { return ops::cross_entropy(output, labels); }

/// PyTorch's DataLoader; its draws, where the setup has a generator, are PyTorch's too.
std::unique_ptr<data::Loader> torch_loader(const Setup& setup, const TrainOptions& options,
                                           const ddp::ProcessGroup& group, const data::Dataset& set,
                                           std::unique_ptr<data::Sampler> order) {
  samplers::DataLoaderOptions reading{.batch_size = options.batch / group.size(),
                                      .sampler = std::move(order),
                                      .generator = setup.generator.get(),
                                      .workers = options.loader_workers};
  return std::unique_ptr<data::Loader>(new data::Loader(samplers::data_loader(set, std::move(reading))));
}

/// Batches of copies, which exchange nothing: a rank's rows of each global batch are a whole batch of its own.
class OwnBatches : public samplers::BlockedBatches {
 public:
  using samplers::BlockedBatches::BlockedBatches;
  data::StepIndices step(std::int64_t number) const override {
    const auto rows = BlockedBatches::step(number).indices;
    return {rows, 0, std::ssize(rows)};
  }
};

/// Makes the loader with the same global batches in every mode: rank r reads its run of consecutive rows of each.
void read_blocked(Setup& setup, const data::Dataset& set, const TrainOptions& options, const ddp::ProcessGroup& group) {
  auto order = std::make_unique<samplers::RandomSampler>(set.size(), options.seed);
  const bool cpu = options.device == DeviceKind::cpu;
  const samplers::BlockedOptions cut{.global_batch = options.batch,
                                     .world_size = group.size(),
                                     .rank = group.rank(),
                                     .blocks = options.blocks != 0 ? options.blocks
                                               : cpu               ? blocks_for(options.devices)
                                                                   : kBlocks,
                                     .whole_blocks = cpu || Recovery::instance().places_change()};
  std::unique_ptr<samplers::BlockedBatches> batches;
  if (options.mode == Mode::copies)
    batches = std::make_unique<OwnBatches>(std::move(order), cut);
  else
    batches = std::make_unique<samplers::BlockedBatches>(std::move(order), cut);
  setup.batches = batches.get();
  setup.loader = std::make_unique<data::Loader>(
      set, std::move(batches),
      data::LoaderOptions{.workers = options.loader_workers, .deferred = setup.graph != nullptr});
}

/// The tutorial's split: every rank shuffles its own part, and all ranks have the same seed.
void read_own_part(Setup& setup, const TrainOptions& options, const data::Dataset& train,
                   const ddp::ProcessGroup& group) {
  data::PartitionOptions partition{.seed = options.seed};
  if (group.rank() != 0) partition.warn = [](const std::string&) {};
  setup.part = std::make_unique<data::Subset>(
      train, data::partition_indices(train.size(), data::equal_fractions(group.size()), partition)
                 .at(static_cast<std::size_t>(group.rank())));
  require<DataError>(setup.part->size() > 0, train.size(), " training images leave rank ", group.rank(), " of ",
                     group.size(), " without any");
  auto order = setup.generator ? std::make_unique<samplers::RandomSampler>(setup.part->size(), *setup.generator)
                               : std::make_unique<samplers::RandomSampler>(setup.part->size(), options.seed);
  setup.loader = torch_loader(setup, options, group, *setup.part, std::move(order));
}

/// PyTorch's own order and draws. A rank's batch is stamped as a whole one of its own, so that its loss is divided by
/// its own rows, as PyTorch's, and GradientRule::torch divides by the number of ranks.
void read_as_torch(Setup& setup, const TrainOptions& options, const data::Dataset& train,
                   const ddp::ProcessGroup& group) {
  std::unique_ptr<data::Sampler> order;
  if (options.mode == Mode::ddp)
    order = std::make_unique<samplers::DistributedSampler>(
        train.size(),
        samplers::DistributedOptions{.world_size = group.size(), .rank = group.rank(), .seed = options.seed});
  else
    order = std::make_unique<samplers::RandomSampler>(train.size(), *setup.generator);
  setup.loader = torch_loader(setup, options, group, train, std::move(order));
}

void wrap_dp(Setup& setup, const TrainOptions& options) {
  dp::DataParallelOptions wrap{.devices = setup.devices};
  wrap.replicas = options.replicas == "persistent" ? dp::Refresh::persistent : dp::Refresh::per_forward;
  setup.loss_in_replica = options.loss == "in_replica";
  setup.scatters = setup.devices.size() > 1;
  if (setup.loss_in_replica) wrap.loss = setup.loss;
  auto wrapper = std::make_unique<dp::DataParallel>(setup.model(), wrap);
  setup.require_same_replicas = [net = wrapper.get()] { net->require_same_replicas(); };
  setup.wrapper = std::move(wrapper);
}

void wrap_ddp(Setup& setup, const TrainOptions& options, ddp::ProcessGroup& group) {
  ddp::DistributedDataParallelOptions wrap;
  if (options.compat == Compat::torch) wrap.rule = ddp::GradientRule::torch;
  wrap.compare_parameters_every = options.compare_every;
  auto wrapper = std::make_unique<ddp::DistributedDataParallel>(setup.model(), group, wrap);
  setup.wrapper = std::move(wrapper);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainOptions& options, nn::Module& model) {
  const auto lr = static_cast<float>(options.lr);
  if (options.optimizer == "sgd")
    return std::make_unique<optim::SGD>(
        model, optim::SGDOptions{.lr = lr,
                                 .momentum = static_cast<float>(options.momentum),
                                 .weight_decay = static_cast<float>(options.weight_decay.value_or(0))});
  if (options.optimizer == "adam")
    return std::make_unique<optim::Adam>(
        model, optim::AdamOptions{.lr = lr, .weight_decay = options.weight_decay.value_or(0)});
  optim::AdamWOptions adamw{.lr = lr};
  adamw.weight_decay = options.weight_decay.value_or(adamw.weight_decay);
  return std::make_unique<optim::AdamW>(model, adamw);
}

/// What lies between two readings of the loss, in equal parts.
std::int64_t steps_of_graph(const TrainOptions& options, std::int64_t epoch_steps) {
  constexpr std::int64_t kMost = 8;             // one launch and one copy of numbers for so many leave little to save
  if (!options.fingerprints.empty()) return 1;  // every step has a fingerprint
  if (options.graph_steps > 0) return options.graph_steps;
  const std::int64_t between = std::max<std::int64_t>(1, epoch_steps / StepClock::kLossPoints);
  return between / ((between + kMost - 1) / kMost);
}

/// Where graphs were not asked for, steps go on without them; but ranks must all record or none.
std::unique_ptr<StepGraph> make_graph(const TrainOptions& options, const Setup& setup, const ddp::ProcessGroup& group) {
  auto graph = std::make_unique<StepGraph>(setup.devices);
  const bool asked_for = options.graph == "on" || options.graph_steps > 0;
  if (!asked_for && group.size() == 1)
    graph->fall_back([](const std::string& why) {
      std::fprintf(stderr, "duet: steps are not recorded as CUDA graphs from here on: %s\n", printable(why).c_str());
    });
  return graph;
}

}  // namespace

ChosenNetwork chosen_network(const Training& options) {
  if (is_network_file(options.model)) return network_of_file(options);
  require<UsageError>(options.input.empty(), "--input is for a TorchScript file, not ", options.model);
  const nn::NamedNetwork& named = nn::find_network(options.model);
  nn::NetworkOptions settings{.stem = options.stem == "cifar" ? nn::Stem::cifar : nn::Stem::imagenet,
                              .sync_batch_norm = options.sync_bn};
  ChosenNetwork chosen{.arch = arch_of_name(named.name),
                       .sample_shape = with_image_size(options, {named.channels, named.size, named.size}),
                       .gives_log_probabilities = named.gives_log_probabilities,
                       .make = [&named, settings](std::int64_t classes) mutable {
                         settings.classes = classes;
                         return named.make(settings);
                       }};
  require<UsageError>(named.channels == 3 || options.image_size == 0 || options.image_size == named.size,
                      "--image-size is ", options.image_size, ", but ", named.name, " takes images of ", named.size,
                      "x", named.size);
  chosen.make(options.classes > 0 ? options.classes : named.classes);  // options that it does not have
  return chosen;
}

std::unique_ptr<nn::Module> blank_network(const Training& options, std::int64_t data_classes) {
  const ChosenNetwork chosen = chosen_network(options);
  const std::int64_t own = options.classes > 0 ? options.classes : chosen.classes;
  const std::int64_t classes = own > 0 ? own : data_classes;
  require<UsageError>(classes >= data_classes, options.model, " has ", classes, " outputs, but the data has ",
                      data_classes, " classes");
  return chosen.make(classes);
}

std::unique_ptr<nn::Module> make_network(const Training& options, std::int64_t data_classes, Mt19937* generator) {
  std::unique_ptr<nn::Module> network = blank_network(options, data_classes);
  if (generator)
    network->initialise(*generator);
  else
    network->initialise(options.seed);
  network->context().seed = options.seed;
  network->context().stream = generator;
  return network;
}

std::string parameters_sha256(nn::Module& model) {
  const nn::FlatParameters& store = model.parameters();
  Sha256 hash;
  for (int slot = 0; slot < store.slot_count(); ++slot) {
    const Tensor value = store.value(slot).to(Device{});
    hash.update(std::as_bytes(value.span<float>()));
  }
  return hash.hex();
}

std::string hash_text(const data::Dataset& set) {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(set.data_hash()));
  return text;
}

void require_data(const Training& options) { require_data(options, chosen_network(options)); }

Images find_images(const Training& options, Device device) {
  const ChosenNetwork network = chosen_network(options);
  const std::optional<data::DrawnSets> drawn = require_data(options, network);
  if (network.is_for_mnist()) return find_mnist(options, device);
  return drawn ? draw_images(options, *drawn) : read_folder(options, network.sample_shape[1]);
}

std::int64_t classes_of_data(const Training& options) {
  const ChosenNetwork network = chosen_network(options);
  const std::optional<data::DrawnSets> drawn = require_data(options, network);
  if (network.is_for_mnist()) return 10;
  if (drawn) return drawn->train.classes;
  return std::ssize(data::ImageFolder::class_names(fs::path(options.data) / "train"));
}

Setup make_setup(const TrainOptions& options, const Images& images, ddp::ProcessGroup& group,
                 std::vector<Device> devices) {
  Setup setup;
  setup.devices = std::move(devices);
  if (options.compat == Compat::torch) setup.generator = std::make_unique<Mt19937>(options.seed);
  setup.network = make_network(options, images.classes, setup.generator.get());
  setup.loss = chosen_network(options).gives_log_probabilities ? nll_loss : cross_entropy;
  setup.model().to(setup.devices.at(0));
  if (why_no_graph(options, group.backend(), setup.devices).empty()) setup.graph = make_graph(options, setup, group);
  setup.own_batches = options.mode == Mode::averaging || (options.mode == Mode::ddp && options.compat == Compat::torch);
  if (options.mode == Mode::averaging)
    read_own_part(setup, options, *images.train, group);
  else if (setup.generator)
    read_as_torch(setup, options, *images.train, group);
  else
    read_blocked(setup, *images.train, options, group);
  setup.graph_steps = steps_of_graph(options, setup.loader->steps());
  setup.optimizer = make_optimizer(options, setup.model());
  if (options.mode == Mode::dp) wrap_dp(setup, options);
  if (options.mode == Mode::ddp) wrap_ddp(setup, options, group);
  if (Recovery::instance().on())
    setup.share_losses = [&group, batches = setup.batches](std::vector<float>& sums, const Variable& loss,
                                                           std::int64_t rows) {
      const bool cpu = loss.device().kind == DeviceKind::cpu;
      if (!cpu && rows > 0) sums = {loss.item() * static_cast<float>(rows)};
      const int blocks = cpu ? batches->blocks() : 1;
      require<UsageError>(rows == 0 || std::ssize(sums) == blocks, "an elastic job needs the sums of ", blocks,
                          " blocks of the loss, got ", sums.size());
      sums.resize(static_cast<std::size_t>(blocks), 0);  // those of a rank without rows
      return group.all_reduce(std::span(sums));
    };
  if (options.mode == Mode::averaging)
    setup.average = [model = setup.network.get(), &group] { ddp::average_gradients(*model, group); };
  return setup;
}

}  // namespace duet::cli
