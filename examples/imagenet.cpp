// Trains a network on a folder of images with the flags, the steps and the lines of pytorch/examples' imagenet/main.py:
// alone, under DataParallel or under DistributedDataParallel. docs/howto/imagenet.md goes through it.
//
//   imagenet DIR -a resnet50 -b 256                                        DataParallel on all devices
//   imagenet DIR -a resnet50 -b 256 --multiprocessing-distributed          DistributedDataParallel, a process a device
//   duet launch -n 4 --elastic -- imagenet DIR -a resnet50 -b 256          the same, and lost processes are replaced
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <duet/ddp/distributed_data_parallel.h>
#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/backend/backend.h>
#include <duet/lib/base/sha256.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/elastic.h>
#include <duet/lib/error.h>
#include <duet/lib/io/checkpoint.h>
#include <duet/lib/io/folder.h>
#include <duet/lib/monotonic.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/lr_scheduler.h>
#include <duet/lib/optim/sgd.h>
#include <duet/samplers/random.h>
#include <duet/samplers/sequential.h>

#include "imagenet_meters.h"
#include "imagenet_options.h"
#include "imagenet_parts.h"

using namespace duet;
using examples::Data;
using examples::ImageNetOptions;
using examples::Meter;
using examples::Meters;
using examples::Network;
using examples::Place;

namespace {

class Training {
 public:
  Training(const ImageNetOptions& options, const Place& place);
  void run();

 private:
  void resume(const LoadedCheckpoint& loaded);
  void train(std::int64_t epoch);
  void end_epoch(std::int64_t epoch);
  double validate();
  void lock_folder(std::int64_t epochs);
  void save(std::int64_t epochs, bool best);
  /// What stays the same where a run goes on from a checkpoint.
  Metadata settings() const {
    return {{"sync_bn", options_.sync_bn ? "on" : "off"}, {"data_hash", std::to_string(data_.train->data_hash())}};
  }
  /// Only one rank prints, and its lines are of its own rows but for those of whole epochs.
  void say(const std::string& line) const {
    if (place_.rank() == 0) std::puts(line.c_str());
  }

  const ImageNetOptions& options_;
  const Place& place_;
  std::int64_t seed_ = 0;
  Data data_;
  Network network_;
  std::unique_ptr<optim::SGD> optimizer_;
  std::unique_ptr<optim::StepLR> schedule_;
  std::unique_ptr<data::Loader> train_loader_;
  std::optional<FolderLock> lock_;  // of the process that saves
  std::int64_t epoch_ = 0;
  double best_acc1_ = 0;
  const elastic::State kept_best_ = elastic::state("best_acc1", best_acc1_);
};

/// --seed, or that of the run that goes on, or one that rank 0 draws.
std::int64_t choose_seed(const ImageNetOptions& options, const std::optional<LoadedCheckpoint>& loaded,
                         const Place& place) {
  std::int64_t seed = std::random_device()();
  if (loaded)
    if (const auto found = loaded->checkpoint.settings.find("seed"); found != loaded->checkpoint.settings.end())
      seed = std::stoll(found->second);
  seed = options.seed.value_or(seed);
  if (place.group != nullptr) place.group->broadcast(std::span(&seed, 1)).wait();
  return seed;
}

Training::Training(const ImageNetOptions& options, const Place& place)
    : options_(options), place_(place), epoch_(options.start_epoch) {
  std::optional<LoadedCheckpoint> loaded;
  if (!options.resume.empty()) {
    say(concat("=> loading checkpoint '", options.resume, "'"));
    loaded = load_checkpoint(options.resume);
  }
  seed_ = choose_seed(options, loaded, place);
  data_ = examples::open_data(options, static_cast<std::uint64_t>(seed_));
  const std::int64_t classes = options.classes.value_or(data_.classes);
  require<UsageError>(classes >= data_.classes, "--classes is ", classes, ", ", options.folder, " has ", data_.classes);

  say(concat("=> ", options.pretrained.empty() ? "creating" : "using pre-trained", " model '", options.arch, "'"));
  network_ = examples::make_network(options, place, classes);
  nn::Module& model = *network_.model;
  model.initialise(static_cast<std::uint64_t>(seed_));
  if (!options.pretrained.empty()) examples::load_pretrained(model, options);
  if (loaded) restore(*loaded, options.arch, model.state_dict());
  model.to(place.devices[0]);
  if (place.group != nullptr) network_.wrapper = std::make_unique<ddp::DistributedDataParallel>(model, *place.group);

  optimizer_ =
      std::make_unique<optim::SGD>(model, optim::SGDOptions{.lr = static_cast<float>(options.lr),
                                                            .momentum = static_cast<float>(options.momentum),
                                                            .weight_decay = static_cast<float>(options.weight_decay)});
  schedule_ = std::make_unique<optim::StepLR>(*optimizer_, 30, 0.1);
  train_loader_ = examples::make_loader(
      *data_.train, std::make_unique<samplers::RandomSampler>(data_.train->size(), static_cast<std::uint64_t>(seed_)),
      options, place);
  if (loaded) resume(*loaded);
  // A process that replaces a lost one may find a later checkpoint than the others have begun with.
  if (place.group != nullptr) place.group->broadcast(std::span(&epoch_, 1)).wait();
  schedule_->set_steps(epoch_);
  train_loader_->set_position({epoch_, 0});
}

/// Behind restore(), which has loaded the model.
void Training::resume(const LoadedCheckpoint& loaded) {
  for (const auto& [key, value] : settings()) {
    const auto found = loaded.checkpoint.settings.find(key);
    if (!options_.evaluate && found != loaded.checkpoint.settings.end())
      require<DataError>(found->second == value, loaded.path, " is of a run with ", key, " ", found->second,
                         ", this run has ", value);
  }
  optimizer_->load_state(loaded.checkpoint.optimizer);
  epoch_ = loaded.checkpoint.position.epoch;
  best_acc1_ = loaded.checkpoint.best_acc1;
  say(concat("=> loaded checkpoint '", loaded.path, "' (epoch ", epoch_, ")"));
}

void Training::run() {
  if (options_.evaluate) return elastic::unit([&] { validate(); });
  elastic::unit([&] {
    if (place_.saves()) lock_folder(epoch_);
    place_.wait_for_all();
  });
  for (; epoch_ < options_.epochs; ++epoch_) {
    train(epoch_);
    elastic::unit([&] { end_epoch(epoch_); });
    schedule_->step();
  }
  elastic::unit([&] {
    const Tensor values = network_.model->parameters().values().to(Device{});
    say("parameters: sha256 " + sha256_hex(std::as_bytes(values.span<float>())));
    place_.wait_for_all();
  });
}

/// What the processes do together between two epochs. Where an elastic job goes on without a lost one, another process
/// may save in the meantime.
void Training::end_epoch(std::int64_t epoch) {
  if (!place_.saves()) lock_.reset();
  const double acc1 = validate();
  const bool best = acc1 > best_acc1_;
  best_acc1_ = std::max(acc1, best_acc1_);
  if (place_.saves()) save(epoch + 1, best);
  place_.wait_for_all();
}

/// With checkpoints of so many epochs at most.
void Training::lock_folder(std::int64_t epochs) {
  if (!lock_) lock_.emplace(prepare_checkpoint_folder(options_.checkpoint, epochs * train_loader_->steps()));
}

void Training::train(std::int64_t epoch) {
  Meter step_time("Time", 6, 3), data_time("Data", 6, 3);
  Meters meters;
  nn::Module& net = network_.net();
  network_.model->train();
  Clock::time_point begin = Clock::now();
  for (auto& [images, labels] : *train_loader_) {
    const std::int64_t step = images.stamp().step % train_loader_->steps();
    data_time.add(microseconds_since(begin) / 1e6);
    const Tensor target = labels.to(place_.devices[0]);
    const Variable output = net(images.to(place_.devices[0]));
    const Variable loss = ops::cross_entropy(output, target);
    meters.add(output, loss, target);

    optimizer_->zero_grad();
    loss.backward();
    optimizer_->step();

    step_time.add(microseconds_since(begin) / 1e6);
    begin = Clock::now();
    if (step % options_.print_freq != 0) continue;
    say(examples::progress_line(concat("Epoch: [", epoch, "]"), step + 1, train_loader_->steps(),
                                {&step_time, &data_time, &meters.loss, &meters.top1, &meters.top5}));
  }
}

/// Every image once; the same numbers on all ranks.
double Training::validate() {
  Meter step_time("Time", 6, 3);
  Meters meters;
  const auto loader = examples::make_loader(
      *data_.val, std::make_unique<samplers::SequentialSampler>(data_.val->size()), options_, place_);
  const NoGrad no_grad;
  nn::FlatParameters& store = network_.model->parameters();
  const int buffers = static_cast<int>(store.buffers().size());
  if (place_.group != nullptr && buffers > 0)  // the running statistics of rank 0 are those that are saved
    place_.group->broadcast(store.buffer_run(0, buffers)).wait();
  nn::Module& net = network_.net();
  network_.model->eval();
  std::int64_t step = 0;
  Clock::time_point begin = Clock::now();
  for (auto& [images, labels] : *loader) {
    const Tensor target = labels.to(place_.devices[0]);
    const Variable output = net(images.to(place_.devices[0]));
    meters.add(output, ops::cross_entropy(output, target), target);
    step_time.add(microseconds_since(begin) / 1e6);
    begin = Clock::now();
    if (step++ % options_.print_freq != 0) continue;
    say(examples::progress_line("Test: ", step, loader->steps(),
                                {&step_time, &meters.loss, &meters.top1, &meters.top5}));
  }
  if (place_.group != nullptr) meters.all_reduce(*place_.group);
  say(" * " + meters.top1.summary() + " " + meters.top5.summary());
  return meters.top1.average();
}

/// The number of epochs is the schedule's state, too.
void Training::save(std::int64_t epochs, bool best) {
  lock_folder(epochs);
  Metadata all = settings();
  all["seed"] = std::to_string(seed_);
  save_checkpoint(options_.checkpoint,
                  {.position = {.epoch = epochs},
                   .step = epochs * train_loader_->steps(),
                   .arch = options_.arch,
                   .best_acc1 = best_acc1_,
                   .model = network_.model->state_dict(),
                   .optimizer = optimizer_->state(),
                   .settings = std::move(all)},
                  best);
}

void run_place(const ImageNetOptions& options, const Place& place) {
  require<UsageError>(options.batch >= place.on_node, "--batch-size is ", options.batch, ", less than ", place.on_node,
                      " processes");
  const DeviceKind kind = place.devices[0].kind;
  if (options.seed) backend(kind).set_deterministic(true);
  if (place.rank() == 0) {
    std::printf("Using device: %s\n", name(kind));
    const std::int64_t batch = options.batch / place.on_node;
    std::printf("=> global batch of %lld images: %d process(es) of %zu device(s), %lld images each\n",
                static_cast<long long>(batch * place.world_size()), place.world_size(), place.devices.size(),
                static_cast<long long>(batch));
    if (options.dummy) std::puts("=> Dummy data is used!");
  }
  Training(options, place).run();
}

/// A rank of a group that meets as `init` says. `on_node` processes share the node's batch, of which rank `saver`
/// saves.
void run_rank(const ImageNetOptions& options, ddp::InitOptions init, Device device, int on_node, int saver) {
  init.backend = options.dist_backend;
  if (init.backend.empty()) init.backend = device.kind == DeviceKind::cuda ? "nccl" : "auto";
  if (device.kind == DeviceKind::cuda) init.device = device;
  const auto group = ddp::init_process_group(init);
  run_place(options, {.devices = {device}, .on_node = on_node, .group = group.get(), .saver = saver});
}

/// "tcp://HOST:PORT" for the launcher of this node's processes.
void set_meeting_place(const std::string& url, ddp::LaunchOptions& launch) {
  const std::size_t host = std::string("tcp://").size(), colon = url.rfind(':');
  require<UsageError>(url.starts_with("tcp://") && colon > host && colon + 1 < url.size() &&
                          url.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                          url.size() - colon <= 6,
                      "--dist-url is '", url, "', expected tcp://HOST:PORT");
  launch.master_address = url.substr(host, colon - host);
  launch.master_port = std::stoi(url.substr(colon + 1));
}

/// This process is a rank that a launcher has started: duet's or another.
void run_launched(const ImageNetOptions& options) {
  const ddp::RankInfo info = ddp::rank_info();
  const Device device = examples::device_of_rank(options, info.local_rank);
  run_rank(options, {}, device, info.local_world_size, info.rank - info.local_rank);
}

/// Starts a process for each device of this node.
int run_processes(const ImageNetOptions& options) {
  ddp::LaunchOptions launch{.nodes = std::max(1, options.world_size), .node_rank = std::max(0, options.rank)};
  require<UsageError>(launch.nodes == 1 || !options.dist_url.empty(), "--world-size is ", launch.nodes,
                      ": expected --dist-url tcp://HOST:PORT of the first node");
  if (!options.dist_url.empty()) set_meeting_place(options.dist_url, launch);
  const auto count = static_cast<int>(examples::devices_of_node(options).size());
  return ddp::spawn([&](int) { run_launched(options); }, count, launch);
}

/// This process is the rank --rank of --world-size.
void run_by_hand(const ImageNetOptions& options) {
  require<UsageError>(!options.dist_url.empty() && options.rank >= 0, "--world-size is ", options.world_size,
                      ": expected --rank and --dist-url tcp://HOST:PORT");
  const auto on_node = static_cast<int>(options.gpu ? examples::devices_of_node(options).size() : 1);
  run_rank(options, {.init_method = options.dist_url, .rank = options.rank, .world_size = options.world_size},
           examples::device_of_rank(options, 0), on_node, 0);
}

int run(const ImageNetOptions& options) {
  if (options.multiprocessing) return run_processes(options);
  if (ddp::is_launched_rank()) {
    run_launched(options);
  } else if (options.world_size > 1) {
    run_by_hand(options);
  } else {
    Place place{.devices = examples::devices_of_node(options)};
    if (options.gpu) place.devices = {examples::device_of_rank(options, 0)};
    run_place(options, place);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ImageNetOptions options;
  if (const auto end = examples::read_command_line(argc, argv, options)) return *end;
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);  // lines get out as they are printed
  try {
    return run(options);
  } catch (const std::exception& error) {
    return ddp::report_failure(error);
  }
}
