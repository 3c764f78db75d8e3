#include "ddp/gradient_synchroniser.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "ddp/group/gather_text.h"
#include "ddp/store/store.h"
#include "lib/autograd/node.h"
#include "lib/backend/backend.h"
#include "lib/backend/step_graph.h"
#include "lib/base/sha256.h"
#include "lib/error.h"

namespace duet::ddp {

GradientSynchroniser::GradientSynchroniser(nn::Module& module, ProcessGroup& group, const bool& sync, const bool& joins,
                                           GradientRule rule, std::int64_t compare_every, ReducerOptions options,
                                           ShardedUpdate* sharded)
    : store_(module.parameters()),
      first_(module.range().first_slot),
      count_(module.range().slots),
      group_(group),
      sums_(group),
      sync_(sync),
      joins_(joins),
      rule_(rule),
      compare_every_(compare_every),
      sharded_(sharded),
      reducer_(group, slots(), std::move(options)),
      ready_(static_cast<std::size_t>(count_)) {
  at_begin_ = store_.at_backward_begin([this] { backward_begins(); });
  on_ready_ = store_.on_grad_ready([this](int slot) { grad_ready(slot); });
  at_end_ = store_.at_backward_end([this] { backward_ended(); });
}

/// In the order of their addresses, which is the reverse of registration: see Note [Flat order].
std::vector<ReducerSlot> GradientSynchroniser::slots() const {
  std::vector<ReducerSlot> list;
  for (int slot = first_ + count_ - 1; slot >= first_; --slot) {
    const Tensor gradient = store_.gradient(slot);
    list.push_back({gradient.raw(), gradient.count(), gradient.dtype(), gradient.device(),
                    store_.slots()[static_cast<std::size_t>(slot)].name});
  }
  return list;
}

RankWeights::Batch GradientSynchroniser::batch_of(const Variable* x) {
  const Rows stamp = x != nullptr ? x->value().stamp() : Rows{};
  require<UsageError>(stamp.shards == 1 || stamp.shards == group_.size(), "the batch is one of ", stamp.shards,
                      " shards, but the group has ", group_.size(), " ranks: give the sampler the group's world size");
  return {++forwards_, x != nullptr && x->shape().rank() > 0 ? x->shape()[0] : 1, stamp};
}

void GradientSynchroniser::backward_begins() {
  if (sync_ && std::exchange(in_backward_, true)) forget();  // the last one threw
  averages_ = sharded_ == nullptr;
  if (group_.size() == 1) return;
  weights_->backward_begins(store_.zero_grad_count());
  const unsigned normalisers = store_.normalisers();
  const bool global = (normalisers & kGlobalRows) != 0, part = (normalisers & kPartOfBatch) != 0;
  const unsigned others = normalisers & (global ? ~unsigned{kGlobalRows} : part ? unsigned{kOwnRows} : 0u);
  require<UsageError>(others == 0,
                      "one part of the loss was divided by the rows of the global batch, another one by this rank's "
                      "own rows: their gradients cannot be combined; give all of the batch's tensors its stamp, or "
                      "none");
  require<UsageError>(rule_ == GradientRule::rows || !(global || (part && sync_ && !weights_->whole_batches())),
                      "GradientRule::torch divides by the number of ranks, but the loss was divided by the rows of "
                      "the global batch already: use GradientRule::rows, or batches without the loader's stamp");
  sums_.set_weighted(!global && !part && rule_ == GradientRule::rows);
  if (sync_) reducer_.set_scale(scale_of_gradients(normalisers));
}

double GradientSynchroniser::scale_of_gradients(unsigned normalisers) {
  if (rule_ == GradientRule::torch) return 1.0 / group_.size();
  averages_ = false;
  if (normalisers == kGlobalRows && !joins_) return 1;
  require<UsageError>(!recorded_step_,
                      "a step cannot be recorded where ranks exchange their numbers of rows on the host: use batches "
                      "that the loader has stamped, or GradientRule::torch");
  const RankWeights::Weight weight = weights_->exchange(group_, {.normalisers = normalisers});
  require<UsageError>(weight.adds_up || weight.even || (normalisers & kPartOfBatch) == 0 || !sums_.used(),
                      "a synchronised batch norm cannot weight parts of the ranks' batches where those have different "
                      "numbers of rows: use batches without a stamp");
  averages_ = !weight.adds_up && sharded_ == nullptr;
  return weight.value;
}

void GradientSynchroniser::grad_ready(int slot) {
  if (slot < first_ || slot >= first_ + count_) return;
  const int in_reducer = first_ + count_ - 1 - slot;
  // The sum over ranks of a gradient that holds an earlier such sum would count that one world_size times.
  const bool adds_to_sum =
      sync_ ? !averages_ && reduced_at_ == store_.zero_grad_count() : sharded_ != nullptr && sharded_->has_gradients();
  require<UsageError>(!adds_to_sum,
                      "backward adds to gradients that are already summed over the ranks: call zero_grad() before "
                      "it, or no_sync() around all backward runs but the last");
  if (!sync_) return reducer_.require_expected(in_reducer);  // what has accumulated there would be set to zero
  ready_[static_cast<std::size_t>(slot - first_)] = 1;
  reducer_.mark_ready(in_reducer);
}

/// The recording into which this rank's device writes what it is asked, or 0.
int GradientSynchroniser::recording() const {
  const StepRecorder* const recorder = backend(store_.device().kind).recorder(store_.device());
  return recorder == nullptr ? 0 : recorder->recording();
}

void GradientSynchroniser::forward_begins() {
  if (recorded_step_) forget();  // its recording was given up within backward
  recorded_step_ = recording() != 0;
  if (!recorded_step_) return;
  require<UsageError>(!joins_,
                      "a step within join() cannot be recorded: the ranks agree on the host which of them train it");
  require<UsageError>(compare_every_ == 0, "a step cannot be recorded with compare_parameters_every = ", compare_every_,
                      ": the ranks compare hashes on the host");
}

void GradientSynchroniser::forget() {
  reducer_.reset();
  std::fill(ready_.begin(), ready_.end(), char{0});
}

void GradientSynchroniser::backward_ended() {
  if (!sync_) return;
  in_backward_ = false;
  for (int slot = first_; slot < first_ + count_; ++slot) {  // gradients from runs under no_sync() go along
    if (!ready_[static_cast<std::size_t>(slot - first_)] && store_.has_gradient(slot))
      reducer_.mark_ready(first_ + count_ - 1 - slot);
  }
  std::fill(ready_.begin(), ready_.end(), char{0});
  if (!recorded_step_) backward_us_ += microseconds_since(forward_end_);
  reducer_.finish(recorded_step_);
  recorded_step_ = false;
  enter(Phase::after);
  for (int slot = first_; slot < first_ + count_; ++slot)
    if (reducer_.used(first_ + count_ - 1 - slot)) store_.set_filled(slot);
  reduced_at_ = store_.zero_grad_count();
  weights_->reduced();
  if (sharded_) sharded_->gradients_ready();
  if (compare_every_ > 0 && !joins_ && reducer_.times().steps % compare_every_ == 0) compare_parameters();
}

void GradientSynchroniser::enter(Phase phase) const {
  const std::int64_t step = reducer_.times().steps + (phase == Phase::after ? 0 : 1);
  if (group_.flight_recorder()) group_.flight_recorder()->enter(phase, step);
}

void GradientSynchroniser::forward_ended(Clock::time_point begin) {
  enter(Phase::backward);
  forward_end_ = Clock::now();
  if (recorded_step_) return;
  forward_us_ += microseconds(forward_end_ - begin);
}

WrapperTimes GradientSynchroniser::times() const {
  WrapperTimes times = reducer_.times();
  times.forward_us = forward_us_;
  times.backward_us = backward_us_;
  return times;
}

void GradientSynchroniser::compare_parameters() const {
  const Tensor on_host = values().to(Device{});
  const auto hashes = all_gather_texts(group_, sha256_hex(std::as_bytes(on_host.span<float>())));
  std::vector<int> others;
  for (std::size_t rank = 1; rank < hashes.size(); ++rank)
    if (hashes[rank] != hashes[0]) others.push_back(static_cast<int>(rank));
  require<CommError>(others.empty(), "parameters differ from those of rank 0 in step ", reducer_.times().steps, ", on ",
                     rank_names(others));
}

}  // namespace duet::ddp
