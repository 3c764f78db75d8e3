#include "dp/replicate.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::dp {
namespace {

bool shares_memory(Device a, Device b) { return a == b || (a.kind == b.kind && backend(a.kind).shares_memory()); }

}  // namespace

Replicas::Replicas(const nn::Module& module, std::span<const Device> devices, Refresh refresh, DeviceSum sum,
                   Forward forward)
    : module_(module),
      devices_(devices.begin(), devices.end()),
      refresh_(refresh),
      sum_(sum),
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
    const bool share = first || (refresh_ == Refresh::persistent && shares_memory(device, devices_[0]));
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
  persistent_.reset();
  if (can_persist(model)) {
    std::vector<nn::ParameterStore*> copies;
    for (std::size_t i = 1; i < stores_.size(); ++i) copies.push_back(stores_[i].get());
    persistent_ = std::make_shared<PersistentReplicas>(*model.store, std::move(copies));
  }
  replicated_ = model.store;
}

bool Replicas::can_persist(const nn::Context& model) const {
  const Device first = devices_[0];
  return refresh_ == Refresh::persistent && size() > 1 && module_.range().slots == model.store->slot_count() &&
         std::all_of(devices_.begin(), devices_.end(), [&](Device device) { return device.kind == first.kind; }) &&
         !backend(first.kind).shares_memory();
}

void Replicas::require_same_values() const {
  if (persistent_ == nullptr || !persistent_->has_values()) return;
  const Tensor first = std::as_const(*replicated_).values().to(Device{});
  for (std::size_t i = 1; i < stores_.size(); ++i) {
    const Tensor other = std::as_const(*stores_[i]).values().to(Device{});
    require<NumericError>(std::memcmp(first.raw(), other.raw(), first.bytes()) == 0, "replica ", i, " on device ",
                          devices_[i], " holds other parameters than the model on ", devices_[0]);
  }
}

void Replicas::replicate(const nn::Context& model, int count) {
  require<DeviceError>(model.store->device() == devices_[0], "module must have its parameters and buffers on device ",
                       devices_[0], " (the first device) but found them on ", model.store->device());
  if (replicated_ != model.store) make_contexts(model);
  const nn::Module::Range& range = module_.range();
  const Tensor values = model.store->values_of(range.first_slot - model.first_slot, range.slots);
  const bool holds = persistent_ != nullptr && persistent_->has_values() && model.store->update_site() == persistent_;
  const auto lacks_values = [&](const nn::Context& context) {
    return !holds && !context.store->values().same_memory(values);
  };
  bool copies = range.buffers > 0;
  for (int i = 0; i < size(); ++i) {
    nn::Context& context = contexts_[static_cast<std::size_t>(i)];
    context.training = model.training;
    context.seed = model.seed;
    context.step = model.step;
    context.fuse = model.fuse;
    copies |= lacks_values(context);
  }
  if (!copies) return;
  if (persistent_ != nullptr && !holds) persistent_->values_written();
  threads_->run(size(), [&](int i, int) {
    if (i >= count && persistent_ == nullptr) return;
    nn::Context& context = contexts_[static_cast<std::size_t>(i)];
    if (lacks_values(context)) copy(values, context.store->values());
    for (int b = 0; i > 0 && b < range.buffers; ++b)
      copy(model.buffer(range.first_buffer + b), context.buffer(range.first_buffer + b));
  });
  if (persistent_ == nullptr || holds) return;
  persistent_->set_values_copied();
  model.store->set_update_site(persistent_);
}

void Replicas::sum_gradients(std::span<const char> took_part, const Tensor& destination, bool for_all) {
  PooledVector<Tensor> parts;
  for (int i = 0; i < size(); ++i) {
    const Tensor part = context(i).store->gradients();
    if (!took_part[static_cast<std::size_t>(i)]) backend(part).fill(part, 0.0f);
    parts.push_back(part);
  }
  if ((persistent_ != nullptr && for_all) || sum_ != DeviceSum::tree) {
    PooledVector<Tensor> destinations = parts;
    destinations[0] = destination;
    backend(destination).all_reduce_devices(parts, destinations, sum_);
    if (persistent_ != nullptr) persistent_->set_gradients_copied(for_all);
    return;
  }
  threads_->run(size(),
                [&](int share, int) { backend(destination).sum_devices(parts, destination, false, share, size()); });
}

}  // namespace duet::dp
