// The options of duet train, and those that it shares with duet compare.
#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "cli/options/command_line.h"
#include "ddp/store/port_range.h"
#include "lib/error.h"
#include "lib/nn/networks.h"
#include "lib/parse_number.h"

namespace duet::cli {
namespace {

constexpr std::array kPrecisions = {Precision::fp32, Precision::tf32, Precision::bf16};

/// CLI11 itself takes -1 for 2^64 - 1, and what is too large for the largest.
std::string seed_error(const std::string& text) {
  errno = 0;
  std::strtoull(text.c_str(), nullptr, 0);
  if (errno != ERANGE && text.find('-') == std::string::npos) return "";
  return concat("is ", text, ", expected 0 to ", std::numeric_limits<std::uint64_t>::max());
}

void add_network(CLI::App& app, Training& training) {
  std::vector<std::string> names;
  for (const nn::NamedNetwork& network : nn::named_networks()) names.push_back(network.name);
  app.add_option(
         "--model", training.model,
         "network: simple_cnn or linear (one 784 to 10 layer), for MNIST; or one of torchvision's, for colour "
         "images: alexnet, resnet18, 34, 50, 101, 152, vgg11, 13, 16, 19, vgg11_bn, 13_bn, 16_bn, 19_bn; or "
         "FILE.so, a shared object with a network of one's own (lib/nn/network_module.h); or FILE.pt, TorchScript")
      ->check([known = one_of(names)](const std::string& model) {
        return is_network_file(model) ? std::string() : known(model);
      });
  app.add_option("--input", training.input,
                 "FILE.pt: channels, rows and columns of the images that it takes; default 3x224x224")
      ->check([](const std::string& text) {
        return input_shape(text) ? std::string() : "is " + text + ", expected CHANNELSxROWSxCOLUMNS, as in 3x224x224";
      });
  app.add_option("--image-size", training.image_size,
                 "colour images: rows and columns to which they are cropped, resized or drawn; 0: the network's own, "
                 "224")
      ->check(in_range(0, 4096));
  app.add_option("--classes", training.classes,
                 "outputs of the network; 0: as FILE.so says, else as many as the data has classes")
      ->check(in_range(0, 1e6));
  app.add_option("--stem", training.stem,
                 "resnet: imagenet (first convolution 7x7 with stride 2, then a pool), or cifar (3x3 with stride 1 and "
                 "no pool, for images of 32x32 or so)")
      ->check(one_of({"imagenet", "cifar"}));
  app.add_flag("--sync-bn", training.sync_bn,
               "batch norm over the batches of all devices (CPU devices; not averaging), so that any number of them "
               "ends with the same bits; otherwise each device has statistics of its own images, as in PyTorch");
}

void add_data(CLI::App& app, Training& training) {
  app.add_option(
      "--data", training.data,
      "for MNIST's networks a folder with its four files (.gz or not), in it or in its sub-folder mnist; default: "
      "$DUET_DATA, ./data, ~/.cache/duet, else drawn digits. For colour images a folder with train and val, each with "
      "a folder of JPEG or PNG files for each class (random crops and flips for training); default: drawn images. "
      "'synthetic' draws either; 'synthetic:classes=100,size=64,train=10000,test=1000,seed=0' says which images");
  app.add_option("--loader-workers", training.loader_workers,
                 "threads of each process that make batches ahead; 0: the training thread makes each when it is due")
      ->check(in_range(0, 1024));
  app.add_flag("--skip-broken", training.skip_broken,
               "folder of images: in place of a file that cannot be decoded take the next one of its class, and warn; "
               "otherwise it is an error");
}

/// Options of a training step.
void add_step(CLI::App& app, Training& training) {
  add_network(app, training);
  add_choice(app, "--device", training.device, std::array{DeviceKind::cpu, DeviceKind::cuda},
             "kind of device: cpu or cuda; where --devices outnumber the GPUs they are logical ones that share them");
  add_choice(
      app, "--precision", training.precision, kPrecisions,
      "arithmetic of convolutions and linear layers: fp32; on cuda also tf32, or bf16, which is no faster than tf32 "
      "today; on CPUs with AVX512-BF16 or AMX also bf16, of convolutions without a pool behind them, which a network "
      "must have; sums are fp32 in all");
  app.add_flag("--deterministic", training.deterministic,
               "cuda: the same convolution algorithms in every run; otherwise the fastest are found by timing them");
  app.add_option(
         "--graph", training.graph,
         "cuda: steps recorded as CUDA graphs and replayed, on or off; auto: in modes single and dp, and where ranks "
         "(ddp) are connected by nccl; one process then goes on with plain steps if a recording fails")
      ->check(one_of({"auto", "on", "off"}));
  app.add_option(
         "--graph-steps", training.graph_steps,
         "cuda: steps that one graph holds, as far as they are alike and no loss is due between them; 0: up to 8, "
         "as many as fit between two readings of the loss")
      ->check(in_range(0, 1024));
  app.add_option(
         "--workers", training.workers,
         "what a rank of averaging and ddp is: a process, or a thread (with all ranks in one process, and the same "
         "bits; CPU devices)")
      ->check(one_of({"process", "thread"}));
  app.add_option("--threads-per-device", training.threads_per_device,
                 "threads of one CPU device, each pinned to a core")
      ->check(in_range(1, 1024));
  add_data(app, training);
  app.add_option("--lr", training.lr, "learning rate")->check(in_range(0));
  app.add_option("--momentum", training.momentum, "momentum of SGD, 0 to below 1")->check(in_range(0));
  app.add_option("--seed", training.seed, "seed of weights, order of images and dropout")->check(seed_error);
  add_choice(
      app, "--compat", {"torch"}, "", [&](std::size_t) { training.compat_torch = true; },
      "'torch': PyTorch's own draws, sampler order and 1/W scaling in place of duet's rules (then 1, 2 and 4 "
      "devices no longer end with the same bits)");
  app.add_flag(
      "--check-finite", training.check_finite,
      "end with an error that names step, operator and parameter when an image, a parameter, a result or a "
      "gradient is infinite or not a number, or an operator drops the batch's stamp before a dropout; a step then "
      "takes about a third longer");
  app.add_flag("--quiet", training.quiet, "no progress line, no colours");
}

void add_backend(CLI::App& app, Training& training) {
  app.add_option(
         "--backend", training.backend,
         "what carries the ranks' collectives in averaging and ddp: shm (memory that one host's ranks share), tcp, "
         "gloo (TCP as well), nccl (ranks with a GPU each), memory (--workers thread), or auto: nccl for GPUs, "
         "else shm where it can be had, else tcp")
      ->check(one_of(kBackends));
}

void add_batch(CLI::App& app, Training& training) {
  app.add_option(
         "--batch", training.batch,
         "images of a global batch, whatever the number of devices; of networks for colour images 32 by default")
      ->check(in_range(1));
}

}  // namespace

void add_port_range(CLI::App& app, const std::string& names, std::string& ports) {
  app.add_option(names, ports,
                 "FIRST-LAST, as in 30000-30010: each port on which ranks listen and that nothing else names is one of "
                 "these; one host's ranks need one each, and the store one. Default: $DUET_PORT_RANGE, else any")
      ->check([](const std::string& text) {
        ddp::parse_port_range(text, "--port-range");
        return std::string();
      });
}

void add_training(CLI::App& app, Training& training) {
  add_step(app, training);
  app.add_option("--optimizer", training.optimizer, "sgd, adam or adamw, with the rules of torch.optim")
      ->check(one_of({"sgd", "adam", "adamw"}));
  app.add_option("--weight-decay", training.weight_decay, "of the optimizer; default: 0, of adamw 0.01")
      ->check(in_range(0));
  app.add_flag("--download", training.download, "fetch MNIST into ~/.cache/duet if it is not found");
  app.add_option("--epochs", training.epochs, "passes over the training images")->check(in_range(1));
  app.add_option(
         "--train-images", training.train_images,
         "use the first N training images, of a folder N spread evenly over it; 0 for all. duet compare draws no "
         "more than 10 steps need, unless this or --data is given")
      ->check(in_range(0));
  app.add_option("--test-images", training.test_images, "as --train-images, of the test images")->check(in_range(0));
  app.add_flag("--verbose", training.verbose,
               "train: every rank also prints which launcher's variables its rank was read from, and rank 0 who has "
               "joined from where");
}

void add_train(CLI::App& app, TrainOptions& options) {
  add_choice(app, "--mode", options.mode, kModes, "single, averaging (the tutorial's loop), dp or ddp");
  app.add_option("--devices", options.devices, "number of devices (single: 1)")->check(in_range(1, kMaxDevices));
  add_backend(app, options);
  add_batch(app, options);
  add_training(app, options);
  app.add_option("--timeout", options.timeout_s,
                 "ddp: seconds that one collective may take before it fails and names the ranks that it waits for; "
                 "never less than ten times the median of a rank's last 15 steps. Default: the launcher's, 300")
      ->check(in_range(0.001, 8e5))
      ->default_str("");
  add_port_range(app, "--port-range", options.port_range);
  app.add_option("--replicas", options.replicas,
                 "dp: persistent (every device keeps the parameters and updates its own; CPU devices share "
                 "them), or per_forward (copied from the first device in every step, as PyTorch does)")
      ->check(one_of({"per_forward", "persistent"}));
  app.add_option("--loss", options.loss, "dp: loss of the gathered output, or in_replica")
      ->check(one_of({"gathered", "in_replica"}));
  app.add_option("--sum", options.sum,
                 "dp on distinct GPUs: gradients added up by tree, in the order of every other mode, or by nccl, in an "
                 "order of its own (then results agree with other numbers of devices only to rounding)")
      ->check(one_of({"tree", "nccl"}));
  app.add_option("--checkpoint", options.checkpoint,
                 "folder; a checkpoint is written there after every epoch. A job that duet launch "
                 "has restarted goes on from its own newest one. Default: the folder of --resume, if that is one");
  app.add_option("--resume", options.resume,
                 "checkpoint file, or folder with checkpoints (the newest is taken), to go on from");
  app.add_option("--result", options.result, "file for this run's record, JSON, as in results.json");
  app.add_option("--fingerprints", options.fingerprints, "file for one hash of all parameters per step (slow)");
  app.add_option(
         "--compare-every", options.compare_every,
         "ddp: compare hashes of all ranks' parameters in every K-th step, besides every epoch's end; 0: do not")
      ->check(in_range(0));
  app.add_option("--trace", options.trace,
                 "file for a trace of every step of all ranks and replicas, for ui.perfetto.dev or chrome://tracing");
  app.add_option("--step-times", options.step_times,
                 "file for the time of every step but the first, in us, a line each");
  app.add_option("--progress", options.progress, "file that always holds one line: where the training stands");
  // Of duet compare for its cells; in no group, and so not in the help.
  app.add_option("--bursts", options.bursts)->group("");
  app.add_flag("--untrained", options.untrained)->group("");
  app.add_option("--weights", options.weights)->group("");
  app.add_flag("--collectives", options.collectives)->group("");
  app.add_flag("--timed-parts", options.timed_parts)->group("");
  app.add_option("--libtorch", options.libtorch)->check(one_of({"none", "wrapper", "averaged"}))->group("");
  app.add_flag_function("--copies", [&](std::int64_t) { options.mode = Mode::copies; })->group("");
}

}  // namespace duet::cli
