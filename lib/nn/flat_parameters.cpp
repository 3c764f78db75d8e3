#include "lib/nn/flat_parameters.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/base/recovery.h"
#include "lib/error.h"

namespace duet::nn {

/// The leaf of one slot: gradients that arrive end up in the flat buffer.
class FlatParameters::SlotLeaf final : public Leaf {
 public:
  SlotLeaf(FlatParameters& all, int slot)
      : all_(all),
        hooks_(all.hooks_),
        slot_(slot),
        name_(all.slots()[static_cast<std::size_t>(slot)].name),
        generation_(all.generation_),
        gradient_(std::as_const(all).gradient(slot)) {
    set_kinds(kFree);
  }
  const char* name() const override { return name_.c_str(); }
  /// Comes first in every backward run: a tape may outlive its model.
  void reached() override {
    require<UsageError>(!hooks_.expired(), "the model of ", name_,
                        " was destroyed before this backward, which adds to ",
                        "its gradients: keep the model as long as its losses");
    require<UsageError>(!all_.residence_.of_replica() || all_.runs_, "backward reaches ", name_,
                        " of a replica past the output of its wrapper, or within forward: the wrapper runs the module "
                        "once for each part of the batch, and what forward keeps in a member is of one part only; "
                        "return it with the output, and call backward outside of forward");
  }
  void adds_up() override {
    all_.added_uses_ = true;
    if (all_.shared_slot_ < 0) all_.shared_slot_ = slot_;
  }
  Tensor place() const override { return all_.has_gradient(slot_) ? Tensor() : gradient_; }
  BackwardListener* listener() override { return all_.hooks_.get(); }

  void backward(const Gradients& gradients) override {
    const Tensor& arrived = gradients.outputs[0];
    if (!arrived.defined()) return;
    require<UsageError>(generation_ == all_.generation_, "the gradients of ", name(),
                        " have moved since the forward of this backward");
    if (!arrived.same_memory(gradient_)) all_.residence_.gradients_written();
    if (all_.has_gradient(slot_)) {
      all_.added_uses_ |= !all_.hooks_->adds_free();
      backend(arrived).add(gradient_, arrived, gradient_);
    } else if (!arrived.same_memory(gradient_)) {
      copy(arrived.reshape(gradient_.shape()), gradient_);
    }
    all_.set_filled(slot_);
    all_.hooks_->grad_ready(slot_);
  }

 private:
  FlatParameters& all_;
  std::weak_ptr<const void> hooks_;  // while all_ is
  int slot_;
  std::string name_;
  std::uint64_t generation_;
  Tensor gradient_;
};

namespace {

constexpr std::int64_t kVector = 4;    // elements that CUDA kernels and NCCL load at once
constexpr std::int64_t kAligned = 16;  // bytes, the same in buffers

/// Sets the offsets, in reverse order of registration, each a multiple of kVector, and the padding between slots.
/// Returns the number of elements in all.
std::int64_t lay_out(std::vector<Slot>& slots) {
  std::int64_t offset = 0, end = 0;
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    slot->offset = offset;
    end = offset + slot->shape.count();
    offset = (end + kVector - 1) / kVector * kVector;
    slot->padding = slot + 1 == slots.rend() ? 0 : offset - end;
  }
  return end;
}

constexpr std::int64_t kCacheLine = 16;  // elements

/// The first element of a flat buffer of `slots` in its memory: the largest slot then lies on a cache line, and with it
/// all that are whole vectors away. On CPU a vector of a matrix that reaches into two lines is loaded twice; on CUDA
/// cuDNN needs copies of what is not aligned to 16 bytes.
std::int64_t flat_begin(const std::vector<Slot>& slots) {
  const auto by_count = [](const Slot& a, const Slot& b) { return a.shape.count() < b.shape.count(); };
  const std::int64_t offset = std::max_element(slots.begin(), slots.end(), by_count)->offset;
  return (kCacheLine - offset % kCacheLine) % kCacheLine;
}

Tensor flat_memory(std::vector<Slot> slots, Device device) {
  const std::int64_t count = lay_out(slots);
  if (slots.empty()) return zeros({0}, DType::f32, device);
  return zeros({count + kCacheLine}, DType::f32, device).slice(flat_begin(slots), {count});
}

Tensor run_of(const Tensor& flat, const std::vector<Slot>& slots, int first, int count) {
  if (count == 0) return flat.slice(0, {0});
  const Slot& last = slots[static_cast<std::size_t>(first + count - 1)];  // lies first: see Note [Flat order]
  const Slot& front = slots[static_cast<std::size_t>(first)];
  return flat.slice(last.offset, {front.offset + front.shape.count() - last.offset});
}

}  // namespace

FlatBuffers::FlatBuffers(const NamedTensors& initial, Device device) {
  lay_out(initial, device);
  for (std::size_t i = 0; i < initial.size(); ++i) copy(initial[i].tensor, all_[i].tensor);
}

FlatBuffers::FlatBuffers(const FlatBuffers& whole, int first, int count, Device device, bool share) {
  if (share) memory_ = whole.run(first, count).alias(device);
  const auto begin = whole.all_.begin() + first;
  lay_out({begin, begin + count}, device);
  if (!share) copy(whole.run(first, count), memory_);
}

void FlatBuffers::lay_out(const NamedTensors& like, Device device) {
  for (const auto& [name, tensor] : like) {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes());
    begins_.push_back(begins_.back() + (bytes + kAligned - 1) / kAligned * kAligned);
  }
  if (!memory_.defined()) memory_ = zeros({begins_.back()}, DType::u8, device);
  for (std::size_t i = 0; i < like.size(); ++i)
    all_.push_back({like[i].name, memory_.reinterpret(begins_[i], like[i].tensor.shape(), like[i].tensor.dtype())});
}

Tensor FlatBuffers::run(int first, int count) const {
  const std::int64_t begin = begins_[static_cast<std::size_t>(first)];
  return memory_.slice(begin, {begins_[static_cast<std::size_t>(first + count)] - begin});
}

void FlatBuffers::move_to(Device device) {
  *this = FlatBuffers(*this, 0, static_cast<int>(all_.size()), device, false);
}

FlatParameters::FlatParameters(std::vector<Slot> slots, const std::vector<NamedTensor>& buffers, Device device)
    : FlatParameters(slots, FlatBuffers(buffers, device), flat_memory(slots, device), flat_memory(slots, device),
                     nullptr) {}

FlatParameters::FlatParameters(std::vector<Slot> slots, FlatBuffers buffers, Tensor values, Tensor gradients,
                               const Residence* model)
    : slots_(std::move(slots)),
      buffers_(std::move(buffers)),
      values_(std::move(values)),
      gradients_(std::move(gradients)),
      filled_(slots_.size(), 0),
      residence_(model),
      hooks_(std::make_shared<GradientHooks>(residence_)) {
  lay_out(slots_);
  make_variables();
}

Tensor FlatParameters::flat_zeros(int first_slot, int slot_count) const {
  const auto slot = slots_.begin() + first_slot;
  return flat_memory({slot, slot + slot_count}, device());
}

void FlatParameters::make_variables(const FlatParameters* model, int first) {
  variables_.clear();
  ++generation_;
  for (int i = 0; i < slot_count(); ++i) {
    const Tensor& versions = model != nullptr ? model->variable(first + i).value() : values_;
    variables_.emplace_back(view(values_, i).with_own_version(versions), make_pooled<SlotLeaf>(*this, i));
  }
}

void FlatParameters::move_gradients(const std::shared_ptr<Storage>& memory) {
  gradients_.storage().move_to(memory);
  residence_.gradients_written();
}

std::string FlatParameters::holders() const {
  std::string text = residence_.holders();
  if (hooks_->hold_gradients())
    text += (text.empty() ? "" : ", ") + std::string("hooks on gradients (DistributedDataParallel)");
  return text;
}

void FlatParameters::move_to(Device device) {
  const Tensor moved = flat_memory(slots_, device);
  copy(values_, moved);
  buffers_.move_to(device);
  values_ = moved;
  gradients_ = flat_memory(slots_, device);
  zero_grad();
  make_variables();
}

Tensor FlatParameters::view(const Tensor& flat, int slot) const {
  require<UsageError>(slot >= 0 && slot < slot_count(), "slot ", slot, " of ", slot_count());
  const Slot& at = slots_[static_cast<std::size_t>(slot)];
  return flat.slice(at.offset, at.shape);
}

Tensor FlatParameters::value(int slot) const {
  require<UsageError>(slot >= 0 && slot < slot_count(), "slot ", slot, " of ", slot_count());
  return variable(slot).value();
}
Tensor FlatParameters::gradient(int slot) const { return view(gradients_, slot); }

const Tensor& FlatParameters::values() {
  ++value_writes_;
  residence_.values_written();
  return values_;
}

const Tensor& FlatParameters::gradients() {
  residence_.gradients_written();
  return gradients_;
}

Tensor FlatParameters::value(int slot) {
  values();
  return std::as_const(*this).value(slot);
}
Tensor FlatParameters::gradient(int slot) { return view(gradients(), slot); }

void FlatParameters::report_uses(const Slot* shared) {
  if (device().kind != DeviceKind::cpu) return;
  report_dependence(said_uses_, [&] {
    return concat(shared != nullptr ? shared->name : "a parameter",
                  " has several uses in a step (a layer that is called twice, tied weights, losses that are added or "
                  "accumulated), and each device adds up their gradients before these are summed by blocks");
  });
}

void FlatParameters::zero_grad() {
  std::ranges::fill(filled_, 0);
  ++zero_grad_count_;
  hooks_->forget_normalisers();
  residence_.gradients_written();  // by the next backward
}

void FlatParameters::zero_grad(int first_slot, int slot_count) {
  std::fill_n(filled_.begin() + first_slot, slot_count, 0);
  if (std::ranges::all_of(filled_, [](unsigned char filled) { return filled == 0; })) return zero_grad();
  residence_.gradients_written();
}

Tensor FlatParameters::values_of(int first_slot, int slot_count) const {
  return run_of(values_, slots_, first_slot, slot_count);
}
Tensor FlatParameters::gradients_in(const std::shared_ptr<Storage>& memory) const {
  const auto begin =
      static_cast<const std::byte*>(gradients_.raw()) - static_cast<const std::byte*>(gradients_.storage().data());
  return Tensor(memory, static_cast<std::size_t>(begin), gradients_.shape(), DType::f32);
}
Tensor FlatParameters::written_values_of(int first_slot, int slot_count) {
  values();
  const Tensor run = values_of(first_slot, slot_count);
  run.bump_version();
  return run;
}

Tensor FlatParameters::gradients_of(int first_slot, int slot_count) const {
  return run_of(gradients_, slots_, first_slot, slot_count);
}

UpdateRun FlatParameters::update_run(const OptimizerState& of, const std::vector<Tensor>& buffers) const {
  UpdateRun run{.values = values_of(of.first_slot, of.slots), .gradients = gradients_of(of.first_slot, of.slots)};
  run.state.assign(buffers.begin(), buffers.end());
  return run;
}

std::unique_ptr<FlatParameters> FlatParameters::replica(Device device, const ReplicaPart& part) const {
  const auto slot = slots_.begin() + part.first_slot;
  std::vector<Slot> slots(slot, slot + part.slots);
  FlatBuffers buffers(buffers_, part.first_buffer, part.buffers, device, part.share_buffers);
  const Tensor own = values_of(part.first_slot, part.slots);
  Tensor values = part.share_values ? own.alias(device) : flat_memory(slots, device);
  if (!part.share_values) copy(own, values);
  Tensor gradients = flat_memory(slots, device);
  std::unique_ptr<FlatParameters> made(
      new FlatParameters(std::move(slots), std::move(buffers), std::move(values), std::move(gradients), &residence_));
  made->make_variables(this, part.first_slot);
  made->model_id_ = model_id_;
  return made;
}

}  // namespace duet::nn
