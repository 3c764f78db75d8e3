#include "ddp/distributed_data_parallel.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "ddp/gradient_synchroniser.h"
#include "ddp/group/call_header.h"
#include "ddp/group/compare_ranks.h"
#include "ddp/rank_weights.h"
#include "ddp/reducer.h"
#include "ddp/sums_aside.h"
#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/backend/backend.h"
#include "lib/base/lasting.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/nn/layers.h"

namespace duet::ddp {
namespace {

/// Where the ranks share memory, gradients are summed in place.
void share_gradients(nn::FlatParameters& store, const nn::Module::Range& range, ProcessGroup& group) {
  if (range.slots != store.slot_count() || store.device().kind != DeviceKind::cpu) return;
  if (const auto shared = group.shared_storage(store.gradient_bytes())) store.move_gradients(shared);
}

/// Throws UsageError in an elastic job.
void require_not_elastic(const char* what) {
  require<UsageError>(!Recovery::instance().on(), what, ": an elastic job cannot do steps with it again");
}

/// In the order of their addresses, which is the reverse of registration: see Note [Flat order].
std::vector<ReducerSlot> slots_of(nn::FlatParameters& store, const nn::Module::Range& range) {
  std::vector<ReducerSlot> list;
  for (int slot = range.first_slot + range.slots - 1; slot >= range.first_slot; --slot) {
    const Tensor gradient = store.gradient(slot);
    const auto& [name, shape, offset, padding] = store.slots()[static_cast<std::size_t>(slot)];
    list.push_back({gradient.raw(), gradient.count(), gradient.dtype(), gradient.device(), name, padding});
  }
  return list;
}

std::vector<std::string> descriptions_of(std::span<const nn::Slot> slots) {
  std::vector<std::string> texts;
  for (const nn::Slot& slot : slots) texts.push_back(concat(slot.name, " ", slot.shape));
  return texts;
}

}  // namespace

/// The steps of one duet module, whose gradients it marks ready as backward completes them, in three events of the
/// module's hooks: backward begins (the scale of the ranks' gradients), a gradient is complete, backward has ended
/// (waits for the sums). Used by the module's thread; module and group must outlive it.
class ModuleHooks final : public GradientSynchroniser, private Recoverable {
 public:
  ModuleHooks(nn::Module& module, ProcessGroup& group, const DistributedDataParallelOptions& options)
      : GradientSynchroniser(group, slots_of(module.parameters(), module.range()),
                             {.bucket_limits = options.bucket_limits,
                              .find_unused_parameters = options.find_unused_parameters,
                              .static_graph = options.static_graph,
                              .comm_hook = options.comm_hook}),
        module_(module),
        store_(module.parameters()),
        range_(module.range()),
        options_(options),
        sums_(group),
        aside_(store_, range_),
        may_be_cut_(module.sums_by_blocks() && module.all_modules([](const nn::Module& one) {
          return dynamic_cast<const dp::DataParallel*>(&one) == nullptr;  // which cuts by itself
        })),
        at_begin_(store_.hooks().at_backward_begin([this] { backward_begins(); })),
        on_ready_(store_.hooks().on_grad_ready([this](int slot) { grad_ready(slot); })),
        at_end_(store_.hooks().at_backward_end([this] { backward_ended(); })),
        before_update_(store_.hooks().before_update(
            [this](int first, int slots, const nn::UpdateSettings& by) { update_begins(first, first + slots, by); })) {
    note_ranks();
    Recoverable::join("a DistributedDataParallel");
  }
  ~ModuleHooks() override { leave(); }

  /// The batch of a forward with `x`, its first input tensor or null. Throws UsageError for a shard of another world.
  RankWeights::Batch batch_of(const Variable* x) {
    const Rows stamp = x != nullptr ? x->value().stamp() : Rows{};
    require<UsageError>(stamp.shards == 1 || stamp.shards == group().size(), "the batch is one of ", stamp.shards,
                        " shards, but the group has ", group().size(),
                        " ranks: give the sampler the group's world size");
    const bool by_hand = stamp.delivery == 0 || Recovery::instance().ranks_change();
    if (by_hand && stamp.shards > 1 && !stamp.owned && stamp.blocks % stamp.shards != 0 && on_cpu())
      report_dependence(said_shares_, [&] {
        return concat("the ", stamp.shards, " ranks have shares of the batch that are not whole blocks (Rows::owned)");
      });
    if (std::exchange(delivery_, stamp.delivery) != stamp.delivery)
      drawn_ = stamp.stamped() ? 1 + module_.context().draws.has_drawn(stamp) : 0;
    return {next_forward(), x != nullptr && x->shape().rank() > 0 ? x->shape()[0] : 1, stamp};
  }

  /// Before each forward that records, of a batch whose first tensor is `x`. Returns whether ranks own the blocks of
  /// its batch, of which some have several subtrees.
  bool owns_subtrees(const Variable* x) {
    const Rows stamp = x != nullptr ? x->value().stamp() : Rows{};
    const bool owns = stamp.owned && stamp.shards > 1 && cuts_tree(stamp.blocks);
    if (owns) own_subtrees(stamp.blocks);
    return owns;
  }
  /// Null: gradients of this rank's forwards are one sum, as under no_sync().
  std::shared_ptr<nn::GradientParts> parts() const { return synchronises() ? parts_ : nullptr; }

  /// Returns the module to run on a batch: the wrapped one, or replicas of it if this rank `owns` several subtrees, one
  /// for each. Inputs whose tensors are not known to be rows of the batch or none of it, and modules that would mix up
  /// rows, are not cut.
  const nn::Module& runner_for(const nn::Value& input, bool owns) {
    const Variable* const batch = nn::first_tensor(input);
    const bool may_own = batch != nullptr && batch->value().stamp().stamped() &&
                         Recovery::instance().may_cut_tree(batch->value().stamp().blocks);
    if ((!owns && !may_own) || !may_be_cut_ || batch->shape()[0] == 0) return module_;
    if (!dp::fits_batch(input, "the module runs on all of a rank's rows at once", said_inputs_)) return module_;
    if (!owns || parts() == nullptr || parts_->subtrees.size() == 1) return module_;
    if (pieces_ == nullptr)
      pieces_ = std::make_unique<dp::DataParallel>(
          module_, dp::DataParallelOptions{.devices = {store_.device()}, .traced = false});
    return *pieces_;
  }

  /// The forward of a synchronised step with this context begins.
  void forward_begins(const nn::Context& context) {
    if (reducer().recorded()) {
      require<UsageError>(
          !joining(), "a step within join() cannot be recorded: the ranks agree on the host which of them train it");
      require<UsageError>(options_.compare_parameters_every == 0,
                          "a step cannot be recorded with compare_parameters_every = ",
                          options_.compare_parameters_every, ": the ranks compare hashes on the host");
    }
    const int root = GradientSynchroniser::forward_begins();
    if (options_.broadcast_buffers) broadcast_buffers(context, root);
  }

  /// See DistributedDataParallel. `context`: of the whole model.
  void join(const std::function<void()>& body, const nn::Context& context) {
    const auto step_begins = [&](int root) {
      if (options_.broadcast_buffers) broadcast_buffers(context, root);
    };
    const auto parameters_and_buffers = [&](int root) {
      group().broadcast(store_.written_values_of(range_.first_slot, range_.slots), root).wait();
      broadcast_buffers(context, root);
    };
    const auto owns = [&](int blocks) {
      if (!cuts_tree(blocks)) return;
      own_subtrees(blocks);
      make_parts();
    };
    GradientSynchroniser::join(body, {.by_rows = options_.rule == GradientRule::rows,
                                      .step_begins = step_begins,
                                      .parameters_and_buffers = parameters_and_buffers,
                                      .owns = owns});
    done_ = {};
  }

  void broadcast_buffers(const nn::Context& context, int root) const {
    if (range_.buffers == 0) return;
    group()
        .broadcast(context.store->buffer_run(range_.first_buffer - context.first_buffer, range_.buffers), root)
        .wait();
  }

  GroupSums& sums() { return sums_; }
  /// Void steps, and those before a rank has joined, do not count.
  std::int64_t steps() const {
    const Recovery& recovery = Recovery::instance();
    return recovery.on() ? recovery.steps() + backwards_ : reducer().steps();
  }

  /// Before a forward in training mode: keeps what a step changes that an elastic job may do again.
  void step_may_begin() {
    Recovery& recovery = Recovery::instance();
    if (!recovery.on()) return;
    recovery.begin_forward();
    require<UsageError>(
        batch_ != recovery.batches() || recovery.undoes(),
        "a second forward in training mode of one batch: an elastic job redoes steps of batches that "
        "go forward once, or with DistributedDataParallelOptions::undo more often; eval() is for others");
    batch_ = recovery.batches();
    if (!saved_buffers_.defined() && range_.buffers > 0) saved_buffers_ = buffers().clone();
    if (!saved_context_) saved_context_ = module_.context();
    if (regroups_ && !recovery.is_void()) share_gradients_again();
  }

 private:
  Tensor buffers() const { return store_.buffer_run(range_.first_buffer, range_.buffers); }

  void complete_step() override {
    saved_buffers_ = {};
    saved_context_.reset();
    backwards_ = 0;
    compared_ = compares_;
  }
  bool is_written() const override { return true; }
  void restore() override {
    backwards_ = 0;
    if (saved_context_) module_.context() = *std::exchange(saved_context_, {});
    if (saved_buffers_.defined()) copy(std::exchange(saved_buffers_, {}), buffers());
    store_.zero_grad();
    aside_.clear();
    done_ = {};
    weights()->restart();
  }
  void stream(StateStream& state) override {
    const int first = range_.first_slot, slots = range_.slots;
    state.tensor(state.reads() ? store_.written_values_of(first, slots) : store_.values_of(first, slots));
    if (range_.buffers > 0) state.tensor(buffers());
    nn::Context& context = module_.context();
    state.value(context.seed);
    state.value(context.step);
    context.draws.stream(state);
  }
  void regroup() override { regroups_ = true; }
  /// In the next step, as ranks whose training has ended have none of their own.
  void share_gradients_again() {
    regroups_ = false;
    note_ranks();
    const void* const before = std::as_const(store_).gradients().raw();
    share_gradients(store_, range_, group());
    reducer().move(before, std::as_const(store_).gradients().raw());
    has_parts_ = has_shared_ = false;
    if (!Recovery::instance().places_change()) {
      if (parts_ != nullptr) parts_->first = std::as_const(store_).gradients();
      return;
    }
    parts_ = nullptr;  // this rank may own other blocks
    pieces_ = nullptr;
    reducer().set_parts(0, nullptr, {});
    reducer().set_scale(1);
    sums_.set_blocks(0, 1);
  }

  void own_subtrees(int blocks) {
    if (parts_ != nullptr) {
      require<UsageError>(parts_->blocks == blocks, "this batch has ", blocks, " blocks, batches before it ",
                          parts_->blocks, ": a run has one number of blocks");
      return;
    }
    const auto own = subtrees_of(group().rank(), group().size(), blocks);
    parts_ = std::make_shared<nn::GradientParts>();
    parts_->blocks = blocks;
    parts_->subtrees.assign(own.begin(), own.end());
    parts_->first = std::as_const(store_).gradients();
    parts_->filled.assign(store_.slots().size(), 0);
    sums_.set_blocks(blocks, static_cast<int>(own.size()));
  }

  /// Where ranks share memory, all of them ask for as many parts as the one with the most has, in the first backward
  /// that is synchronised.
  void make_parts() {
    std::ranges::fill(parts_->filled, 0);
    const bool share = synchronises() && !joining() && !has_shared_ && all_slots();
    if (has_parts_ && !share) return;
    has_parts_ = true;
    has_shared_ = has_shared_ || share;
    TreeOrder order;
    order.set(group().size(), parts_->blocks);
    const std::size_t bytes = store_.gradient_bytes();
    std::vector<void*> places;
    parts_->others.clear();
    for (int part = 1; part < order.most_parts(); ++part) {
      std::shared_ptr<Storage> memory = share ? group().shared_storage(bytes) : nullptr;
      if (part >= order.parts_of(group().rank())) continue;
      if (memory == nullptr) memory = std::make_shared<Storage>(store_.device(), bytes);
      allocator(store_.device()).clear(memory->data(), bytes);
      parts_->others.push_back(store_.gradients_in(memory));
      places.push_back(memory->data());
    }
    reducer().set_parts(parts_->blocks, parts_->first.storage().data(), places);
  }

  /// After a backward that is not synchronised: the gradients are sums of this rank's parts.
  void add_parts() {
    for (int slot = range_.first_slot; slot < end_slot(); ++slot) {
      if (!parts_->filled[static_cast<std::size_t>(slot)]) continue;
      const Tensor gradient = store_.gradient(slot);
      for (const Tensor& part : parts_->others) backend(gradient).add(gradient, store_.slot_in(part, slot), gradient);
    }
  }

  /// There may be one rank only.
  void note_ranks() {
    const bool several = group().size() > 1;
    joins_rows_ = several && options_.rule == GradientRule::rows ? store_.hooks().join_rows() : nullptr;
    at_rank_sum_ =
        several ? store_.hooks().at_rank_sum([this](std::span<std::int64_t> all) { sum_divisors(all); }) : nullptr;
  }

  void sum_divisors(std::span<std::int64_t> numbers) {
    require<UsageError>(!joining() && !reducer().recorded(),
                        "the ranks exchange the number of labels that count on the host: not in a recorded step, nor "
                        "within join(); use Reduction::sum");
    group().all_reduce(numbers).wait();
  }

  void backward_begins() {
    if (store_.hooks().adds_free()) return aside_.begin_free();
    if (synchronises()) GradientSynchroniser::backward_begins();
    if (parts_ != nullptr) make_parts();
    weights()->backward_begins(store_.zero_grad_count());
    const unsigned normalisers = store_.hooks().normalisers();
    require<UsageError>(
        !Recovery::instance().ranks_change() || !on_cpu() || (normalisers & (kOwnRows | kPartOfBatch)) == 0,
        "the loss was divided by this rank's own rows, expected one that is divided by the rows of the "
        "global batch (ops::batch_mean(), of tensors with the loader's stamp): the elastic job may go "
        "on with fewer ranks, but the bits of weighted means depend on their number");
    if (group().size() == 1) {
      if (Recovery::instance().ranks_change()) aside_.begin();  // sums as with other ranks
      return;
    }
    const bool global = (normalisers & kGlobalRows) != 0, part = (normalisers & kPartOfBatch) != 0;
    const unsigned others = normalisers & (global ? ~unsigned{kGlobalRows} : part ? unsigned{kOwnRows} : 0u);
    require<UsageError>(others == 0,
                        "one part of the loss was divided by the rows of the global batch, another one by this rank's "
                        "own rows: their gradients cannot be combined; take ops::batch_mean() for ops::mean(), give "
                        "all of the batch's tensors its stamp, or none, and add a penalty to the loss outside of the "
                        "module, from parameters, numbers and constants of the parameters' shapes");
    require<UsageError>(
        options_.rule == GradientRule::rows || !(global || (part && synchronises() && !weights()->whole_batches())),
        "GradientRule::torch divides by the number of ranks, but the loss was divided by the rows of "
        "the global batch already: use GradientRule::rows, or batches without the loader's stamp");
    sums_.set_weighted(!global && !part && options_.rule == GradientRule::rows);
    if (synchronises()) reducer().set_scale(scale_of_gradients(normalisers));
    aside_.begin();
  }

  /// Returns the mark that ranks compare in the header of the next collective.
  BatchMark mark_of(unsigned normalisers) {
    BatchMark mark = weights()->mark();
    if (mark.whole != 0) mark.drawn = drawn_;
    if (options_.local_steps) return mark;
    const Recovery& recovery = Recovery::instance();
    if (recovery.on() && on_cpu() && compared_ != recovery.pass()) {
      compares_ = recovery.pass();
      const Tensor values = std::as_const(store_).values_of(range_.first_slot, range_.slots);
      mark.values = mixed_bytes(std::as_bytes(values.span<float>()));
    }
    mark.done = done_;
    if (mark.whole == 0 && (normalisers & kPartOfBatch) == 0)
      mark.done.numbers[StepMark::forwards] = weights()->forwards();
    // Perhaps one rank has updated values for others.
    if (store_.value_writes() != value_writes_) mark.done.numbers[StepMark::updates] = -1;
    return mark;
  }

  /// Slots [first, end) are about to be clipped, or updated.
  void update_begins(int first, int end, nn::UpdateSettings by) {
    first = std::max(first, range_.first_slot);
    end = std::min(end, end_slot());
    if (first >= end || options_.local_steps || group().size() == 1 || Recovery::instance().is_void()) return;
    if (by.optimizer == nn::UpdateSettings::none) {
      clip_norm_ = by.values[nn::UpdateSettings::clip_norm];
      return;
    }
    for (int slot = first; slot < end; ++slot)
      require<UsageError>(!store_.has_gradient(slot) || store_.is_summed(slot), "step(): the gradient of ",
                          store_.slots()[static_cast<std::size_t>(slot)].name, " is that of rank ", group().rank(),
                          " alone, expected the sum over the ranks: run the last backward before it without no_sync(), "
                          "or set DistributedDataParallelOptions::local_steps");
    by.values[nn::UpdateSettings::clip_norm] = clip_norm_;
    add_update(done_, by);
  }

  double scale_of_gradients(unsigned normalisers) {
    if (!joining() && !Recovery::instance().is_void()) group().set_batch(mark_of(normalisers));  // else no sum takes it
    if (options_.rule == GradientRule::torch) return 1.0 / group().size();
    if (normalisers == kGlobalRows && !joining()) return 1;
    require<UsageError>(!reducer().recorded(),
                        "a step cannot be recorded where ranks exchange their numbers of rows on the host: use batches "
                        "that the loader has stamped, or GradientRule::torch");
    const RankWeights::Weight weight =
        weights()->exchange(group(), {.normalisers = normalisers, .local_steps = options_.local_steps});
    require<UsageError>(
        weight.adds_up || weight.even || (normalisers & kPartOfBatch) == 0 || !sums_.used(),
        "a synchronised batch norm cannot weight parts of the ranks' batches where those have different "
        "numbers of rows: use batches without a stamp");
    return weight.value;
  }

  void grad_ready(int slot) {
    if (slot < range_.first_slot || slot >= end_slot() || store_.hooks().adds_free()) return;
    const int in_reducer = mirrored(slot);
    if (!synchronises()) return reducer().require_expected(in_reducer);  // what has accumulated would be set to zero
    // Ranks with several subtrees have gradients at the end only, after all sums of their layers; so the others wait,
    // too.
    if (parts_ == nullptr) reducer().mark_ready(in_reducer);
  }

  /// A gradient that no replicas have computed is all in the first part.
  void complete_parts(int slot) {
    if (parts_ != nullptr && !parts_->filled[static_cast<std::size_t>(slot)]) reducer().zero_parts(mirrored(slot));
  }

  void backward_ended() {
    if (store_.hooks().adds_free()) return aside_.end_free();
    if (!synchronises()) {
      if (parts_ != nullptr) add_parts();
      return aside_.add_to_own();
    }
    Recovery& recovery = Recovery::instance();
    // Of several wrappers the first one has recovered, and the gradients of all are empty.
    if (recovery.has_recovered()) return abandon_backward();
    require<UsageError>(!recovery.on() || ++backwards_ == 1 || recovery.undoes() || recovery.is_void(),
                        "a second synchronised backward for one step of the optimizer: an elastic job redoes steps of "
                        "one, or of several with DistributedDataParallelOptions::undo");
    // All ranks have the same uses, of which one says so.
    const nn::Slot* const shared = store_.shared_slot();
    const bool refuses = Recovery::instance().ranks_change() && store_.added_uses();
    if (refuses || (shared != nullptr && group().rank() == 0 && group().size() > 1)) store_.report_uses(shared);
    sum_gradients();
    // Else rank 0 alone would have the running statistics of a complete step, until the next forward.
    if (recovery.on() && options_.broadcast_buffers) broadcast_buffers(module_.context(), 0);
    recovery.recover_if_void();
  }

  void sum_gradients() {
    // Gradients from runs under no_sync() go along.
    GradientSynchroniser::backward_ended([&](int in_reducer) {
      const int slot = mirrored(in_reducer);
      if (!store_.has_gradient(slot)) return false;
      complete_parts(slot);
      return true;
    });
    for (int slot = range_.first_slot; slot < end_slot(); ++slot)
      if (aside_.add_to(slot, reducer().used(mirrored(slot)))) store_.set_summed(slot);
    aside_.clear();
    store_.hooks().forget_normalisers();
    const std::int64_t step = steps();
    if (options_.compare_parameters_every > 0 && !joining() && step % options_.compare_parameters_every == 0)
      compare_parameters(step);
    done_ = {.numbers = {-1, -1, 0}};
    clip_norm_ = 0;
    value_writes_ = store_.value_writes();
  }

  void add_hashes(std::string& lines) const override {
    for (int slot = range_.first_slot; slot < end_slot(); ++slot)
      add_hash(lines, std::as_bytes(std::as_const(store_).value(slot).to(Device{}).span<float>()),
               store_.slots()[static_cast<std::size_t>(slot)].name);
  }

  void compare_parameters(std::int64_t step) const {
    std::string lines;
    add_hashes(lines);
    require_same_values(group(), step, lines);
  }

  /// Whether some rank owns several subtrees of so many blocks, and the group adds these up.
  bool cuts_tree(int blocks) const { return blocks % group().size() != 0 && on_cpu() && group().takes_parts(); }
  bool on_cpu() const { return store_.device().kind == DeviceKind::cpu; }
  bool all_slots() const { return range_.slots == store_.slot_count(); }
  /// The number in the reducer of a slot, and the other way round: see slots_of().
  int mirrored(int slot) const { return range_.first_slot + end_slot() - 1 - slot; }
  int end_slot() const { return range_.first_slot + range_.slots; }

  nn::Module& module_;
  nn::FlatParameters& store_;
  const nn::Module::Range range_;
  const DistributedDataParallelOptions options_;
  GroupSums sums_;
  SumsAside aside_;
  StepMark done_{.numbers = {-1, -1, 0}};     // updates since the last reduction
  float clip_norm_ = 0;                       // to which the gradients of the next update were clipped; 0: not
  std::uint64_t value_writes_ = 0;            // the count of the store at the last reduction
  std::shared_ptr<nn::GradientParts> parts_;  // null: each rank owns one subtree, or none
  bool has_parts_ = false;                    // whether parts were made
  bool has_shared_ = false;                   // whether parts were made in memory that ranks share, where there is such
  const bool may_be_cut_;
  std::unique_ptr<dp::DataParallel> pieces_;
  std::atomic<bool> said_shares_{group().rank() != 0}, said_inputs_{false};  // rank 0 reports shares for all
  std::uint64_t delivery_ = 0, drawn_ = 0;                                   // the last batch's, see BatchMark
  // In an elastic job:
  std::int64_t batch_ = -1;                     // of the last forward in training mode
  int backwards_ = 0;                           // synchronised ones since then
  bool regroups_ = false;                       // the ranks have a new process group
  std::int64_t compared_ = -1;                  // last pass in which a complete step compared parameters
  std::int64_t compares_ = -1;                  // the same, with the step in flight
  Tensor saved_buffers_{};                      // as before this step
  std::optional<nn::Context> saved_context_{};  // likewise: what dropout draws next
  Lasting::Hold joins_rows_;                    // null: by no rows, or of no other rank
  nn::HookHandle at_begin_, on_ready_, at_end_, before_update_, at_rank_sum_{};
};

DistributedDataParallel::DistributedDataParallel(nn::Module& module, ProcessGroup& group,
                                                 const DistributedDataParallelOptions& options)
    : module_(module), group_(group) {
  nn::FlatParameters& store = module_.parameters();
  const Range& range = module_.range();
  require<UsageError>(range.slots > 0,
                      "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a "
                      "gradient.");
  require<UsageError>(options.compare_parameters_every >= 0, "compare_parameters_every is ",
                      options.compare_parameters_every, ", expected 0 or more");
  if (!options.broadcast_buffers && range.buffers > 0) require_not_elastic("buffers without broadcast_buffers");
  const auto whole_statistics = [](const nn::Module& one) {
    return dynamic_cast<const nn::BatchNorm2d*>(&one) == nullptr || dynamic_cast<const nn::SyncBatchNorm*>(&one);
  };
  require<UsageError>(
      !Recovery::instance().ranks_change() || module.all_modules(whole_statistics),
      "an elastic job continues with fewer ranks, but batch norm has the statistics of rank 0's rows: use "
      "SyncBatchNorm, or no minimum of ranks");
  const bool refuses = Recovery::instance().ranks_change() && store.device().kind == DeviceKind::cpu;
  require<UsageError>(!refuses || options.rule == GradientRule::rows,
                      "an elastic job continues with fewer ranks, but GradientRule::torch divides by their number: use "
                      "GradientRule::rows, or no minimum of ranks");
  const auto is_no_wrapper = [](const nn::Module& one) {
    return dynamic_cast<const dp::DataParallel*>(&one) == nullptr;
  };
  require<UsageError>(
      !refuses || !Recovery::instance().may_cut_tree(kMostBlocks) || module.all_modules(is_no_wrapper),
      "an elastic job continues with numbers of ranks that do not divide the number of blocks, but then a "
      "DataParallel within DistributedDataParallel has other bits: use one device for each rank");
  require<UsageError>(
      !Recovery::instance().ranks_change() || module.sums_by_blocks(),
      "an elastic job continues with fewer ranks, but LibTorch's sums depend on how many rows a rank has: "
      "use no minimum of ranks, or adapt() with equal_bits");
  if (options.comm_hook) require_not_elastic("a comm_hook");
  if (options.static_graph) require_not_elastic("static_graph");
  if (options.undo) Recovery::instance().allow_undo();
  wrap_module("module", module);
  const auto slots = std::span(store.slots())
                         .subspan(static_cast<std::size_t>(range.first_slot), static_cast<std::size_t>(range.slots));
  const bool joins = Recovery::instance().is_void();  // then it gets all of this with the first step
  if (!joins) {
    const Lasting::Hold in_state = Recovery::instance().exchange_state();
    require_same_model(group_, descriptions_of(slots));
    group_.broadcast(store.written_values_of(range.first_slot, range.slots)).wait();
    std::uint64_t& seed = module_.context().seed;  // dropout's key, of rows that ranks number alike
    group_.broadcast(Buffer(&seed, sizeof seed, DType::u8)).wait();
  }
  share_gradients(store, range, group_);
  hooks_ = std::make_unique<ModuleHooks>(module_, group_, options);
  if (joins) return;
  const Lasting::Hold in_state = Recovery::instance().exchange_state();
  hooks_->broadcast_buffers(module_.context(), 0);
}

DistributedDataParallel::~DistributedDataParallel() = default;

std::int64_t DistributedDataParallel::steps() const { return hooks_->steps(); }

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() {
  require<UsageError>(
      !Recovery::instance().ranks_change(),
      "no_sync(): the bits of sums that ranks accumulate depend on their number, but the elastic job goes "
      "on with fewer of them");
  return hooks_->no_sync();
}

template <class T>
T DistributedDataParallel::run(nn::Context& context, const T& input) const {
  if (training()) hooks_->step_may_begin();
  RankWeights::Batch batch;
  if (grad_enabled()) batch = hooks_->batch_of(nn::first_tensor(input));
  const ScopedValue<BatchSums*> sums(context.batch_sums, &hooks_->sums());
  const bool owns = grad_enabled() && hooks_->owns_subtrees(nn::first_tensor(input));
  const ScopedValue<std::shared_ptr<nn::GradientParts>> parts(context.gradient_parts, owns ? hooks_->parts() : nullptr);
  const nn::Module& runner = grad_enabled() ? hooks_->runner_for(input, owns) : module_;
  const auto forward = [&] {
    T output = runner.forward(context, input);
    return grad_enabled() ? output_of_batch(output, hooks_->weights(), batch) : output;
  };
  if (!training() || !hooks_->synchronises() || !grad_enabled()) return forward();
  hooks_->forward_begins(context);
  batch.counts = true;
  T output = forward();
  hooks_->forward_ended();
  return output;
}

Variable DistributedDataParallel::forward(nn::Context& context, const Variable& x) const { return run(context, x); }

nn::Value DistributedDataParallel::forward(nn::Context& context, const nn::Value& input) const {
  return run(context, input);
}

bool DistributedDataParallel::redo() { return Recovery::instance().redo(); }

bool DistributedDataParallel::is_done() { return Recovery::instance().is_done(); }

void DistributedDataParallel::join(const std::function<void()>& body) {
  require_not_elastic("join()");
  hooks_->join(body, module_.context());
}

}  // namespace duet::ddp
