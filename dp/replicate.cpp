#include "dp/replicate.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/backend/step_graph.h"
#include "lib/base/trace.h"
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

ReplicaSums::ReplicaSums(std::vector<DeviceTurns*> turns) : turns_(std::move(turns)), parts_(turns_.size()) {
  for (std::size_t replica = 0; replica < turns_.size(); ++replica)
    entrances_.emplace_back(*this, static_cast<int>(replica));
}

void ReplicaSums::begin(int count, const SumOrder& order, BatchSums* others) {
  const std::lock_guard lock(mutex_);
  count_ = count;
  order_ = &order;
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

double ReplicaSums::sum(int replica, std::span<double> values, int parts, bool of_gradients) {
  require<UsageError>(parts == 1, "replica ", replica, " sums ", parts, " parts, but it has one");
  std::unique_lock lock(mutex_);
  const std::uint64_t round = round_;
  parts_[static_cast<std::size_t>(replica)] = values;
  if (++arrived_ == count_) {
    add_up();
    const int sums = static_cast<int>(order_->results.size());
    if (of_gradients)
      samples_ = others_ != nullptr ? others_->sum_gradients(result_, sums) : result_.back();
    else if (others_ != nullptr)
      others_->sum(result_, sums);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    std::copy_n(result_.begin(), values.size(), values.begin());
    return samples_;
  }
  DeviceTurns* const turns = turns_[static_cast<std::size_t>(replica)];
  if (turns != nullptr) turns->wait_begins();
  changed_.wait(lock, [&] { return round_ != round || left_ || cause_; });
  const bool summed = round_ != round;
  const std::exception_ptr cause = cause_;
  const double samples = samples_;
  if (summed) std::copy_n(result_.begin(), values.size(), values.begin());
  lock.unlock();
  if (turns != nullptr) turns->wait_ended();
  if (!summed && cause) throw OtherReplicaFailed{cause};
  require<UsageError>(summed, "replica ", replica, " sums over the batch, but another one has ended");
  return samples;
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
  const auto of = [&](int replica) { return scratch_.begin() + replica * static_cast<std::ptrdiff_t>(width); };
  for (const auto& [to, from] : order_->additions) std::transform(of(to), of(to + 1), of(from), of(to), std::plus<>());
  result_.clear();
  for (const int replica : order_->results)
    if (replica < 0)
      result_.resize(result_.size() + width, 0);
    else
      result_.insert(result_.end(), of(replica), of(replica + 1));
}

namespace {

/// By device; null where it has one replica.
std::vector<std::unique_ptr<DeviceTurns>> turns_of(const ReplicaPlaces& places) {
  std::vector<std::unique_ptr<DeviceTurns>> turns;
  for (int d = 0; d < static_cast<int>(places.devices.size()); ++d) {
    const auto [begin, end] = std::equal_range(places.device_of.begin(), places.device_of.end(), d);
    const auto first = static_cast<int>(begin - places.device_of.begin()), count = static_cast<int>(end - begin);
    const Device device = places.devices[static_cast<std::size_t>(d)];
    turns.push_back(count < 2 ? nullptr : std::make_unique<DeviceTurns>(device, first, first + count));
  }
  return turns;
}

std::vector<DeviceTurns*> by_replica(const ReplicaPlaces& places,
                                     const std::vector<std::unique_ptr<DeviceTurns>>& turns) {
  std::vector<DeviceTurns*> all;
  for (const int d : places.device_of) all.push_back(turns[static_cast<std::size_t>(d)].get());
  return all;
}

std::shared_ptr<ThreadPool> make_threads(const std::vector<Device>& devices) {
  return std::make_shared<ThreadPool>(std::max(1, static_cast<int>(devices.size())), [devices](int worker) {
    const Device device = devices[static_cast<std::size_t>(worker)];
    backend(device.kind).bind_thread(device);
  });
}

}  // namespace

Replicas::Replicas(const nn::Module& module, ReplicaPlaces places, Refresh refresh, Forward forward,
                   std::shared_ptr<ThreadPool> threads)
    : module_(module),
      places_(std::move(places)),
      refresh_(refresh),
      forward_(std::move(forward)),
      threads_(threads != nullptr ? std::move(threads) : make_threads(places_.devices)),
      turns_(turns_of(places_)),
      sums_(by_replica(places_, turns_)) {
  require<UsageError>(!devices().empty(), "DataParallel: no devices given");
  for (auto device = devices().begin(); device != devices().end(); ++device)
    require<UsageError>(std::find(devices().begin(), device, *device) == device, "DataParallel: device ", *device,
                        " is named twice");
  for (std::size_t d = 0; d < turns_.size(); ++d) {
    device_orders_.emplace_back();
    device_sums_.push_back(nullptr);
    if (turns_[d] == nullptr) continue;
    std::vector<Subtree> own;
    for (int i = turns_[d]->begin(); i < turns_[d]->end(); ++i)
      own.push_back(places_.subtrees[static_cast<std::size_t>(i)]);
    device_orders_[d].additions = additions_of(own, std::span<const Subtree>({Subtree{0, places_.blocks}}));
    device_sums_[d] = std::make_unique<ReplicaSums>(std::vector(own.size(), turns_[d].get()));
  }
}

void Replicas::run(FunctionRef<void(int)> task, const char* name) {
  const auto on_device = [&](int d) {
    const auto& turns = turns_[static_cast<std::size_t>(d)];
    const int first = first_replica(d);
    if (turns == nullptr && first < size() && device_number(first) == d) task(first);
    if (turns == nullptr) return;
    const TraceSpan span(places_.traced ? name : nullptr, devices()[static_cast<std::size_t>(d)]);
    turns->run(task);
  };
  const int count = static_cast<int>(devices().size());
  if (recording_of(devices()[0]) == 0) return threads_->run(count, [&](int d, int) { on_device(d); });
  StepRecorder& recorder = *backend(devices()[0].kind).recorder(devices()[0]);
  threads_->run(count, [&](int d, int) { recorder.take_part([&] { on_device(d); }); });
}

void Replicas::begin_sums(int count, const SumOrder& order, BatchSums* others) {
  sums_.begin(count, order, others);
  for (std::size_t d = 0; d < turns_.size(); ++d)
    if (turns_[d] != nullptr) device_sums_[d]->begin(turns_[d]->size(), device_orders_[d], nullptr);
}

void Replicas::end_sums(int replica, const std::exception_ptr& cause) {
  sums_.end(cause);
  if (const auto& own = device_sums_[static_cast<std::size_t>(device_number(replica))]) own->end(cause);
}

void Replicas::make_contexts(const nn::Context& model) {
  const nn::Module::Range& range = module_.range();
  ++contexts_number_;
  stores_.clear();
  contexts_.clear();
  for (int i = 0; i < size(); ++i) {
    const Device device = this->device(i);
    const bool first = i == 0;
    const bool share = first || (refresh_ == Refresh::persistent && shares_memory(device, devices()[0]));
    stores_.push_back(model.store->replica(device, {.first_slot = range.first_slot - model.first_slot,
                                                    .slots = range.slots,
                                                    .first_buffer = range.first_buffer - model.first_buffer,
                                                    .buffers = range.buffers,
                                                    .share_values = share,
                                                    .share_buffers = first}));
    contexts_.push_back(
        {.store = stores_.back().get(), .first_slot = range.first_slot, .first_buffer = range.first_buffer});
    contexts_.back().batch_sums = &sums_.of(i);
    const auto d = static_cast<std::size_t>(device_number(i));
    if (turns_[d] != nullptr) contexts_.back().device_sums = &device_sums_[d]->of(i - turns_[d]->begin());
  }
  if (std::ranges::all_of(devices(), [&](Device d) { return shares_memory(d, devices()[0]); }))
    model.store->residence().set_threads(threads_);
  replicated_ = model.store;
  // With an owner of its own: the site expires when the contexts are made of another store.
  site_ = can_persist(model) ? std::shared_ptr<UpdateSite>(std::make_shared<char>(), this) : nullptr;
  has_values_ = has_gradients_ = false;
}

bool Replicas::can_persist(const nn::Context& model) const {
  const Device first = devices()[0];
  return refresh_ == Refresh::persistent && size() > 1 && module_.range().slots == model.store->slot_count() &&
         std::ranges::all_of(devices(), [&](Device device) { return device.kind == first.kind; }) &&
         !backend(first.kind).shares_memory();
}

void Replicas::require_same_values() const {
  if (site_ == nullptr || !has_values_) return;
  const Tensor first = std::as_const(*replicated_).values().to(Device{});
  for (std::size_t i = 1; i < stores_.size(); ++i) {
    const Tensor other = std::as_const(*stores_[i]).values().to(Device{});
    require<NumericError>(std::memcmp(first.raw(), other.raw(), first.bytes()) == 0, "replica ", i, " on device ",
                          stores_[i]->device(), " holds other parameters than the model on ", devices()[0]);
  }
}

bool Replicas::holds_values() const {
  return site_ != nullptr && has_values_ && replicated_->residence().update_site() == site_;
}

void Replicas::attach_to_recording() {
  attach_once(devices()[0], recording_,
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
  require<DeviceError>(model.store->device() == devices()[0], "module must have its parameters and buffers on device ",
                       devices()[0], " (the first device) but found them on ", model.store->device());
  if (replicated_ != model.store) make_contexts(model);
  set_order(model);
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
    copies->recording = recording_of(devices()[0]);
    state.at_site = copies;
  }
  attach_once(devices()[0], copies->updated_in,
              [&](int recording) { return std::make_shared<RecordedUpdate>(copies, copies->recording == recording); });
  const nn::FlatParameters& model = *replicated_;
  for (std::size_t i = 1; !has_gradients_ && i < stores_.size(); ++i) copy(model.gradients(), stores_[i]->gradients());
  has_gradients_ = true;
  has_values_ = false;  // until all of them are updated
  rule(model.update_run(state, state.buffers));
  for (std::size_t i = 1; i < stores_.size(); ++i) rule(stores_[i]->update_run(state, copies->of_replica[i]));
  has_values_ = true;
}

/// One sum for each subtree of a rank that owns several, where the outer wrapper adds these up and the replicas have
/// parts of no others; else one for all.
void Replicas::set_order(const nn::Context& model) {
  const auto& own = places_.subtrees;
  std::vector<Subtree> targets = {{0, places_.blocks}};
  if (const auto& parts = model.gradient_parts; parts != nullptr && parts->blocks == places_.blocks) {
    const auto lies_in = [](const Subtree& one) {
      return [&one](const Subtree& target) { return target.first <= one.first && one.end() <= target.end(); };
    };
    if (std::ranges::all_of(own,
                            [&](const Subtree& one) { return std::ranges::any_of(parts->subtrees, lies_in(one)); }))
      targets = parts->subtrees;
  }
  std::vector<std::pair<int, int>> key;
  for (const Subtree& target : targets) key.emplace_back(target.first, target.blocks);
  const auto [found, added] = orders_.try_emplace(key);
  order_ = &found->second;
  if (!added) return;
  found->second.additions = own.empty() ? additions_of(size()) : additions_of(own, targets);
  if (own.empty()) return;
  found->second.results.clear();
  for (const Subtree& target : targets) {
    const auto first = std::ranges::find_if(
        own, [&](const Subtree& one) { return target.first <= one.first && one.end() <= target.end(); });
    found->second.results.push_back(first == own.end() ? -1 : static_cast<int>(first - own.begin()));
  }
}

/// Adds up in runs that the cache holds. The gradients of the replicas are overwritten.
void Replicas::sum_pieces(const SumOrder& order, std::span<const Tensor> parts, std::span<const Tensor> destinations,
                          int share) const {
  constexpr std::int64_t kCached = 16384;  // elements
  const std::int64_t runs = (parts[0].count() + kCached - 1) / kCached, shares = std::ssize(devices());
  for (std::int64_t run = block_begin(share, runs, shares); run < block_begin(share + 1, runs, shares); ++run) {
    const std::int64_t begin = run * kCached, count = std::min(kCached, parts[0].count() - begin);
    const auto at = [&](const Tensor& whole) { return whole.slice(begin, {count}); };
    for (const auto& [to, from] : order.additions) {
      const Tensor sum = at(parts[static_cast<std::size_t>(to)]);
      backend(sum).add(sum, at(parts[static_cast<std::size_t>(from)]), sum);
    }
    for (std::size_t i = 0; i < destinations.size(); ++i)
      if (order.results[i] < 0)
        backend(parts[0]).fill(at(destinations[i]), 0.0f);
      else
        copy(at(parts[static_cast<std::size_t>(order.results[i])]), at(destinations[i]));
  }
}

void Replicas::sum_gradients(const SumOrder& order, std::span<const char> took_part,
                             std::span<const Tensor> destinations, bool for_all) {
  const Tensor& destination = destinations[0];
  PooledVector<Tensor> parts;
  for (int i = 0; i < size(); ++i) {
    const Tensor part = context(i).store->gradients();
    if (!took_part[static_cast<std::size_t>(i)]) backend(part).fill(part, 0.0f);
    parts.push_back(part);
  }
  if (site_ != nullptr && for_all) {
    PooledVector<Tensor> all = parts;
    all[0] = destination;
    backend(destination).all_reduce_devices(parts, all);
    has_gradients_ = true;
    return;
  }
  const int shares = threads_->workers();
  threads_->run(shares, [&](int share, int) {
    if (places_.subtrees.empty()) return backend(destination).sum_devices(parts, destination, false, share, shares);
    sum_pieces(order, parts, destinations, share);
  });
}

}  // namespace duet::dp
