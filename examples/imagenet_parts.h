// The parts of imagenet.cpp that are made once: devices, data, network.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <duet/ddp/group/process_group.h>
#include <duet/dp/data_parallel.h>
#include <duet/lib/backend/backend.h>
#include <duet/lib/base/threads.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/data/images/drawn_images.h>
#include <duet/lib/data/images/image_folder.h>
#include <duet/lib/data/images/view.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/device.h>
#include <duet/lib/error.h>
#include <duet/lib/io/safetensors.h>
#include <duet/lib/nn/alexnet_vgg.h>
#include <duet/lib/nn/module.h>
#include <duet/lib/nn/networks.h>
#include <duet/lib/tensor.h>
#include <duet/samplers/batch.h>

#include "imagenet_options.h"

namespace examples {

using namespace duet;

/// What this process is, and what it computes on.
struct Place {
  std::vector<Device> devices;         // this process's; the first holds the model
  int on_node = 1;                     // processes that share a node's batch and workers
  ddp::ProcessGroup* group = nullptr;  // null: not distributed
  int saver = 0;                       // the rank that saves checkpoints of this node
  int rank() const { return group != nullptr ? group->rank() : 0; }
  bool saves() const { return rank() == saver; }
  int world_size() const { return group != nullptr ? group->size() : 1; }
  void wait_for_all() const {
    if (group != nullptr) group->barrier().wait();
  }
};

inline DeviceKind device_kind(const ImageNetOptions& options) {
  if (options.no_accel || !why_no_cuda().empty()) return DeviceKind::cpu;
  try {
    return backend(DeviceKind::cuda).device_count() > 0 ? DeviceKind::cuda : DeviceKind::cpu;
  } catch (const DeviceError&) {  // the toolkit is there, a driver is not
    return DeviceKind::cpu;
  }
}

/// All GPUs; of CPUs, which have as many devices as are asked for, a number with the bits of one.
inline std::vector<Device> devices_of_node(const ImageNetOptions& options) {
  const DeviceKind kind = device_kind(options);
  const int cores = std::clamp(usable_cores(), 1, kBlocks);
  const int all = kind == DeviceKind::cuda ? backend(kind).device_count()
                                           : static_cast<int>(std::bit_floor(static_cast<unsigned>(cores)));
  const int count = options.devices.value_or(all);
  require<UsageError>(kind == DeviceKind::cpu || count <= all, "--devices is ", count, ", this node has ", all,
                      " GPUs");
  return first_devices(kind, count);
}

/// --gpu, or the device with the number of a rank among those of its node.
inline Device device_of_rank(const ImageNetOptions& options, int local_rank) {
  const DeviceKind kind = device_kind(options);
  const Device device{kind, options.gpu.value_or(local_rank)};
  require<UsageError>(kind == DeviceKind::cpu || device.index < backend(kind).device_count(), "no device ",
                      device.str());
  return device;
}

struct Data {
  std::unique_ptr<data::Dataset> train, val;
  std::int64_t classes = 0;
};

inline Data drawn_data(const std::string& description) {
  const data::DrawnSets sets = data::parse_drawn_images(description);
  return {std::make_unique<data::DrawnImages>(sets.train), std::make_unique<data::DrawnImages>(sets.test),
          sets.train.classes};
}

inline Data open_data(const ImageNetOptions& options, std::uint64_t seed) {
  if (options.dummy)
    return drawn_data(concat("synthetic:classes=", options.classes.value_or(1000), ",size=", options.image_size,
                             ",train=1281167,test=50000"));
  if (data::names_drawn_images(options.folder)) return drawn_data(options.folder);
  const data::ResizeCentreCrop centre{.resize = options.image_size * 256 / 224, .size = options.image_size};
  data::ImageFolderOptions train{.transform = centre, .skip_broken = options.skip_broken};
  if (!options.no_augment) train.transform = data::RandomResizedCrop{.size = options.image_size, .seed = seed};
  auto images = std::make_unique<data::ImageFolder>(options.folder + "/train", train);
  auto unseen = std::make_unique<data::ImageFolder>(
      options.folder + "/val", data::ImageFolderOptions{.transform = centre, .skip_broken = options.skip_broken});
  data::require_same_classes(options.folder, *images, *unseen);
  const auto classes = static_cast<std::int64_t>(images->classes().size());
  return {std::move(images), std::move(unseen), classes};
}

/// Every rank reads its rows of the same global batches, each image once: nothing is padded.
inline std::unique_ptr<data::Loader> make_loader(const data::Dataset& set, std::unique_ptr<data::Sampler> order,
                                                 const ImageNetOptions& options, const Place& place) {
  const samplers::BlockedOptions batches{.global_batch = options.batch / place.on_node * place.world_size(),
                                         .world_size = place.world_size(),
                                         .rank = place.rank(),
                                         .whole_blocks = device_kind(options) == DeviceKind::cpu};
  const int workers = (options.workers + place.on_node - 1) / place.on_node;
  return std::make_unique<data::Loader>(set, std::make_unique<samplers::BlockedBatches>(std::move(order), batches),
                                        data::LoaderOptions{.workers = workers});
}

/// The network and its wrapper, if any: in alexnet and vgg DataParallel runs the features only, as main.py has it.
struct Network {
  std::unique_ptr<nn::Module> model, wrapper;
  nn::Module& net() { return wrapper != nullptr ? *wrapper : *model; }
};

inline Network make_network(const ImageNetOptions& options, const Place& place, std::int64_t classes) {
  Network network;
  network.model = nn::make_network(options.arch, network_options(options, classes));
  if (place.group != nullptr || place.devices.size() == 1) return network;
  const dp::DataParallelOptions parallel{.devices = place.devices};
  if (auto* const features = dynamic_cast<nn::FeatureNetwork*>(network.model.get()); features != nullptr)
    features->wrap_features(std::make_unique<dp::DataParallel>(features->features(), parallel));
  else
    network.wrapper = std::make_unique<dp::DataParallel>(*network.model, parallel);
  return network;
}

inline void load_pretrained(nn::Module& model, const ImageNetOptions& options) {
  const TensorFile file = load_tensors(options.pretrained);
  if (!options.partial) return copy_by_name(file.tensors, model.state_dict(), options.pretrained);
  const LeftOut left_out = model.load_what_fits(file.tensors);
  for (const std::string& name : left_out.kept)
    std::printf("=> not taken from %s: '%s'\n", options.pretrained.c_str(), name.c_str());
}

}  // namespace examples
