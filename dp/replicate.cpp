#include "dp/replicate.h"

#include <algorithm>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::dp {
namespace {

bool shares_memory(Device a, Device b) { return a == b || (a.kind == b.kind && backend(a.kind).shares_memory()); }

}  // namespace

Replicas::Replicas(const nn::Module& module, std::span<const Device> devices, Refresh refresh, Forward forward)
    : module_(module),
      devices_(devices.begin(), devices.end()),
      refresh_(refresh),
      forward_(std::move(forward)),
      threads_(std::make_shared<ThreadPool>(std::max(1, static_cast<int>(devices.size())),
                                            [devices = devices_](int worker) {
                                              const Device device = devices[static_cast<std::size_t>(worker)];
                                              backend(device.kind).bind_thread(device);
                                            })),
      sums_(static_cast<int>(devices.size())) {
  require<UsageError>(!devices.empty(), "DataParallel: no devices given");
  for (auto device = devices_.begin(); device != devices_.end(); ++device)
    require<UsageError>(std::find(devices_.begin(), device, *device) == device, "DataParallel: device ", *device,
                        " is named twice");
}

void Replicas::make_contexts(const nn::Context& model) {
  const nn::Module::Range& range = module_.range();
  stores_.clear();
  contexts_.clear();
  for (const Device device : devices_) {
    const bool first = stores_.empty();
    const bool share = first || (refresh_ == Refresh::resident && shares_memory(device, devices_[0]));
    stores_.push_back(model.store->replica(device, {.first_slot = range.first_slot - model.first_slot,
                                                    .slots = range.slots,
                                                    .first_buffer = range.first_buffer - model.first_buffer,
                                                    .buffers = range.buffers,
                                                    .share_values = share,
                                                    .share_buffers = first}));
    contexts_.push_back(
        {.store = stores_.back().get(), .first_slot = range.first_slot, .first_buffer = range.first_buffer});
    contexts_.back().batch_sums = &sums_.of(static_cast<int>(contexts_.size()) - 1);
  }
  if (std::all_of(devices_.begin(), devices_.end(), [&](Device d) { return shares_memory(d, devices_[0]); }))
    model.store->set_threads(threads_);
  replicated_ = model.store;
}

void Replicas::replicate(const nn::Context& model, int count) {
  require<DeviceError>(model.store->device() == devices_[0], "module must have its parameters and buffers on device ",
                       devices_[0], " (the first device) but found them on ", model.store->device());
  if (replicated_ != model.store) make_contexts(model);
  const nn::Module::Range& range = module_.range();
  const Tensor values = model.store->values_of(range.first_slot - model.first_slot, range.slots);
  bool copies = range.buffers > 0;
  for (int i = 0; i < count; ++i) {
    nn::Context& context = contexts_[static_cast<std::size_t>(i)];
    context.training = model.training;
    context.seed = model.seed;
    context.step = model.step;
    copies |= !context.store->values().same_memory(values);
  }
  if (!copies) return;
  threads_->run(size(), [&](int i, int) {
    if (i >= count) return;
    nn::Context& context = contexts_[static_cast<std::size_t>(i)];
    if (!context.store->values().same_memory(values)) copy(values, context.store->values());
    for (int b = 0; i > 0 && b < range.buffers; ++b)
      copy(model.buffer(range.first_buffer + b), context.buffer(range.first_buffer + b));
  });
}

void Replicas::sum_gradients(std::span<const char> took_part, const Tensor& destination) {
  PooledVector<Tensor> parts;
  for (int i = 0; i < size(); ++i) {
    const Tensor part = context(i).store->gradients();
    if (!took_part[static_cast<std::size_t>(i)]) backend(part).fill(part, 0.0f);
    parts.push_back(part);
  }
  threads_->run(size(),
                [&](int share, int) { backend(destination).sum_devices(parts, destination, false, share, size()); });
}

}  // namespace duet::dp
