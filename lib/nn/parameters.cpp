#include "lib/nn/parameters.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::nn {

struct ParameterStore::Hooks {
  template <class... Args>
  struct List {
    std::map<int, std::shared_ptr<const std::function<void(Args...)>>> by_id;
    /// A hook may remove itself or others while it runs.
    void call(Args... args) const {
      for (auto at = by_id.begin(); at != by_id.end();) {
        const auto [id, hook] = *at;
        (*hook)(args...);
        at = by_id.upper_bound(id);
      }
    }
  };
  List<int> ready;
  List<> begin, end;
  int next_id = 0;

  template <class... Args>
  static HookHandle add(const std::shared_ptr<Hooks>& to, List<Args...> Hooks::*list,
                        std::function<void(Args...)> hook) {
    const int id = to->next_id++;
    ((*to).*list).by_id[id] = std::make_shared<const std::function<void(Args...)>>(std::move(hook));
    return HookHandle([hooks = std::weak_ptr(to), list, id] {
      if (const auto alive = hooks.lock()) ((*alive).*list).by_id.erase(id);
    });
  }
};

/// The leaf of one slot: gradients that arrive end up in the flat buffer.
class ParameterStore::SlotLeaf final : public Leaf {
 public:
  SlotLeaf(ParameterStore& store, int slot)
      : store_(store),
        alive_(store.hooks_),
        slot_(slot),
        name_(store.slots()[static_cast<std::size_t>(slot)].name),
        generation_(store.generation_),
        gradient_(std::as_const(store).gradient(slot)) {}
  const char* name() const override { return name_.c_str(); }
  /// Comes first in every backward run: a tape may outlive its model.
  void reached() override {
    require<UsageError>(!alive_.expired(), "the model of ", name_,
                        " was destroyed before this backward, which adds to ",
                        "its gradients: keep the model as long as its losses");
  }
  void adds_up() override { store_.added_uses_ = true; }
  Tensor place() const override { return store_.has_gradient(slot_) ? Tensor() : gradient_; }
  BackwardListener* listener() override { return &store_; }

  void backward(const Gradients& gradients) override {
    const Tensor& arrived = gradients.outputs[0];
    if (!arrived.defined()) return;
    require<UsageError>(generation_ == store_.generation_, "the gradients of ", name(),
                        " have moved since the forward of this backward");
    if (!arrived.same_memory(gradient_)) store_.gradients_changed();
    if (store_.has_gradient(slot_)) {
      adds_up();
      backend(arrived).add(gradient_, arrived, gradient_);
    } else if (!arrived.same_memory(gradient_)) {
      copy(arrived.reshape(gradient_.shape()), gradient_);
    }
    store_.set_filled(slot_);
    store_.grad_ready(slot_);
  }

 private:
  ParameterStore& store_;
  std::weak_ptr<const void> alive_;  // while store_ is
  int slot_;
  std::string name_;
  std::uint64_t generation_;
  Tensor gradient_;
};

namespace {

constexpr std::int64_t kVector = 4;  // elements that CUDA kernels and NCCL load at once

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

constexpr std::int64_t kLine = 16;  // elements

/// The first element of a flat buffer of `slots` in its memory: the largest slot then lies on a cache line, and with it
/// all that are whole vectors away. On CPU a vector of a matrix that reaches into two lines is loaded twice; on CUDA
/// cuDNN needs copies of what is not aligned to 16 bytes.
std::int64_t flat_begin(const std::vector<Slot>& slots) {
  const auto by_count = [](const Slot& a, const Slot& b) { return a.shape.count() < b.shape.count(); };
  const std::int64_t offset = std::max_element(slots.begin(), slots.end(), by_count)->offset;
  return (kLine - offset % kLine) % kLine;
}

/// Memory for all slots.
Tensor flat_memory(std::vector<Slot> slots, Device device) {
  const std::int64_t count = lay_out(slots);
  if (slots.empty()) return zeros({0}, DType::f32, device);
  return zeros({count + kLine}, DType::f32, device).slice(flat_begin(slots), {count});
}

Tensor run_of(const Tensor& flat, const std::vector<Slot>& slots, int first, int count) {
  if (count == 0) return flat.slice(0, {0});
  const Slot& last = slots[static_cast<std::size_t>(first + count - 1)];  // lies first: see Note [Flat order]
  const Slot& front = slots[static_cast<std::size_t>(first)];
  return flat.slice(last.offset, {front.offset + front.shape.count() - last.offset});
}

}  // namespace

ParameterStore::ParameterStore(std::vector<Slot> slots, const std::vector<NamedTensor>& buffers, Device device)
    : ParameterStore(slots, FlatBuffers(buffers, device), flat_memory(slots, device), flat_memory(slots, device)) {}

ParameterStore::ParameterStore(std::vector<Slot> slots, FlatBuffers buffers, Tensor values, Tensor gradients)
    : slots_(std::move(slots)),
      buffers_(std::move(buffers)),
      values_(std::move(values)),
      gradients_(std::move(gradients)),
      filled_(slots_.size(), 0),
      hooks_(std::make_shared<Hooks>()) {
  lay_out(slots_);
  make_variables();
}

Tensor ParameterStore::flat_zeros(int first_slot, int slot_count) const {
  const auto slot = slots_.begin() + first_slot;
  return flat_memory({slot, slot + slot_count}, device());
}

void ParameterStore::make_variables(const ParameterStore* model, int first) {
  variables_.clear();
  ++generation_;
  for (int i = 0; i < slot_count(); ++i) {
    const Tensor& versions = model != nullptr ? model->variable(first + i).value() : values_;
    variables_.emplace_back(view(values_, i).with_own_version(versions), make_pooled<SlotLeaf>(*this, i));
  }
}

void ParameterStore::move_gradients(const std::shared_ptr<Storage>& memory) {
  gradients_.storage().move_to(memory);
  gradients_changed();
}

ParameterStore::Hold ParameterStore::hold(const std::string& by) const { return holds_[by].hold(); }

std::string ParameterStore::holders() const {
  std::string text;
  for (const auto& [by, held] : holds_)
    if (held.lasts()) text += (text.empty() ? "" : ", ") + by;
  if (!hooks_->ready.by_id.empty() || !hooks_->end.by_id.empty())
    text += (text.empty() ? "" : ", ") + std::string("hooks on gradients (DistributedDataParallel)");
  return text;
}

void ParameterStore::move_to(Device device) {
  const Tensor moved = flat_memory(slots_, device);
  copy(values_, moved);
  buffers_.move_to(device);
  values_ = moved;
  gradients_ = flat_memory(slots_, device);
  zero_grad();
  make_variables();
}

ParameterStore::~ParameterStore() = default;

Tensor ParameterStore::view(const Tensor& flat, int slot) const {
  require<UsageError>(slot >= 0 && slot < slot_count(), "slot ", slot, " of ", slot_count());
  const Slot& at = slots_[static_cast<std::size_t>(slot)];
  return flat.slice(at.offset, at.shape);
}

Tensor ParameterStore::value(int slot) const {
  require<UsageError>(slot >= 0 && slot < slot_count(), "slot ", slot, " of ", slot_count());
  return variable(slot).value();
}
Tensor ParameterStore::gradient(int slot) const { return view(gradients_, slot); }

void ParameterStore::gradients_changed() {
  if (const auto site = update_site()) site->gradients_written();
}

const Tensor& ParameterStore::values() {
  if (const auto site = update_site()) site->values_written();
  return values_;
}

const Tensor& ParameterStore::gradients() {
  gradients_changed();
  return gradients_;
}

Tensor ParameterStore::value(int slot) {
  values();
  return std::as_const(*this).value(slot);
}
Tensor ParameterStore::gradient(int slot) { return view(gradients(), slot); }

void ParameterStore::zero_grad() {
  std::ranges::fill(filled_, 0);
  ++zero_grad_count_;
  normalisers_ = 0;
  gradients_changed();  // by the next backward
}

void ParameterStore::zero_grad(int first_slot, int slot_count) {
  std::fill_n(filled_.begin() + first_slot, slot_count, 0);
  if (std::ranges::all_of(filled_, [](unsigned char filled) { return filled == 0; })) return zero_grad();
  gradients_changed();
}

HookHandle ParameterStore::on_grad_ready(std::function<void(int)> hook) {
  return Hooks::add(hooks_, &Hooks::ready, std::move(hook));
}

HookHandle ParameterStore::at_backward_begin(std::function<void()> hook) {
  return Hooks::add(hooks_, &Hooks::begin, std::move(hook));
}

HookHandle ParameterStore::at_backward_end(std::function<void()> hook) {
  return Hooks::add(hooks_, &Hooks::end, std::move(hook));
}

void ParameterStore::grad_ready(int slot) {
  if (hooks_->ready.by_id.empty()) return;
  hooks_->ready.call(slot);
  gradients_changed();  // perhaps
}

// A replica's are added up with those of the model.
bool ParameterStore::adds_up_ranks() const { return whole_ != nullptr || !hooks_->begin.by_id.empty(); }

void ParameterStore::backward_begins(unsigned normalisers) {
  normalisers_ |= normalisers;
  hooks_->begin.call();
}

void ParameterStore::backward_ended() {
  if (hooks_->end.by_id.empty()) return;
  hooks_->end.call();
  gradients_changed();
}

void ParameterStore::divide(FunctionRef<void(int, int)> task) const {
  const std::shared_ptr<ThreadPool> threads = threads_.lock();
  if (threads == nullptr) return task(0, 1);
  threads->run(threads->workers(), [&](int share, int) { task(share, threads->workers()); });
}

Tensor ParameterStore::values_of(int first_slot, int slot_count) const {
  return run_of(values_, slots_, first_slot, slot_count);
}
Tensor ParameterStore::gradients_of(int first_slot, int slot_count) const {
  return run_of(gradients_, slots_, first_slot, slot_count);
}

UpdateRun ParameterStore::update_run(const OptimizerState& of, const std::vector<Tensor>& buffers) const {
  UpdateRun run{.values = values_of(of.first_slot, of.slots), .gradients = gradients_of(of.first_slot, of.slots)};
  run.state.assign(buffers.begin(), buffers.end());
  return run;
}

std::unique_ptr<ParameterStore> ParameterStore::replica(Device device, const ReplicaPart& part) const {
  const auto slot = slots_.begin() + part.first_slot;
  std::vector<Slot> slots(slot, slot + part.slots);
  FlatBuffers buffers(buffers_, part.first_buffer, part.buffers, device, part.share_buffers);
  const Tensor own = values_of(part.first_slot, part.slots);
  Tensor values = part.share_values ? own.alias(device) : flat_memory(slots, device);
  if (!part.share_values) copy(own, values);
  Tensor gradients = flat_memory(slots, device);
  std::unique_ptr<ParameterStore> made(
      new ParameterStore(std::move(slots), std::move(buffers), std::move(values), std::move(gradients)));
  made->make_variables(this, part.first_slot);
  made->model_id_ = model_id_;
  made->whole_ = hold("replicas (DataParallel)");
  return made;
}

}  // namespace duet::nn
