#include "dp/replicate.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/backend/step_graph.h"
#include "lib/error.h"

namespace duet::dp {
namespace {

bool shares_memory(Device a, Device b) { return a == b || (a.kind == b.kind && backend(a.kind).shares_memory()); }

/// Recorded steps of replicas, whose values may be written between two replays.
class RecordedReplicas final : public RecordedWork {
 public:
  RecordedReplicas(std::shared_ptr<Replicas> replicas, int contexts_number)
      : replicas_(std::move(replicas)), contexts_number_(contexts_number) {}
  ~RecordedReplicas() override {
    if (!launched_) replicas_->forget_values();
  }
  RecordedReplicas(const RecordedReplicas&) = delete;
  RecordedReplicas& operator=(const RecordedReplicas&) = delete;
  void replay(FunctionRef<void()> launch) override {
    replicas_->prepare_replay(contexts_number_);
    launch();
    launched_ = true;
  }

 private:
  std::shared_ptr<Replicas> replicas_;
  int contexts_number_;
  bool launched_ = false;
};

/// Copies of the optimizer's buffers.
struct StateCopies {
  std::vector<std::vector<Tensor>> of_replica;  // none of the first
  int recording = 0;                            // in which they were made; 0: none
  int updated_in = 0;                           // the last recording that holds an update of them
  bool valid = true;                            // false: they were made in a recording that was never replayed
};

/// A recorded update works on copies of the optimizer's state that must still be in use at a replay.
class RecordedUpdate final : public RecordedWork {
 public:
  RecordedUpdate(const std::shared_ptr<StateCopies>& copies, bool made) : copies_(copies), made_(made) {}
  ~RecordedUpdate() override {
    const std::shared_ptr<StateCopies> copies = copies_.lock();
    if (made_ && copies != nullptr) copies->valid = false;
  }
  RecordedUpdate(const RecordedUpdate&) = delete;
  RecordedUpdate& operator=(const RecordedUpdate&) = delete;
  void replay(FunctionRef<void()> launch) override {
    require<UsageError>(!copies_.expired(),
                        "the optimizer's state was replaced after the step was recorded: a new StepGraph is needed");
    launch();
    made_ = false;
  }

 private:
  std::weak_ptr<StateCopies> copies_;
  bool made_;  // in this recording, which was never replayed
};

/// Puts work into the recording of a device that runs, unless `last` is its number; then it becomes that.
template <class MakeWork>
void attach_once(Device device, int& last, MakeWork make_work) {
  const int recording = recording_of(device);
  if (recording == 0 || recording == last) return;
  backend(device.kind).recorder(device)->attach(make_work(recording));
  last = recording;
}

}  // namespace

ReplicaSums::ReplicaSums(int replicas) : parts_(static_cast<std::size_t>(replicas)) {
  for (int replica = 0; replica < replicas; ++replica) entrances_.emplace_back(*this, replica);
}

void ReplicaSums::begin(int count, BatchSums* others) {
  const std::lock_guard lock(mutex_);
  count_ = count;
  others_ = others;
  arrived_ = 0;
  left_ = false;
  cause_ = nullptr;
  std::fill(parts_.begin(), parts_.end(), std::span<double>());
}

void ReplicaSums::end(std::exception_ptr cause) {
  const std::lock_guard lock(mutex_);
  left_ |= cause == nullptr;
  if (cause_ == nullptr) cause_ = std::move(cause);
  changed_.notify_all();
}

double ReplicaSums::sum(int replica, std::span<double> values, bool of_gradients) {
  std::unique_lock lock(mutex_);
  const std::uint64_t round = round_;
  parts_[static_cast<std::size_t>(replica)] = values;
  if (++arrived_ == count_) {
    add_up();
    if (of_gradients)
      samples_ = others_ != nullptr ? others_->sum_gradients(result_) : result_.back();
    else if (others_ != nullptr)
      others_->sum(result_);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  } else {
    changed_.wait(lock, [&] { return round_ != round || left_ || cause_; });
  }
  if (round_ == round && cause_) throw OtherReplicaFailed{cause_};
  require<UsageError>(round_ != round, "replica ", replica, " sums over the batch, but another one has ended");
  std::copy(result_.begin(), result_.end(), values.begin());
  return samples_;
}

/// Replicas without rows count as zeros, which change no bits.
void ReplicaSums::add_up() {
  const std::size_t width = parts_[0].size();
  for (int replica = 0; replica < count_; ++replica)
    require<UsageError>(parts_[static_cast<std::size_t>(replica)].size() == width, "replica ", replica, " sums up ",
                        parts_[static_cast<std::size_t>(replica)].size(), " numbers, replica 0 ", width);
  scratch_.assign(width * parts_.size(), 0);
  for (std::size_t i = 0; i < parts_.size(); ++i)
    std::copy(parts_[i].begin(), parts_[i].end(), scratch_.begin() + static_cast<std::ptrdiff_t>(i * width));
  const bool tree = (parts_.size() & (parts_.size() - 1)) == 0;
  const auto add = [&](std::size_t to, std::size_t from) {
    for (std::size_t k = 0; k < width; ++k) scratch_[to * width + k] += scratch_[from * width + k];
  };
  for (std::size_t step = 1; tree && step < parts_.size(); step *= 2)
    for (std::size_t i = 0; i < parts_.size(); i += 2 * step) add(i, i + step);
  for (std::size_t i = 1; !tree && i < parts_.size(); ++i) add(0, i);
  result_.assign(scratch_.begin(), scratch_.begin() + static_cast<std::ptrdiff_t>(width));
}

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

void Replicas::run(FunctionRef<void(int)> task) {
  if (recording_of(devices_[0]) == 0) return threads_->run(size(), [&](int i, int) { task(i); });
  StepRecorder& recorder = *backend(devices_[0].kind).recorder(devices_[0]);
  threads_->run(size(), [&](int i, int) { recorder.take_part([&] { task(i); }); });
}

void Replicas::make_contexts(const nn::Context& model) {
  const nn::Module::Range& range = module_.range();
  ++contexts_number_;
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
    model.store->residence().set_threads(threads_);
  replicated_ = model.store;
  // With an owner of its own: the site expires when the contexts are made of another store.
  site_ = can_persist(model) ? std::shared_ptr<UpdateSite>(std::make_shared<char>(), this) : nullptr;
  has_values_ = has_gradients_ = false;
}

bool Replicas::can_persist(const nn::Context& model) const {
  const Device first = devices_[0];
  return refresh_ == Refresh::persistent && size() > 1 && module_.range().slots == model.store->slot_count() &&
         std::all_of(devices_.begin(), devices_.end(), [&](Device device) { return device.kind == first.kind; }) &&
         !backend(first.kind).shares_memory();
}

void Replicas::require_same_values() const {
  if (site_ == nullptr || !has_values_) return;
  const Tensor first = std::as_const(*replicated_).values().to(Device{});
  for (std::size_t i = 1; i < stores_.size(); ++i) {
    const Tensor other = std::as_const(*stores_[i]).values().to(Device{});
    require<NumericError>(std::memcmp(first.raw(), other.raw(), first.bytes()) == 0, "replica ", i, " on device ",
                          devices_[i], " holds other parameters than the model on ", devices_[0]);
  }
}

bool Replicas::holds_values() const {
  return site_ != nullptr && has_values_ && replicated_->residence().update_site() == site_;
}

void Replicas::attach_to_recording() {
  attach_once(devices_[0], recording_,
              [&](int) { return std::make_shared<RecordedReplicas>(shared_from_this(), contexts_number_); });
}

void Replicas::prepare_replay(int contexts_number) {
  require<UsageError>(contexts_number == contexts_number_,
                      "the replicas were made again after the step was recorded: a new StepGraph is needed");
  if (site_ == nullptr || holds_values()) return;
  const Tensor values = std::as_const(*replicated_).values();
  for (std::size_t i = 1; i < stores_.size(); ++i) copy(values, std::as_const(*stores_[i]).values());
  has_values_ = true;
  has_gradients_ = false;
  replicated_->residence().set_update_site(site_);
}

void Replicas::replicate(const nn::Context& model, int count, const nn::DrawCounts::Range& rows) {
  require<DeviceError>(model.store->device() == devices_[0], "module must have its parameters and buffers on device ",
                       devices_[0], " (the first device) but found them on ", model.store->device());
  if (replicated_ != model.store) make_contexts(model);
  attach_to_recording();
  const nn::Module::Range& range = module_.range();
  const Tensor values = model.store->values_of(range.first_slot - model.first_slot, range.slots);
  const bool holds = holds_values();
  const auto lacks_values = [&](const nn::Context& context) {
    return !holds && !context.store->values().same_memory(values);
  };
  bool copies = range.buffers > 0;
  for (int i = 0; i < size(); ++i) {
    nn::Context& context = contexts_[static_cast<std::size_t>(i)];
    context.seed = model.seed;
    context.step = model.step;
    context.draws.begin_piece(model.draws, rows);
    context.stamped = model.stamped;
    context.fuse = model.fuse;
    copies |= lacks_values(context);
  }
  if (!copies) return;
  if (!holds) has_values_ = false;
  run([&](int i) {
    if (i >= count && site_ == nullptr) return;
    nn::Context& context = contexts_[static_cast<std::size_t>(i)];
    if (lacks_values(context)) copy(values, context.store->values());
    if (i > 0 && range.buffers > 0)
      copy(model.store->buffer_run(range.first_buffer - model.first_buffer, range.buffers),
           context.store->buffer_run(0, range.buffers));
  });
  if (site_ == nullptr || holds) return;
  has_values_ = true;
  has_gradients_ = false;
  model.store->residence().set_update_site(site_);
}

void Replicas::update(nn::OptimizerState& state, Rule rule) {
  if (!has_values_) {
    state.at_site.reset();  // copies of the buffers miss this update
    return rule(replicated_->update_run(state, state.buffers));
  }
  auto copies = std::static_pointer_cast<StateCopies>(state.at_site);
  if (copies == nullptr || !copies->valid) {
    copies = std::make_shared<StateCopies>();
    copies->of_replica.resize(stores_.size());
    for (std::size_t i = 1; i < stores_.size(); ++i)
      for (const Tensor& buffer : state.buffers) copies->of_replica[i].push_back(buffer.to(stores_[i]->device()));
    copies->recording = recording_of(devices_[0]);
    state.at_site = copies;
  }
  attach_once(devices_[0], copies->updated_in,
              [&](int recording) { return std::make_shared<RecordedUpdate>(copies, copies->recording == recording); });
  const nn::FlatParameters& model = *replicated_;
  for (std::size_t i = 1; !has_gradients_ && i < stores_.size(); ++i) copy(model.gradients(), stores_[i]->gradients());
  has_gradients_ = true;
  has_values_ = false;  // until all of them are updated
  rule(model.update_run(state, state.buffers));
  for (std::size_t i = 1; i < stores_.size(); ++i) rule(stores_[i]->update_run(state, copies->of_replica[i]));
  has_values_ = true;
}

void Replicas::sum_gradients(std::span<const char> took_part, const Tensor& destination, bool for_all) {
  PooledVector<Tensor> parts;
  for (int i = 0; i < size(); ++i) {
    const Tensor part = context(i).store->gradients();
    if (!took_part[static_cast<std::size_t>(i)]) backend(part).fill(part, 0.0f);
    parts.push_back(part);
  }
  if ((site_ != nullptr && for_all) || sum_ != DeviceSum::tree) {
    PooledVector<Tensor> destinations = parts;
    destinations[0] = destination;
    backend(destination).all_reduce_devices(parts, destinations, sum_);
    has_gradients_ = site_ != nullptr && for_all;
    return;
  }
  threads_->run(size(),
                [&](int share, int) { backend(destination).sum_devices(parts, destination, false, share, size()); });
}

}  // namespace duet::dp
