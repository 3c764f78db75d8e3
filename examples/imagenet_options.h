// The command line of imagenet.cpp: that of pytorch/examples' imagenet/main.py, and what duet adds.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <duet/lib/nn/network_options.h>
#include <duet/lib/nn/networks.h>

namespace examples {

struct ImageNetOptions {
  std::string folder = "imagenet", arch = "resnet18";
  int workers = 4;
  std::int64_t epochs = 90, start_epoch = 0, batch = 256;
  double lr = 0.1, momentum = 0.9, weight_decay = 1e-4;
  std::int64_t print_freq = 10;
  std::string resume, pretrained;
  bool evaluate = false;
  int world_size = -1, rank = -1;  // number of nodes, and which of them this is
  std::string dist_url, dist_backend;
  std::optional<std::int64_t> seed;
  std::optional<int> gpu;
  bool multiprocessing = false, no_accel = false, dummy = false;
  // What main.py has not.
  std::string checkpoint = "checkpoint";
  std::optional<int> devices;
  std::optional<std::int64_t> classes;
  std::int64_t image_size = 224, width = 64;
  std::string stem = "imagenet";
  bool sync_bn = false, no_augment = false, skip_broken = false, partial = false;
};

inline void add_main_options(CLI::App& app, ImageNetOptions& o) {
  std::vector<std::string> archs;
  for (const duet::nn::NamedNetwork& network : duet::nn::named_networks())
    if (network.channels == 3) archs.push_back(network.name);
  const CLI::Range counts(1, std::numeric_limits<int>::max());
  app.add_option("DIR", o.folder,
                 "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or images that the program draws: "
                 "synthetic:classes=10,size=64,train=10000,test=1000")
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.add_option("-a,--arch", o.arch, "network")->check(CLI::IsMember(archs));
  app.add_option("-j,--workers", o.workers, "threads that read images, of this node")->check(CLI::Range(0, 1024));
  app.add_option("--epochs", o.epochs, "epochs in all")->check(CLI::NonNegativeNumber);
  app.add_option("--start-epoch", o.start_epoch, "number of the first epoch, without --resume")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-b,--batch-size", o.batch, "images in a step, of all devices of this node")->check(counts);
  app.add_option("--lr,--learning-rate", o.lr, "initial learning rate; a tenth of it after every 30 epochs");
  app.add_option("--momentum", o.momentum, "of SGD");
  app.add_option("--wd,--weight-decay", o.weight_decay, "of SGD");
  app.add_option("-p,--print-freq", o.print_freq, "steps between two lines")->check(counts);
  app.add_option("--resume", o.resume, "checkpoint to resume: a file, or a folder with the newest in it");
  app.add_flag("-e,--evaluate", o.evaluate, "evaluate the network and end");
  app.add_option(
         "--pretrained", o.pretrained,
         "weights to begin with, as safetensors; of a .pth: python3 -c \"import sys, torch, safetensors.torch as "
         "s; s.save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])\" IN.pth OUT.safetensors")
      ->type_name("FILE");
  app.add_option("--world-size", o.world_size, "number of nodes");
  app.add_option("--rank", o.rank, "number of this node");
  app.add_option("--dist-url", o.dist_url,
                 "tcp://HOST:PORT, where nodes meet, or env://; default: a free port of this host");
  app.add_option("--dist-backend", o.dist_backend,
                 "nccl, gloo, mpi, tcp, shm or auto; default: nccl on GPUs, else auto")
      ->check(CLI::IsMember({"nccl", "gloo", "mpi", "tcp", "shm", "auto"}));
  app.add_option("--seed", o.seed, "makes runs repeatable; default: a random one")->check(CLI::NonNegativeNumber);
  app.add_option("--gpu", o.gpu, "number of the one device to use, without DataParallel")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--no-accel", o.no_accel, "CPU devices, also where there are GPUs");
  app.add_flag("--multiprocessing-distributed", o.multiprocessing,
               "DistributedDataParallel with a process for each device of this node, started by this one");
  app.add_flag("--dummy", o.dummy, "draw ImageNet's number of images in place of reading DIR");
}

inline void add_own_options(CLI::App& app, ImageNetOptions& o) {
  const CLI::Range counts(1, std::numeric_limits<int>::max());
  const char* const group = "Beyond main.py";
  app.add_option("--checkpoint", o.checkpoint, "folder for the last two checkpoints and the best one")->group(group);
  app.add_option("--devices", o.devices,
                 "devices of this node; default: all GPUs, or 1, 2, 4 or 8 CPU devices by its cores")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  app.add_option("--classes", o.classes,
                 "outputs of the network; default: the classes of DIR, main.py's is always 1000")
      ->check(counts)
      ->group(group);
  app.add_option("--image-size", o.image_size, "rows and columns of an image of a folder")->check(counts)->group(group);
  app.add_option("--stem", o.stem, "first layers of a ResNet; cifar is for small images")
      ->check(CLI::IsMember({"imagenet", "cifar"}))
      ->group(group);
  app.add_option("--width", o.width, "outputs of the first convolution; all others are in proportion")
      ->check(counts)
      ->group(group);
  app.add_flag("--sync-bn", o.sync_bn,
               "batch norms with statistics of the whole batch: the same bits on up to 8 devices and processes")
      ->group(group);
  app.add_flag("--no-augment", o.no_augment, "train on images as they are evaluated: resized, the centre")
      ->group(group);
  app.add_flag("--skip-broken", o.skip_broken, "name and leave out images that cannot be decoded")->group(group);
  app.add_flag("--partial", o.partial, "leave out what does not fit of --pretrained, as a classifier of other classes")
      ->group(group);
}

/// Returns the exit code if the program ends here: after --help, or a wrong command line.
inline std::optional<int> read_command_line(int argc, char** argv, ImageNetOptions& options) {
  CLI::App app("Trains a network on a folder of images, as pytorch/examples' imagenet/main.py does.", "imagenet");
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // as argparse
  add_main_options(app, options);
  add_own_options(app, options);
  try {
    app.parse(argc, argv);
    return {};
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << "imagenet: " << error.what() << ", see --help" << std::endl;
    return 2;
  }
}

inline duet::nn::NetworkOptions network_options(const ImageNetOptions& options, std::int64_t classes) {
  return {.classes = classes,
          .width = options.width,
          .stem = options.stem == "cifar" ? duet::nn::Stem::cifar : duet::nn::Stem::imagenet,
          .sync_batch_norm = options.sync_bn};
}

}  // namespace examples
