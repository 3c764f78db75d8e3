#include "ddp/distributed_data_parallel.h"

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ddp/gradient_synchroniser.h"
#include "ddp/group/gather_text.h"
#include "ddp/rank_weights.h"
#include "lib/autograd/grad_mode.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

/// Every rank compares all ranks with rank 0, so that all report the same.
void check_same_model(ProcessGroup& group, std::span<const nn::Slot> slots) {
  std::string text;
  for (const nn::Slot& slot : slots) text += concat(slot.name, " ", slot.shape, "\n");
  const std::vector<std::string> texts = all_gather_texts(group, text);
  const std::vector<std::string> first = lines_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> lines = lines_of(texts[rank]);
    require<CommError>(lines.size() == first.size(), "DDP expects same model across all ranks, but Rank 0 has ",
                       first.size(), " params, while rank ", rank, " has inconsistent ", lines.size(), " params.");
    for (std::size_t i = 0; i < lines.size(); ++i) {
      require<CommError>(lines[i] == first[i], "DDP expects same model across all ranks, but params[", i, "] is ",
                         first[i], " on rank 0 and ", lines[i], " on rank ", rank);
    }
  }
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, ProcessGroup& group,
                                                 const DistributedDataParallelOptions& options)
    : module_(module), group_(group), options_(options) {
  nn::ParameterStore& store = module_.parameters();
  const Range& range = module_.range();
  require<UsageError>(range.slots > 0,
                      "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a "
                      "gradient.");
  wrap_module("module", module);
  check_same_model(group_,
                   std::span(store.slots())
                       .subspan(static_cast<std::size_t>(range.first_slot), static_cast<std::size_t>(range.slots)));
  group_.broadcast(store.values_of(range.first_slot, range.slots)).wait();
  if (options_.update == UpdateKind::sharded && group_.size() > 1) shard_update();
  // Where the ranks share memory, gradients are summed in place.
  if (!sharded_ && range.slots == store.slot_count() && store.device().kind == DeviceKind::cpu) {
    const Tensor& gradients = store.gradients();
    if (const auto shared = group_.shared_storage(gradients.bytes()))
      store.move_gradients(Tensor(shared, 0, gradients.shape(), gradients.dtype()).alias(store.device()));
  }
  broadcast_buffers(module_.context(), 0);
  synchroniser_ = std::make_unique<GradientSynchroniser>(
      module_, group_, sync_, joins_, options_.rule, options_.compare_parameters_every,
      ReducerOptions{.bucket_limits = options_.bucket_limits,
                     .find_unused_parameters = options_.find_unused_parameters,
                     .static_graph = options_.static_graph,
                     .comm_hook = sharded_ ? std::make_shared<NoCommunication>() : options_.comm_hook},
      sharded_.get());
}

void DistributedDataParallel::shard_update() {
  nn::ParameterStore& store = module_.parameters();
  require<UsageError>(options_.comm_hook == nullptr, "a sharded update sums gradients itself: it takes no comm_hook");
  require<UsageError>(module_.range().slots == store.slot_count(), "a sharded update is for a whole model of ",
                      store.slot_count(), " parameters, got a module with ", module_.range().slots, " of them");
  sharded_ = std::make_shared<ShardedUpdate>(store, group_);
  store.set_update_site(sharded_);
}

DistributedDataParallel::~DistributedDataParallel() = default;

const Reducer& DistributedDataParallel::reducer() const { return synchroniser_->reducer(); }

void DistributedDataParallel::broadcast_buffers(const nn::Context& context, int root) const {
  const Range& range = module_.range();
  for (int i = 0; i < range.buffers; ++i) {
    const int number = range.first_buffer + i - context.first_buffer;
    group_.broadcast(context.store->buffers()[static_cast<std::size_t>(number)].tensor, root).wait();
  }
}

WrapperTimes DistributedDataParallel::times() const {
  WrapperTimes times = synchroniser_->times();
  if (sharded_) {
    times.communication_us = times.exposed_us = 0;
    times.update_us = sharded_->times().update_us;
    times.update_communication_us = sharded_->times().update_communication_us;
  }
  return times;
}

bool DistributedDataParallel::synchronises(const nn::Context& context) const {
  return context.training && sync_ && grad_enabled();
}

/// The highest rank that trains a step now, or -1.
int DistributedDataParallel::last_of_those_that_train(bool this_one) const {
  int rank = this_one ? group_.rank() : -1;
  group_.all_reduce({&rank, 1, DType::i32}, ReduceOp::max).wait();
  return rank;
}

template <class T>
T DistributedDataParallel::run(nn::Context& context, const T& input) const {
  RankWeights::Batch batch;
  if (grad_enabled()) batch = synchroniser_->batch_of(nn::first_tensor(input));
  const ScopedValue<BatchSums*> sums(context.batch_sums, &synchroniser_->sums());
  const auto forward = [&] {
    T output = module_.forward(context, input);
    return grad_enabled() && group_.size() > 1 ? output_of_batch(output, synchroniser_->weights(), batch) : output;
  };
  if (!synchronises(context)) return forward();
  synchroniser_->forward_begins();
  synchroniser_->enter(Phase::forward);
  const int root = joins_ ? last_of_those_that_train(true) : 0;
  if (options_.broadcast_buffers) broadcast_buffers(context, root);
  const Clock::time_point begin = Clock::now();
  T output = forward();
  synchroniser_->forward_ended(begin);
  return output;
}

Variable DistributedDataParallel::forward(nn::Context& context, const Variable& x) const { return run(context, x); }

nn::Value DistributedDataParallel::forward(nn::Context& context, const nn::Value& input) const {
  return run(context, input);
}

void DistributedDataParallel::join(const std::function<void()>& body) {
  require<UsageError>(!joins_, "join() is called within join()");
  require<UsageError>(!sharded_,
                      "join() with a sharded update: a rank that has ended makes no step(), and without it "
                      "no rank updates its shard");
  const ScopedValue joins(joins_, true);
  const std::int64_t before = times().steps;
  body();
  const std::int64_t trained = times().steps - before;
  for (int root = 0; (root = last_of_those_that_train(false)) >= 0;) {
    if (options_.broadcast_buffers) broadcast_buffers(module_.context(), root);
    if (options_.rule == GradientRule::rows) synchroniser_->weights()->exchange(group_, {.trains = false});
    synchroniser_->reducer().contribute_zeros();
  }
  std::int64_t longest = trained * group_.size() + group_.rank();
  group_.all_reduce({&longest, 1, DType::i64}, ReduceOp::max).wait();
  const int root = static_cast<int>(longest % group_.size());
  group_.broadcast(synchroniser_->values(), root).wait();
  broadcast_buffers(module_.context(), root);
}

}  // namespace duet::ddp
