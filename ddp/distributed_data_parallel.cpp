#include "ddp/distributed_data_parallel.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ddp/group/gather_text.h"
#include "ddp/group/group_sums.h"
#include "ddp/group/rank_names.h"
#include "ddp/output_of_batch.h"
#include "ddp/rank_weights.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/backend/backend.h"
#include "lib/backend/step_recorder.h"
#include "lib/base/sha256.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// Every rank compares all ranks with rank 0, so that all say the same.
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

/// What ties the reducer to the gradients of one module.
struct DistributedDataParallel::Hooks {
  Hooks(nn::Module& module, ProcessGroup& the_group, const DistributedDataParallelOptions& options,
        ShardedUpdate* shared_update, const bool& sync_on, const bool& joins_now)
      : store(module.parameters()),
        first(module.range().first_slot),
        count(module.range().slots),
        group(the_group),
        sums(the_group),
        sync(sync_on),
        joins(joins_now),
        compare_every(options.compare_parameters_every),
        sharded(shared_update),
        rule(options.rule),
        reducer(the_group, slots(),
                {.bucket_limits = options.bucket_limits,
                 .find_unused_parameters = options.find_unused_parameters,
                 .static_graph = options.static_graph,
                 .comm_hook = sharded ? std::make_shared<NoCommunication>() : options.comm_hook}) {
    ready.resize(static_cast<std::size_t>(count));
    at_begin = store.at_backward_begin([this] { backward_begins(); });
    on_ready = store.on_grad_ready([this](int slot) { grad_ready(slot); });
    at_end = store.at_backward_end([this] { backward_ended(); });
  }

  /// In the order of their addresses, which is the reverse of registration: see Note [Flat order].
  std::vector<ReducerSlot> slots() const {
    std::vector<ReducerSlot> list;
    for (int slot = first + count - 1; slot >= first; --slot) {
      const Tensor gradient = store.gradient(slot);
      list.push_back({gradient.raw(), gradient.count(), gradient.dtype(), gradient.device(),
                      store.slots()[static_cast<std::size_t>(slot)].name});
    }
    return list;
  }

  /// `x`: the first tensor of a forward's input, or null.
  RankWeights::Batch batch_of(const Variable* x) {
    const Rows stamp = x != nullptr ? x->value().stamp() : Rows{};
    require<UsageError>(stamp.shards == 1 || stamp.shards == group.size(), "the batch is one of ", stamp.shards,
                        " shards, but the group has ", group.size(), " ranks: give the sampler the group's world size");
    return {++forwards, x != nullptr && x->shape().rank() > 0 ? x->shape()[0] : 1, stamp};
  }

  void backward_begins() {
    if (sync && std::exchange(in_backward, true)) forget();  // the last one threw
    averages = sharded == nullptr;
    if (group.size() == 1) return;
    weights->backward_begins(store.zero_grad_count());
    const unsigned normalisers = store.normalisers();
    const bool global = (normalisers & kGlobalRows) != 0, part = (normalisers & kPartOfBatch) != 0;
    const unsigned others = normalisers & (global ? ~unsigned{kGlobalRows} : part ? unsigned{kOwnRows} : 0u);
    require<UsageError>(others == 0,
                        "one part of the loss was divided by the rows of the global batch, another one by this rank's "
                        "own rows: their gradients cannot be combined; give all of the batch's tensors its stamp, or "
                        "none");
    require<UsageError>(rule == GradientRule::rows || !(global || (part && sync && !weights->whole_batches())),
                        "GradientRule::torch divides by the number of ranks, but the loss was divided by the rows of "
                        "the global batch already: use GradientRule::rows, or batches without the loader's stamp");
    sums.set_weighted(!global && !part && rule == GradientRule::rows);
    if (sync) reducer.set_scale(scale_of_gradients(normalisers));
  }

  double scale_of_gradients(unsigned normalisers) {
    if (rule == GradientRule::torch) return 1.0 / group.size();
    averages = false;
    if (normalisers == kGlobalRows && !joins) return 1;
    require<UsageError>(!recorded_step,
                        "a step cannot be recorded where ranks exchange their numbers of rows on the host: use batches "
                        "that the loader has stamped, or GradientRule::torch");
    const RankWeights::Weight weight = weights->exchange(group, {.normalisers = normalisers});
    require<UsageError>(
        weight.adds_up || weight.even || (normalisers & kPartOfBatch) == 0 || !sums.used(),
        "a synchronised batch norm cannot weight parts of the ranks' batches where those have different "
        "numbers of rows: use batches without a stamp");
    averages = !weight.adds_up && sharded == nullptr;
    return weight.value;
  }

  void grad_ready(int slot) {
    if (slot < first || slot >= first + count) return;
    const int in_reducer = first + count - 1 - slot;
    // The sum over ranks of a gradient that holds an earlier such sum would count that one world_size times.
    const bool adds_to_sum =
        sync ? !averages && reduced_at == store.zero_grad_count() : sharded != nullptr && sharded->has_gradients();
    require<UsageError>(!adds_to_sum,
                        "backward adds to gradients that are already summed over the ranks: call zero_grad() before "
                        "it, or no_sync() around all backward runs but the last");
    if (!sync) return reducer.require_expected(in_reducer);  // what has accumulated there would be set to zero
    ready[static_cast<std::size_t>(slot - first)] = 1;
    reducer.mark_ready(in_reducer);
  }

  /// The recording into which this rank's device writes what it is asked, or 0.
  int recording() const {
    const StepRecorder* const recorder = backend(store.device().kind).recorder(store.device());
    return recorder == nullptr ? 0 : recorder->recording();
  }

  void forward_begins() {
    if (recorded_step) forget();  // its recording was given up within backward
    recorded_step = recording() != 0;
    if (!recorded_step) return;
    require<UsageError>(!joins, "a step within join() cannot be recorded: the ranks agree on the host who trains it");
    require<UsageError>(compare_every == 0, "a step cannot be recorded with compare_parameters_every = ", compare_every,
                        ": the ranks compare hashes on the host");
  }

  void forget() {
    reducer.reset();
    std::fill(ready.begin(), ready.end(), char{0});
  }

  void backward_ended() {
    if (!sync) return;
    in_backward = false;
    for (int slot = first; slot < first + count; ++slot) {  // gradients from runs under no_sync() go along
      if (!ready[static_cast<std::size_t>(slot - first)] && store.has_gradient(slot))
        reducer.mark_ready(first + count - 1 - slot);
    }
    std::fill(ready.begin(), ready.end(), char{0});
    if (!recorded_step) backward_ns += std::chrono::nanoseconds(Clock::now() - forward_end).count();
    reducer.finish(recorded_step);
    recorded_step = false;
    enter(Phase::after);
    for (int slot = first; slot < first + count; ++slot) store.set_filled(slot);
    reduced_at = store.zero_grad_count();
    weights->reduced();
    if (sharded) sharded->gradients_ready();
    if (compare_every > 0 && !joins && reducer.times().steps % compare_every == 0) compare_parameters();
  }

  /// For the rank's record.
  void enter(Phase phase) const {
    const std::int64_t step = reducer.times().steps + (phase == Phase::after ? 0 : 1);
    if (group.flight_recorder()) group.flight_recorder()->enter(phase, step);
  }

  void forward_ended(Clock::time_point begin) {
    enter(Phase::backward);
    forward_end = Clock::now();
    if (recorded_step) return;
    forward_ns += std::chrono::nanoseconds(forward_end - begin).count();
  }

  Tensor values() const { return store.values_of(first, count); }

  void compare_parameters() const {
    const Tensor on_host = values().to(Device{});
    const auto hashes = all_gather_texts(group, sha256_hex(std::as_bytes(on_host.span<float>())));
    std::vector<int> others;
    for (std::size_t rank = 1; rank < hashes.size(); ++rank)
      if (hashes[rank] != hashes[0]) others.push_back(static_cast<int>(rank));
    require<CommError>(others.empty(), "parameters differ from those of rank 0 in step ", reducer.times().steps,
                       ", on ", rank_names(others));
  }

  nn::ParameterStore& store;
  int first, count;
  ProcessGroup& group;
  GroupSums sums;
  const bool &sync, &joins;
  std::int64_t compare_every;
  bool recorded_step = false;  // whose forward ran, and whose backward has not ended
  Clock::time_point forward_end{};
  std::int64_t forward_ns = 0, backward_ns = 0;
  ShardedUpdate* sharded;  // null: the reducer sums
  GradientRule rule;
  std::shared_ptr<RankWeights> weights = std::make_shared<RankWeights>();
  std::uint64_t forwards = 0;
  bool in_backward = false;  // one that synchronises
  bool averages = true;      // in this backward: an earlier reduction's result, which all ranks hold, stays as it is
  Reducer reducer;
  std::vector<char> ready;
  std::uint64_t reduced_at = ~std::uint64_t{0};
  nn::HookHandle at_begin, on_ready, at_end;
};

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
  hooks_ = std::make_unique<Hooks>(module_, group_, options_, sharded_.get(), sync_, joins_);
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

const Reducer& DistributedDataParallel::reducer() const { return hooks_->reducer; }

void DistributedDataParallel::broadcast_buffers(const nn::Context& context, int root) const {
  const Range& range = module_.range();
  for (int i = 0; i < range.buffers; ++i) {
    const int number = range.first_buffer + i - context.first_buffer;
    group_.broadcast(context.store->buffers()[static_cast<std::size_t>(number)].tensor, root).wait();
  }
}

DistributedDataParallelTimes DistributedDataParallel::times() const {
  const auto ns = [](double us) { return static_cast<std::int64_t>(us * 1e3); };
  const ReducerTimes& reduced = hooks_->reducer.times();
  DistributedDataParallelTimes times{
      .steps = reduced.steps, .forward_ns = hooks_->forward_ns, .backward_ns = hooks_->backward_ns};
  times.communication_ns = ns(sharded_ ? sharded_->times().communication_us : reduced.overlap_us + reduced.waiting_us);
  times.overlap_ns = sharded_ ? 0 : ns(reduced.overlap_us);
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
  if (grad_enabled()) batch = hooks_->batch_of(nn::first_tensor(input));
  const ScopedValue<BatchSums*> sums(context.batch_sums, &hooks_->sums);
  const auto forward = [&] {
    T output = module_.forward(context, input);
    return grad_enabled() && group_.size() > 1 ? output_of_batch(output, hooks_->weights, batch) : output;
  };
  if (!synchronises(context)) return forward();
  hooks_->forward_begins();
  hooks_->enter(Phase::forward);
  const int root = joins_ ? last_of_those_that_train(true) : 0;
  if (options_.broadcast_buffers) broadcast_buffers(context, root);
  const Clock::time_point begin = Clock::now();
  T output = forward();
  hooks_->forward_ended(begin);
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
                      "nobody updates its shard");
  const ScopedValue joins(joins_, true);
  const std::int64_t before = times().steps;
  body();
  const std::int64_t trained = times().steps - before;
  for (int root = 0; (root = last_of_those_that_train(false)) >= 0;) {
    if (options_.broadcast_buffers) broadcast_buffers(module_.context(), root);
    if (options_.rule == GradientRule::rows) hooks_->weights->exchange(group_, {.trains = false});
    hooks_->reducer.contribute_zeros();
  }
  std::int64_t longest = trained * group_.size() + group_.rank();
  group_.all_reduce({&longest, 1, DType::i64}, ReduceOp::max).wait();
  const int root = static_cast<int>(longest % group_.size());
  group_.broadcast(hooks_->values(), root).wait();
  broadcast_buffers(module_.context(), root);
}

}  // namespace duet::ddp
