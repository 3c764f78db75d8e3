// The options of every training: one list for the parser, for the arguments of a process, and for what its ranks share;
// those of duet train besides; and the rules of both and of duet compare.
#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "ddp/group/compare_ranks.h"
#include "ddp/store/network.h"
#include "ddp/transport/modules.h"
#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/error.h"
#include "lib/nn/networks.h"
#include "lib/parse_number.h"
#include "lib/tensor.h"
#include "train/options/command_line.h"
#include "train/system/display.h"
#include "train/system/machine.h"

namespace duet::cli {
namespace {

/// CLI11 itself takes -1 for 2^64 - 1, and what is too large for the largest.
std::string seed_error(const std::string& text) {
  errno = 0;
  std::strtoull(text.c_str(), nullptr, 0);
  if (errno != ERANGE && text.find('-') == std::string::npos) return "";
  return concat("is ", text, ", expected 0 to ", std::numeric_limits<std::uint64_t>::max());
}

Check model_check() {
  std::vector<std::string> names;
  for (const nn::NamedNetwork& network : nn::named_networks()) names.push_back(network.name);
  const Check named = one_of(names);
  const auto why = [named](const std::string& model) -> std::string {
    static const std::set<std::string> weights = {".pth", ".pt2",  ".ckpt",        ".pkl",
                                                  ".bin", ".onnx", ".safetensors", ".h5"};
    if (weights.contains(std::filesystem::path(model).extension().string()))
      return concat("is ", model,
                    ", which isn't a network that duet runs, expected FILE.pt (TorchScript, written by "
                    "torch.jit.script(network).save('FILE.pt')), FILE.so or a built-in name");
    return is_network_file(model) ? "" : named(model);
  };
  return {why, named.get_description()};
}

std::string input_error(const std::string& text) {
  return input_shape(text) ? "" : "is " + text + ", expected CHANNELSxROWSxCOLUMNS, as in 3x224x224";
}

/// Calls option(name, member, check, about) for each option of network and devices, in the order of --help; flags and
/// names of values have no check.
template <class Visitor>
void network_options(const Visitor& option) {
  option("--model", &Training::model, model_check(),
         "network to train: a built-in name, FILE.so (a compiled network of your own) or FILE.pt (TorchScript); "
         "simple_cnn and linear take MNIST, the others colour images");
  option("--input", &Training::input, Check(input_error, ""),
         "channels, rows and columns of the images that FILE.pt takes; default 3x224x224");
  option("--image-size", &Training::image_size, in_range(0, 4096),
         "rows and columns to which colour images are cropped, resized or generated; 0: the network's own, 224");
  option("--classes", &Training::classes, in_range(0, 1e6),
         "number of outputs of the network; 0: as FILE.so declares, else one for each class of the data");
  option("--stem", &Training::stem, one_of({"imagenet", "cifar"}),
         "first layers of a ResNet: a 7x7 convolution with stride 2 and a pool (imagenet), or a 3x3 one without a pool "
         "for images of about 32x32 (cifar)");
  option("--sync-bn", &Training::sync_bn,
         "compute batch norm over the batches of all devices, so that any number of them gives bitwise identical "
         "results (CPU devices; not averaging)");
  option("--device", &Training::device,
         "kind of device; logical devices share the GPUs if --devices exceeds their number");
  option("--precision", &Training::precision,
         "arithmetic of convolutions and linear layers; tf32 needs cuda, bf16 needs cuda or a CPU with AVX512-BF16 or "
         "AMX");
  option("--deterministic", &Training::deterministic,
         "use the same convolution algorithms in every run (cuda); otherwise the fastest are found by timing them");
  option("--graph", &Training::graph, one_of({"auto", "on", "off"}),
         "record steps as CUDA graphs and replay them; auto: if network, optimizer, mode and backend allow it");
  option("--graph-steps", &Training::graph_steps, in_range(0, 1024),
         "maximum number of steps in one CUDA graph; 0: up to 8, as many as fit between two readings of the loss");
  option("--workers", &Training::workers, one_of({"process", "thread"}),
         "run each rank as a process, or as a thread of one process (CPU devices; bitwise identical results)");
  option("--threads-per-device", &Training::threads_per_device, in_range(1, 1024),
         "threads of each CPU device, each pinned to a core");
}

/// Calls option() as network_options() does, for every option of a training.
template <class Visitor>
void training_options(const Visitor& option) {
  network_options(option);
  option("--data", &Training::data,
         "images to train on: a directory with MNIST's files, or with train/CLASS and val/CLASS for each class; "
         "'synthetic' generates them. Default: MNIST if found, else generated digits");
  option("--loader-workers", &Training::loader_workers, in_range(0, 1024),
         "threads per process that load batches ahead; 0: the training thread loads each when it's due");
  option("--skip-broken", &Training::skip_broken,
         "replace an image file that can't be decoded by the next one of its class, and warn; otherwise it raises an "
         "error");
  option("--blocks", &Training::blocks, one_of({"0", "8", "16", "32"}),
         "number of blocks per batch (CPU devices); runs with the same number are bitwise identical on any number "
         "of devices. 0: 8, or 32 if --devices doesn't divide 8");
  option("--lr", &Training::lr, in_range(0), "learning rate");
  option("--momentum", &Training::momentum, in_range(0), "momentum of SGD, 0 to below 1");
  option("--seed", &Training::seed, Check(seed_error, ""), "seed of weights, order of images and dropout");
  option(
      "--compat", &Training::compat,
      "follow PyTorch's random numbers, sampler order and 1/W scaling; results then depend on the number of devices");
  option("--check-finite", &Training::check_finite,
         "stop with an error at the first infinite or NaN image, parameter, result or gradient; a step then takes "
         "about a third longer");
  option("--quiet", &Training::quiet, "print only results, warnings and errors");
  option("--optimizer", &Training::optimizer, one_of({"sgd", "adam", "adamw"}),
         "optimizer, with the rules of torch.optim");
  option("--weight-decay", &Training::weight_decay, in_range(0), "weight decay; default 0 (0.01 for adamw)");
  option("--download", &Training::download, "download MNIST into ~/.cache/duet if it isn't found");
  option("--epochs", &Training::epochs, in_range(1), "number of passes over the training images");
  option("--train-images", &Training::train_images, in_range(0),
         "number of training images to use: the first ones of MNIST, or evenly spread ones of a directory; 0: all");
  option("--test-images", &Training::test_images, in_range(0), "number of test images to use; 0: all");
}

std::array<DeviceKind, 2> choices(DeviceKind) { return {DeviceKind::cpu, DeviceKind::cuda}; }
std::array<Precision, 3> choices(Precision) { return {Precision::fp32, Precision::tf32, Precision::bf16}; }
std::array<Compat, 1> choices(Compat) { return {Compat::torch}; }

/// What adds them to a parser.
struct Adding {
  CLI::App& app;
  Training& training;

  template <class T>
  void operator()(const char* name, T Training::*member, const Check& check, const char* about) const {
    app.add_option(name, training.*member, about)->check(check);
  }
  template <class T>
  void operator()(const char* name, T Training::*member, const char* about) const {
    T& value = training.*member;
    if constexpr (std::is_enum_v<T>)
      add_choice(app, name, value, choices(value), about);
    else if constexpr (std::is_same_v<T, bool>)
      app.add_flag(name, value, about);
    else
      app.add_option(name, value, about);
  }
};

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return name(value);
  else if constexpr (std::is_same_v<T, bool>)
    return value ? "given" : "not given";
  else if constexpr (std::is_same_v<T, double>)
    return shortest(value);
  else if constexpr (std::is_same_v<T, std::optional<double>>)
    return value ? shortest(*value) : "the optimizer's";
  else
    return concat(value);
}

void check_training(const Training& training) {
  require<UsageError>(training.device == DeviceKind::cuda || training.precision != Precision::tf32,
                      "--precision is tf32, but CPU devices compute in fp32 or bf16");
  require<UsageError>(training.device == DeviceKind::cpu || training.threads_per_device == 1,
                      "--threads-per-device is ", training.threads_per_device, ", but one thread drives a GPU");
  require<UsageError>(training.device == DeviceKind::cuda || training.graph != "on",
                      "--graph on: CPU devices have no graphs");
  require<UsageError>(training.device == DeviceKind::cuda || training.graph_steps <= 1, "--graph-steps is ",
                      training.graph_steps, ", but CPU devices have no graphs");
  const bool threads = training.workers == "thread";
  require<UsageError>(!threads || (training.device == DeviceKind::cpu && training.backend != "nccl"),
                      "--workers thread is for CPU devices");
  require<UsageError>(threads || training.backend != "memory", "--backend memory is for --workers thread");
  require<UsageError>(!threads || training.backend != "mpi", "--backend mpi is for --workers process");
  if (training.backend == "nccl") {
    require<UsageError>(training.device == DeviceKind::cuda, "--backend nccl is for --device cuda");
    const std::string no_gpu = why_unavailable(DeviceKind::cuda), why = no_gpu.empty() ? ddp::why_no_nccl() : no_gpu;
    require<UsageError>(why.empty(), "--backend nccl cannot be used: ", why);
  }
  require<UsageError>(!training.sync_bn || training.device == DeviceKind::cpu, "--sync-bn is for CPU devices");
  require<UsageError>(training.blocks == 0 || training.device == DeviceKind::cpu, "--blocks is for CPU devices");
  require<UsageError>(training.blocks == 0 || training.compat == Compat::duet,
                      "--blocks: with --compat torch a batch has no blocks");
  require<UsageError>(std::isfinite(training.lr) && training.lr >= 0, "--lr is ", training.lr,
                      ", expected a number from 0 on");
  require<UsageError>(training.momentum >= 0 && training.momentum < 1, "--momentum is ", training.momentum,
                      ", expected 0 to below 1");
}

void check_devices(int devices, std::int64_t batch) {
  require<UsageError>(devices >= 1 && devices <= kMaxDevices, "--devices is ", devices, ", expected 1 to ",
                      kMaxDevices);
  require<UsageError>(batch >= devices, "--batch is ", batch, ", smaller than the ", devices,
                      " devices that share it; every device needs at least one image");
}

}  // namespace

std::vector<std::string> arguments_of(const Training& training) {
  std::vector<std::string> arguments;
  training_options([&](const char* name, auto member, const auto&...) {
    const auto& value = training.*member;
    const bool flag = std::is_same_v<decltype(value), const bool&>;
    if (value != Training().*member) arguments.push_back(flag ? name : concat(name, "=", text_of(value)));
  });
  return arguments;
}

std::vector<ddp::Setting> shared_settings(const Training& training) {
  static const std::set<std::string> own = {"--graph",        "--graph-steps", "--workers",  "--threads-per-device",
                                            "--data",         "--quiet",       "--download", "--loader-workers",
                                            "--train-images", "--test-images"};
  std::vector<ddp::Setting> settings;
  training_options([&](const char* name, auto member, const auto&...) {
    if (!own.contains(name)) settings.push_back({name, text_of(training.*member)});
  });
  return settings;
}

void add_port_range(CLI::App& app, const std::string& names, std::string& ports) {
  app.add_option(names, ports,
                 "ports on which ranks listen, as in 30000-30010: one for each rank of the host, and one for the "
                 "store. Default: $DUET_PORT_RANGE, else any")
      ->check([](const std::string& text) {
        ddp::parse_port_range(text, "--port-range");
        return std::string();
      });
}

void add_training(CLI::App& app, Training& training) { training_options(Adding{app, training}); }

/// Adds the options that duet compare gives its runs. They are in no group, and so not in the help.
void add_parked(CLI::App& app, TrainOptions& options) {
  app.add_option("--bursts", options.bursts)->group("");
  app.add_flag("--untrained", options.untrained)->group("");
  app.add_option("--weights", options.weights)->group("");
  app.add_flag("--collectives", options.collectives)->group("");
  app.add_flag("--timed-parts", options.timed_parts)->group("");
  app.add_option("--libtorch", options.libtorch)->check(one_of({"none", "wrapper", "averaged"}))->group("");
  app.add_flag_function("--copies", [&](std::int64_t) { options.mode = Mode::copies; })->group("");
}

void add_train(CLI::App& app, TrainOptions& options) {
  add_choice(
      app, "--mode", options.mode, kModes,
      "how devices share the work: dp is DataParallel, ddp DistributedDataParallel, and averaging averages gradients "
      "by hand");
  app.add_option("--devices", options.devices, "number of devices; mode single uses 1")->check(one_count());
  app.add_option("--backend", options.backend,
                 "transport of collectives in averaging and ddp; auto: nccl for GPUs, else shm if available, else tcp. "
                 "mpi needs mpirun or srun, memory --workers thread")
      ->check(one_of(backend_names()));
  app.add_option("--batch", options.batch,
                 "number of images in a batch, shared by all devices; networks for colour images default to 32")
      ->check(in_range(1));
  add_training(app, options);
  app.add_flag("--verbose", options.verbose,
               "also print each rank's process and host, and the environment variables that made it a rank");
  app.add_option("--timeout", options.timeout_s,
                 "seconds that a collective of ddp may take before it fails and names the missing ranks; default: the "
                 "launcher's, 300")
      ->check(in_range(0.001, 8e5))
      ->default_str("");
  add_port_range(app, "--port-range", options.port_range);
  app.add_option("--replicas", options.replicas,
                 "keep the parameters on every device (persistent), or copy them from the first device in every step "
                 "as PyTorch does (per_forward); for dp")
      ->check(one_of({"per_forward", "persistent"}));
  app.add_option("--loss", options.loss, "compute the loss of dp from the gathered output, or in each replica")
      ->check(one_of({"gathered", "in_replica"}));
  app.add_option("--checkpoint", options.checkpoint,
                 "directory for a checkpoint after every epoch; a job restarted by duet launch resumes from its "
                 "newest. Default: the directory of --resume");
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "number of steps between further checkpoints, counted from the start of the run; 0: none")
      ->check(in_range(0));
  app.add_option("--resume", options.resume,
                 "checkpoint to resume from: a file, or a directory, whose newest is taken");
  app.add_option("--result", options.result, "file for this run's record, in JSON, as in results.json");
  app.add_option("--fingerprints", options.fingerprints, "file for one hash of all parameters per step (slow)");
  app.add_option("--compare-every", options.compare_every,
                 "number of steps between comparisons of all ranks' parameters (ddp); 0: only at the end of each epoch")
      ->check(in_range(0));
  add_elastic(app, options.job, [](const std::string& name) { return name; });
  app.add_option("--trace", options.trace,
                 "file for a trace of every step of all ranks and replicas, for ui.perfetto.dev or chrome://tracing");
  app.add_option("--step-times", options.step_times,
                 "file for the time of every step but the first, in us, one per line");
  app.add_option("--progress", options.progress,
                 "file that always holds one line: the run's current epoch, step, loss and speed");
  add_parked(app, options);
}

const char* name(Compat compat) { return compat == Compat::torch ? "torch" : "duet"; }

const char* name(Mode mode) {
  constexpr std::array kNames = {"single", "averaging", "dp", "ddp", "copies"};
  return kNames.at(static_cast<std::size_t>(mode));
}

bool is_script_file(const std::string& model) { return model.ends_with(".pt"); }

std::optional<Shape> input_shape(const std::string& text) {
  constexpr std::int64_t kMost = 4096;
  const std::vector<std::string> sizes = entries_of(text, 'x');
  if (sizes.size() != 3) return {};
  Shape shape;
  for (const std::string& entry : sizes) {
    const std::int64_t size = parse_number<std::int64_t>(entry).value_or(0);
    if (size < 1 || size > kMost) return {};
    shape.append(size);
  }
  return shape;
}

Shape script_input(const Training& options) { return input_shape(options.input).value_or(Shape{3, 224, 224}); }

bool is_network_file(const std::string& model) {
  return model.ends_with(".so") || is_script_file(model) || model.find('/') != std::string::npos;
}

bool has_ranks(Mode mode) { return mode == Mode::averaging || mode == Mode::ddp || mode == Mode::copies; }

std::string why_no_graph(const TrainOptions& options, std::string carrier, std::span<const Device> devices) {
  if (options.device == DeviceKind::cpu) return "CPU devices have no graphs";
  if (is_network_file(options.model)) return "what a network from a file does on the host is not known";
  if (nn::find_network(options.model).channels != 1) return "colour images come from the host in every step";
  if (options.graph == "off") return "--graph off";
  if (options.job.elastic) return "an elastic job knows only behind backward whether a step is to be done again";
  if (options.mode == Mode::averaging) return "in mode averaging ranks add gradients up, outside of graphs";
  for (const Device from : devices)
    for (const Device to : devices)
      if (!backend(to.kind).copies_directly(from, to))
        return concat("what ", from, " copies to ", to, " goes through the host's memory");
  if (carrier.empty() && options.devices > 1 && options.backend != "auto") carrier = options.backend;
  if (options.mode == Mode::ddp && !carrier.empty() && carrier != "nccl" && carrier != "solo")
    return concat("ranks over ", carrier, " add gradients up in the host's memory");
  if (options.optimizer != "sgd") return concat("--optimizer ", options.optimizer, " counts its steps on the host");
  if (options.compare_every > 0) return "--compare-every reads all parameters back";
  if (options.compat == Compat::torch) return "with --compat torch the host draws dropout";
  if (options.check_finite) return "--check-finite reads every result back";
  return "";
}

/// Throws UsageError for what the ranks of an elastic job could not do again.
void check_elastic(const TrainOptions& options) {
  const bool is_elastic =
      options.backend == "auto" || options.backend == "shm" || options.backend == "tcp" || options.backend == "nccl";
  const char* const other = options.mode != Mode::ddp        ? "--mode ddp"
                            : options.workers != "process"   ? "--workers process"
                            : !is_elastic                    ? "--backend auto, shm, tcp or nccl"
                            : options.compat != Compat::duet ? "--compat duet"
                            : !options.bursts.empty()        ? "a training of its own"
                                                             : nullptr;
  require<UsageError>(other == nullptr, "--elastic needs ", other == nullptr ? "" : other);
}

void check(const TrainOptions& options) {
  check_training(options);
  check_devices(options.devices, options.batch);
  require<UsageError>(options.mode != Mode::single || options.devices == 1, "--devices is ", options.devices,
                      ", but mode single uses 1; --mode dp or ddp uses several");
  require<UsageError>(!options.untrained || !options.bursts.empty(), "--untrained is for --bursts");
  require<UsageError>(options.libtorch.empty() || !options.bursts.empty(), "--libtorch is for --bursts");
  require<UsageError>(options.mode != Mode::copies || options.untrained,
                      "--copies is for --untrained only: its ranks do not learn together");
  const char* const of_ranks = options.workers == "thread"   ? "--workers thread"
                               : options.timeout_s != 0      ? "--timeout"
                               : !options.port_range.empty() ? "--port-range"
                                                             : nullptr;
  require<UsageError>(of_ranks == nullptr || has_ranks(options.mode), of_ranks == nullptr ? "" : of_ranks,
                      " is for modes averaging and ddp, not ", name(options.mode));
  require<UsageError>(options.compare_every == 0 || options.mode == Mode::ddp, "--compare-every is for mode ddp, not ",
                      name(options.mode));
  require<UsageError>(!options.sync_bn || options.mode != Mode::averaging,
                      "--sync-bn is for modes single, dp and ddp, not averaging, whose ranks share gradients alone");
  require<UsageError>(options.job.min_ranks == 0 || options.job.elastic, "--min-ranks needs --elastic");
  require<UsageError>(options.job.spares == 0 || options.job.elastic, "--spares needs --elastic");
  if (options.job.elastic) check_elastic(options);
  const std::string no_graph = why_no_graph(options);
  require<UsageError>(options.graph != "on" || no_graph.empty(), "--graph on: ", no_graph);
}

void check(const CompareOptions& options) {
  check_training(options);
  for (const int devices : options.devices) {
    check_devices(devices, options.scaling == "weak" ? kMaxDevices : options.batch);
    require<UsageError>(
        options.scaling == "strong" || options.batch <= std::numeric_limits<std::int64_t>::max() / devices,
        "--batch is ", options.batch, ", too large for each of ", devices, " devices");
  }
  require<UsageError>(options.backend != "mpi", "duet compare starts its own ranks, but ", kNeedsMpirun);
  require<UsageError>(!options.out.empty(), "--out: empty name of a folder");
  if (options.vs_torch.empty()) return;
  require<UsageError>(options.device == DeviceKind::cpu,
                      "--vs-torch is for CPU devices; tools/gpu_check.sh compares GPUs");
  require<UsageError>(options.model != "linear" && !is_network_file(options.model),
                      "--vs-torch: the peer is simple_cnn or a network of torchvision, not ", options.model);
  const char* const unlike = options.optimizer != "sgd"             ? "--optimizer"
                             : options.precision != Precision::fp32 ? "--precision"
                             : options.sync_bn                      ? "--sync-bn"
                             : options.check_finite                 ? "--check-finite"
                                                                    : nullptr;
  require<UsageError>(unlike == nullptr, "--vs-torch: the peer trains by sgd, in fp32 and with plain batch norm; got ",
                      unlike == nullptr ? "" : unlike);
  require<UsageError>(options.time_budget_s > 0, "--vs-torch times PyTorch in rounds, but --time-budget is 0");
}

}  // namespace duet::cli
