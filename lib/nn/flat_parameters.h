// The values of a model: one flat buffer of parameter values, one of their gradients, and one of the buffers.
//
// Note [Flat order]: slots lie in the flat buffers in reverse order of registration, which is about the order in which
// backward completes their gradients. So a bucket of a reduction is a contiguous run, nothing is copied into it, and an
// optimizer's update is one kernel.
//
// Note [Writing values]: an update site (lib/nn/residence.h) may keep copies of values and gradients. Code that writes
// them takes them from FlatParameters that are not const; that alone marks the copies as out of date. Tensors taken
// before the last forward (values) or backward (gradients) must not be written any more: the copies would differ.
// Values that are written between a forward and its backward make that throw: every slot has a version of its own
// (Tensor::version), to which writes to the whole flat buffer add up, and replicas have those of the model. So a
// replica's copy counts as written when the model's value was, and not when it gets the same value again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/blocks.h"
#include "lib/nn/gradient_hooks.h"
#include "lib/nn/residence.h"
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

/// Where a rank owns several subtrees of the blocks (lib/blocks.h), its gradients of one backward: the model's are
/// those of the first subtree.
struct GradientParts {
  int blocks = kBlocks;             // in all
  std::vector<Subtree> subtrees{};  // of this rank
  Tensor first{};                   // the model's flat gradient
  std::vector<Tensor> others{};     // by subtree but the first: laid out as that
  std::vector<char> filled{};       // by slot of the model: whether this backward has filled them
};

/// The buffers of a model (running statistics, counts of batches) in one piece of memory, so that one copy or one
/// broadcast moves all of them, whatever their types. Used by one thread at a time.
class FlatBuffers {
 public:
  /// Copies of `initial` on `device`, in this order.
  FlatBuffers(const NamedTensors& initial, Device device);
  /// For `device`, the buffers from number `first` on: the memory of `whole` itself if `share`, else copies of now.
  FlatBuffers(const FlatBuffers& whole, int first, int count, Device device, bool share);

  /// Views of the memory.
  const NamedTensors& all() const { return all_; }
  /// The bytes (u8) of the buffers from number `first` on; padding between them is 0. Valid until move_to().
  Tensor run(int first, int count) const;
  void move_to(Device device);

 private:
  /// Makes the views; memory_ is new unless it is set.
  void lay_out(const NamedTensors& like, Device device);

  Tensor memory_;                        // u8
  std::vector<std::int64_t> begins_{0};  // where each buffer begins in it, and where the last ends
  NamedTensors all_;
};

/// The parameters of a model by slot, with their gradients, and its buffers. It tells its residence when values or
/// gradients are written, and its hooks when backward completes a gradient. Used by one thread at a time.
class FlatParameters final {
 public:
  /// Slots in registration order; their offsets are set here. The buffers begin as copies of `buffers`.
  FlatParameters(std::vector<Slot> slots, const std::vector<NamedTensor>& buffers, Device device);
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  Device device() const { return values_.device(); }
  const std::vector<Slot>& slots() const { return slots_; }
  int slot_count() const { return static_cast<int>(slots_.size()); }
  const std::vector<NamedTensor>& buffers() const { return buffers_.all(); }
  /// The bytes (u8) of the buffers from number `first` on, in one piece.
  Tensor buffer_run(int first, int count) const { return buffers_.run(first, count); }

  /// Which modules' values these are: every model has a number of its own, and so have its replicas; 0: none.
  std::uint64_t model_id() const { return model_id_; }
  void set_model_id(std::uint64_t id) { model_id_ = id; }

  Residence& residence() { return residence_; }
  const Residence& residence() const { return residence_; }
  GradientHooks& hooks() { return *hooks_; }
  /// The names of what holds the values, hooks on gradients included: "SGD, replicas (DataParallel)"; empty: nothing.
  std::string holders() const;
  /// Moves values and buffers, and drops the gradients. A backward of an earlier forward throws UsageError. Only where
  /// nothing holds the values.
  void move_to(Device device);

  /// The whole flat buffers, f32. To be written only where they were taken from an object that is not const.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  const Tensor& values();
  const Tensor& gradients();
  /// Zeros laid out as values_of(first_slot, slot_count), for an optimizer's state.
  Tensor flat_zeros(int first_slot, int slot_count) const;
  /// How often values were taken to be written: see Note [Writing values].
  std::uint64_t value_writes() const { return value_writes_; }
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
  /// Whether this device has ever added up gradients of several uses of a parameter, in one backward or in several
  /// since zero_grad(). Then bits depend on the number of devices: see docs/explanation/reproducibility.md.
  bool added_uses() const { return added_uses_; }
  /// The first slot of which one backward has added up several uses; null: there is none.
  const Slot* shared_slot() const {
    return shared_slot_ < 0 ? nullptr : &slots_[static_cast<std::size_t>(shared_slot_)];
  }
  /// Says that each device adds up several uses of `shared`, or of some parameter, once: see report_dependence(). Not
  /// on GPUs, whose bits depend on their number as it is.
  void report_uses(const Slot* shared);
  /// Returns whether the wrapper of a replica runs it now. No other backward may reach its parameters.
  bool& runs() { return runs_; }
  /// Marks a slot filled whose gradient was written by other means.
  void set_filled(int slot) { filled_[static_cast<std::size_t>(slot)] |= kFilled; }
  /// Marks a slot as holding the sum over all ranks, until zero_grad().
  void set_summed(int slot) { filled_[static_cast<std::size_t>(slot)] = kFilled | kSummed; }
  bool is_summed(int slot) const { return (filled_[static_cast<std::size_t>(slot)] & kSummed) != 0; }
  /// Marks a slot as empty because its sum was kept elsewhere, to be added again, until zero_grad().
  void set_aside(int slot) { filled_[static_cast<std::size_t>(slot)] = kAside; }
  bool is_aside(int slot) const { return (filled_[static_cast<std::size_t>(slot)] & kAside) != 0; }

  /// A tensor laid out as gradients() in other memory of gradient_bytes(), and its view of one slot.
  Tensor gradients_in(const std::shared_ptr<Storage>& memory) const;
  Tensor slot_in(const Tensor& flat, int slot) const { return view(flat, slot); }

  /// Moves the gradients, with what they hold, to memory of gradient_bytes() on this device. Tensors of them taken
  /// earlier move along. Not during a backward. Throws DeviceError for other memory.
  void move_gradients(const std::shared_ptr<Storage>& memory);
  std::size_t gradient_bytes() const { return gradients_.storage().bytes(); }

  /// For another device, a part of these slots and buffers.
  struct ReplicaPart {
    int first_slot = 0, slots = 0, first_buffer = 0, buffers = 0;
    bool share_values = false;   // the values are in this same memory, else copies of now
    bool share_buffers = false;  // the same for the buffers
  };
  std::unique_ptr<FlatParameters> replica(Device device, const ReplicaPart& part) const;
  /// The run of the flat buffers that `slot_count` slots from `first_slot` on take.
  Tensor values_of(int first_slot, int slot_count) const;
  /// The same, about to be written by other means than operators and optimizers.
  Tensor written_values_of(int first_slot, int slot_count);
  Tensor gradients_of(int first_slot, int slot_count) const;
  /// The run of all elements of a state's slots, with buffers that are laid out as the state's.
  UpdateRun update_run(const OptimizerState& of, const std::vector<Tensor>& buffers) const;

 private:
  class SlotLeaf;
  /// `model`: see Residence.
  FlatParameters(std::vector<Slot> slots, FlatBuffers buffers, Tensor values, Tensor gradients, const Residence* model);
  Tensor view(const Tensor& flat, int slot) const;
  /// A replica's variables share the versions of the slots of `model` from number `first` on, whose values they are.
  void make_variables(const FlatParameters* model = nullptr, int first = 0);

  std::vector<Slot> slots_;
  FlatBuffers buffers_;
  Tensor values_, gradients_;
  static constexpr unsigned char kFilled = 1, kSummed = 2, kAside = 4;
  std::vector<unsigned char> filled_;  // by slot; 0: empty
  std::uint64_t zero_grad_count_ = 0, value_writes_ = 0;
  std::vector<Variable> variables_;
  Residence residence_;
  std::shared_ptr<GradientHooks> hooks_;
  std::uint64_t model_id_ = 0;
  std::uint64_t generation_ = 0;  // how often variables_ were made
  bool added_uses_ = false, runs_ = false;
  int shared_slot_ = -1;
  std::atomic<bool> said_uses_{false};
};

}  // namespace duet::nn
