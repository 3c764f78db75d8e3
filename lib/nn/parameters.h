// The values of a model: one flat buffer of parameter values, one of their gradients, and one of the buffers.
//
// Note [Flat order]: slots lie in the flat buffers in reverse order of registration, which is about the order in which
// backward completes their gradients. So a bucket of a reduction is a contiguous run, nothing is copied into it, and an
// optimizer's update is one kernel.
//
// Note [Writing values]: an update site may keep copies of values and gradients. Code that
// writes them takes them from a store that is not const; that alone marks the copies as out of date. Tensors taken
// before the last forward (values) or backward (gradients) must not be written any more: the copies would differ.
// Values that are written between a forward and its backward make that throw: every slot has a version of its own
// (Tensor::version), to which writes to the whole flat buffer add up, and replicas have those of the model. So a
// replica's copy counts as written when the model's value was, and not when it gets the same value again.
//
// Note [Update sites]: an optimizer updates the values of its model by their gradients, element by element.
// A wrapper may have it done elsewhere: on every device that keeps a copy of the values (DataParallel on GPUs). It sets
// a site at the model's store; the optimizer gives its rule to the site, which calls it with the memory to work on. The
// optimizer is independent of devices, the wrapper of the rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/autograd/node.h"
#include "lib/autograd/variable.h"
#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"
#include "lib/base/threads.h"
#include "lib/nn/flat_buffers.h"
#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet::nn {

using duet::NamedTensor;

/// One parameter: its name in PyTorch's style ("conv1.weight") and its place in the flat buffers, in elements.
struct Slot {
  std::string name;
  Shape shape;
  std::int64_t offset = 0;
  std::int64_t padding = 0;  // elements between it and the next slot in memory, always 0
};

/// Unregisters a hook when its last copy goes; may outlive the store.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove)
      : guard_(nullptr, [call = std::move(remove)](std::nullptr_t) { call(); }) {}
  void remove() { guard_.reset(); }

 private:
  std::shared_ptr<void> guard_;
};

/// Consecutive elements of the flat buffers, all on one device.
struct UpdateRun {
  Tensor values, gradients;
  PooledVector<Tensor> state{};  // the optimizer's buffers
};

/// The buffers that an optimizer keeps from step to step, each laid out as the values of the slots that it updates.
struct OptimizerState {
  int first_slot = 0, slots = 0;    // of the store; all of them, or those of a part of the model
  std::vector<Tensor> buffers{};    // on the store's device
  std::shared_ptr<void> at_site{};  // what the site of the last update keeps of them; null: nothing
};

/// Used by the store's thread.
class UpdateSite {
 public:
  using Rule = FunctionRef<void(const UpdateRun& run)>;

  virtual ~UpdateSite() = default;
  /// One update: calls `rule` for every place where the values lie, with those of the state's slots. Throws what `rule`
  /// throws.
  virtual void update(OptimizerState& state, Rule rule) = 0;
  /// Values or gradients of the store were written by others, or may have been: copies of them are out of date.
  virtual void values_written() {}
  virtual void gradients_written() {}
};

/// Used by one thread at a time.
class ParameterStore final : public BackwardListener {
 public:
  /// Slots in registration order; their offsets are set here. The buffers begin as copies of `buffers`.
  ParameterStore(std::vector<Slot> slots, const std::vector<NamedTensor>& buffers, Device device);
  ~ParameterStore() override;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  Device device() const { return values_.device(); }
  const std::vector<Slot>& slots() const { return slots_; }
  int slot_count() const { return static_cast<int>(slots_.size()); }
  const std::vector<NamedTensor>& buffers() const { return buffers_.all(); }
  /// The bytes (u8) of the buffers from number `first` on, in one piece.
  Tensor buffer_run(int first, int count) const { return buffers_.run(first, count); }

  /// Which modules' values these are: every model has a number of its own, and so have its replicas; 0: none.
  std::uint64_t model_id() const { return model_id_; }
  void set_model_id(std::uint64_t id) { model_id_ = id; }

  /// While one lives, the values stay on their device and the model stays a model of its own. `by` says what needs
  /// that.
  using Hold = Lasting::Hold;
  [[nodiscard]] Hold hold(const std::string& by) const;
  /// What holds the values, hooks on gradients included: "SGD, replicas (DataParallel)"; empty: nothing.
  std::string holders() const;
  /// Moves values and buffers, and drops the gradients. A backward of an earlier forward throws UsageError. Only where
  /// nothing holds the values.
  void move_to(Device device);

  /// The whole flat buffers, f32. To be written only where they were taken from a store that is not const.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  const Tensor& values();
  const Tensor& gradients();
  /// Zeros laid out as values_of(first_slot, slot_count), for an optimizer's state.
  Tensor flat_zeros(int first_slot, int slot_count) const;
  /// Views of one slot, likewise.
  Tensor value(int slot) const;
  Tensor gradient(int slot) const;
  Tensor value(int slot);
  Tensor gradient(int slot);
  /// The slot's value as a leaf of the tape.
  const Variable& variable(int slot) const { return variables_[static_cast<std::size_t>(slot)]; }

  /// Whether a backward has filled the slot since zero_grad().
  bool has_gradient(int slot) const { return (filled_[static_cast<std::size_t>(slot)] & kFilled) != 0; }
  /// Marks all slots empty, so that the next backward overwrites instead of adding. Touches no memory.
  void zero_grad();
  /// Marks a part's slots empty. It counts as a zero_grad() of all once no slot is filled.
  void zero_grad(int first_slot, int slot_count);
  /// How often zero_grad() of all was called.
  std::uint64_t zero_grad_count() const { return zero_grad_count_; }
  /// What the losses of all backward runs since zero_grad() were divided by, as bits of Normaliser; 0: there was none.
  unsigned normalisers() const { return normalisers_; }
  /// Says that the gradients are sums over all ranks, which later backward runs may divide by something else.
  void forget_normalisers() { normalisers_ = 0; }
  /// Whether this device has ever added up gradients of several uses of a parameter, in one backward or in several
  /// since zero_grad(). Then bits depend on the number of devices: see docs/equal_bits.md.
  bool added_uses() const { return added_uses_; }
  /// Marks a slot filled whose gradient was written by other means.
  void set_filled(int slot) { filled_[static_cast<std::size_t>(slot)] |= kFilled; }
  /// Marks a slot as holding the sum over all ranks, until zero_grad().
  void set_summed(int slot) { filled_[static_cast<std::size_t>(slot)] = kFilled | kSummed; }
  bool is_summed(int slot) const { return (filled_[static_cast<std::size_t>(slot)] & kSummed) != 0; }
  /// Marks a slot as empty because its sum was kept elsewhere, to be added again, until zero_grad().
  void set_aside(int slot) { filled_[static_cast<std::size_t>(slot)] = kAside; }
  bool is_aside(int slot) const { return (filled_[static_cast<std::size_t>(slot)] & kAside) != 0; }

  /// Moves the gradients, with what they hold, to memory of gradient_bytes() on this device. Tensors of them taken
  /// earlier move along. Not during a backward. Throws DeviceError for other memory.
  void move_gradients(const std::shared_ptr<Storage>& memory);
  std::size_t gradient_bytes() const { return gradients_.storage().bytes(); }

  /// Called on the thread of each backward run, with the slot whose gradient is complete in gradients().
  [[nodiscard]] HookHandle on_grad_ready(std::function<void(int slot)> hook);
  /// Called at the begin of each backward run that will reach a slot.
  [[nodiscard]] HookHandle at_backward_begin(std::function<void()> hook);
  /// Called at the end of each backward run that reached a slot.
  [[nodiscard]] HookHandle at_backward_end(std::function<void()> hook);

  /// Threads that may share out work on the flat buffers, until they go; those of a data-parallel wrapper whose devices
  /// share this store's memory.
  void set_threads(const std::shared_ptr<ThreadPool>& threads) { threads_ = threads; }
  /// Runs task(share, shares) for every share, each by the same thread as always; without threads it is one share.
  void divide(FunctionRef<void(int share, int shares)> task) const;

  /// Where optimizers update the values while the site lives; null: here. See Note [Update sites].
  void set_update_site(const std::shared_ptr<UpdateSite>& site) { update_site_ = site; }
  std::shared_ptr<UpdateSite> update_site() const { return update_site_.lock(); }

  /// A store for another device with a part of this one's slots and buffers.
  struct ReplicaPart {
    int first_slot = 0, slots = 0, first_buffer = 0, buffers = 0;
    bool share_values = false;   // the values are this store's own memory, else copies of now
    bool share_buffers = false;  // the same for the buffers
  };
  std::unique_ptr<ParameterStore> replica(Device device, const ReplicaPart& part) const;
  /// The run of the flat buffers that `slot_count` slots from `first_slot` on take.
  Tensor values_of(int first_slot, int slot_count) const;
  Tensor gradients_of(int first_slot, int slot_count) const;
  /// The run of all elements of a state's slots, with buffers that are laid out as the state's.
  UpdateRun update_run(const OptimizerState& of, const std::vector<Tensor>& buffers) const;

  bool adds_up_ranks() const override;
  void backward_begins(unsigned normalisers) override;
  void backward_ended() override;

 private:
  class SlotLeaf;
  struct Hooks;
  ParameterStore(std::vector<Slot> slots, FlatBuffers buffers, Tensor values, Tensor gradients);
  Tensor view(const Tensor& flat, int slot) const;
  void grad_ready(int slot);
  void gradients_changed();
  /// A replica's variables share the versions of the slots of `model` from number `first` on, whose values they are.
  void make_variables(const ParameterStore* model = nullptr, int first = 0);

  std::vector<Slot> slots_;
  FlatBuffers buffers_;
  Tensor values_, gradients_;
  static constexpr unsigned char kFilled = 1, kSummed = 2, kAside = 4;
  std::vector<unsigned char> filled_;  // by slot; 0: empty
  std::uint64_t zero_grad_count_ = 0;
  unsigned normalisers_ = 0;
  std::vector<Variable> variables_;
  std::shared_ptr<Hooks> hooks_;
  std::weak_ptr<ThreadPool> threads_;
  std::weak_ptr<UpdateSite> update_site_;
  std::uint64_t model_id_ = 0;
  std::uint64_t generation_ = 0;  // of variables_
  mutable std::map<std::string, Lasting> holds_;
  Hold whole_;  // a replica's, on the store that it is one of
  bool added_uses_ = false;
};

}  // namespace duet::nn
