#include "lib/optim/sgd.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::optim {

SGD::SGD(nn::Module& model, const SGDOptions& options)
    : store_(model.parameters()), held_(store_.hold("SGD")), options_(options), started_(store_.slots().size(), 0) {
  require<UsageError>(options.lr >= 0, "SGD: lr is ", options.lr, ", expected 0 or more");
  require<UsageError>(options.momentum >= 0 && options.weight_decay >= 0, "SGD: momentum ", options.momentum,
                      " and weight decay ", options.weight_decay, ", expected 0 or more");
  require<UsageError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                      "SGD: Nesterov momentum requires a momentum and zero dampening");
  if (options.momentum > 0) momentum_ = store_.flat_zeros();
}

void SGD::update(const Buffers& buffers, bool first) const {
  const SGDRule rule{.lr = options_.lr,
                     .momentum = options_.momentum,
                     .dampening = options_.dampening,
                     .weight_decay = options_.weight_decay,
                     .nesterov = options_.nesterov,
                     .first = first};
  store_.divide([&](int share, int shares) {
    backend(buffers.values).sgd_step(buffers.values, buffers.gradients, buffers.momentum, rule, share, shares);
  });
}

PooledVector<SGD::Buffers> SGD::all_buffers() {
  const nn::ParameterStore& own = store_;
  PooledVector<Buffers> all;
  all.push_back({own.values(), own.gradients(), momentum_});
  const std::shared_ptr<nn::ResidentReplicas> residents = store_.residents();
  if (residents == nullptr || !residents->hold_values) {
    residents_.reset();
    return all;
  }
  const bool hold_momentum = residents_.lock() == residents;
  if (!hold_momentum) resident_momentum_.assign(residents->stores.size(), Tensor());
  for (std::size_t i = 0; i < residents->stores.size(); ++i) {
    const nn::ParameterStore& replica = *residents->stores[i];
    if (!residents->hold_gradients) copy(own.gradients(), replica.gradients());
    if (!hold_momentum && momentum_.defined()) resident_momentum_[i] = momentum_.to(replica.device());
    all.push_back({replica.values(), replica.gradients(), resident_momentum_[i]});
  }
  residents->hold_gradients = true;
  residents_ = residents;
  return all;
}

bool SGD::started_alike() const {
  return std::all_of(started_.begin(), started_.end(), [&](char s) { return s == started_.front(); });
}

void SGD::update_run(std::int64_t begin, const Tensor& gradient, const Tensor& momentum) const {
  const Tensor values = std::as_const(store_).values().slice(begin, gradient.shape());
  if (started_alike()) return update({values, gradient, momentum}, started_.front() == 0);
  for (std::size_t i = 0; i < started_.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    const std::int64_t first = std::max<std::int64_t>(0, slot.offset - begin);
    const std::int64_t count = std::min(gradient.count(), slot.offset + slot.shape.count() - begin) - first;
    if (count <= 0) continue;
    const auto part = [&](const Tensor& run) { return run.defined() ? run.slice(first, {count}) : Tensor(); };
    update({part(values), part(gradient), part(momentum)}, started_[i] == 0);
  }
}

void SGD::share_step(const std::shared_ptr<nn::ShardedUpdate>& ranks) {
  bool any = false;
  for (int slot = 0; slot < store_.slot_count(); ++slot) any = any || store_.has_gradient(slot);
  if (!any) return;
  // At first the ranks have no momentum in common: each brings its shard of its own.
  const bool moves = momentum_.defined() && common_with_.lock() != ranks;
  const Tensor momentum = moves ? ranks->common_zeros() : momentum_;
  std::uint32_t rule = options_.nesterov ? 1 : 0;
  for (const float setting : {options_.lr, options_.momentum, options_.dampening, options_.weight_decay})
    rule = rule * 31 + std::bit_cast<std::uint32_t>(setting);
  ranks->run(rule, [&](std::int64_t begin, const Tensor& sums) {
    const Tensor part = momentum.defined() ? momentum.slice(begin, sums.shape()) : Tensor();
    if (moves) copy(momentum_.slice(begin, sums.shape()), part);
    update_run(begin, sums, part);
  });
  std::fill(started_.begin(), started_.end(), char{1});
  if (!moves) return;
  momentum_ = momentum;
  common_with_ = ranks;
  common_momentum_ = true;
}

void SGD::step() {
  if (const auto ranks = store_.sharded_update()) return share_step(ranks);
  if (std::exchange(common_momentum_, false)) {
    const Tensor own = store_.flat_zeros();
    copy(momentum_, own);
    momentum_ = own;
  }
  const PooledVector<Buffers> all = all_buffers();
  if (store_.has_all_gradients() && started_alike() && !started_.empty()) {
    for (const Buffers& buffers : all) update(buffers, started_.front() == 0);
    std::fill(started_.begin(), started_.end(), char{1});
    return;
  }
  for (int slot = 0; slot < store_.slot_count(); ++slot) {
    if (!store_.has_gradient(slot)) continue;
    const nn::Slot& at = store_.slots()[static_cast<std::size_t>(slot)];
    char& started = started_[static_cast<std::size_t>(slot)];
    const auto part = [&](const Tensor& flat) { return flat.defined() ? flat.slice(at.offset, at.shape) : Tensor(); };
    for (const Buffers& buffers : all)
      update({part(buffers.values), part(buffers.gradients), part(buffers.momentum)}, started == 0);
    started = 1;
  }
}

std::vector<nn::NamedTensor> SGD::state() const {
  store_.require_whole_values();
  std::vector<nn::NamedTensor> state;
  for (std::size_t i = 0; momentum_.defined() && i < started_.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    if (started_[i]) state.push_back({slot.name, momentum_.slice(slot.offset, slot.shape)});
  }
  return state;
}

void SGD::load_state(const std::vector<nn::NamedTensor>& state) {
  require<DataError>(state.empty() || momentum_.defined(), "SGD: the state has momentum buffers, this optimizer none");
  for (const nn::NamedTensor& given : state) {
    const auto slot = std::find_if(store_.slots().begin(), store_.slots().end(),
                                   [&](const nn::Slot& own) { return own.name == given.name; });
    require<DataError>(slot != store_.slots().end(), "SGD: no parameter '", given.name, "' for a momentum buffer");
    require<DataError>(slot->shape == given.tensor.shape() && given.tensor.dtype() == DType::f32,
                       "SGD: momentum buffer '", given.name, "' has shape ", given.tensor.shape(), ", expected ",
                       slot->shape);
  }
  std::fill(started_.begin(), started_.end(), char{0});
  residents_.reset();
  common_with_.reset();
  if (std::exchange(common_momentum_, false)) momentum_ = store_.flat_zeros();
  for (const nn::NamedTensor& given : state) {
    for (std::size_t i = 0; i < started_.size(); ++i) {
      const nn::Slot& slot = store_.slots()[i];
      if (slot.name != given.name) continue;
      copy(given.tensor, momentum_.slice(slot.offset, slot.shape));
      started_[i] = 1;
    }
  }
}

}  // namespace duet::optim
