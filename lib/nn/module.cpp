#include "lib/nn/module.h"

#include <cstdint>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::nn {

Variable Module::forward(Context&, const Variable&) const {
  throw UsageError(concat(type_name(), ": takes no single tensor, or has no forward"));
}

Value Module::forward(Context& context, const Value& input) const { return forward(context, input.variable()); }

Variable Module::operator()(const Variable& x) {
  Context& own = context();
  Variable y = forward(own, x);
  if (own.training && grad_enabled()) ++own.step;
  return y;
}

Value Module::operator()(const Value& input) {
  Context& own = context();
  Value output = forward(own, input);
  if (own.training && grad_enabled()) ++own.step;
  return output;
}

Context& Module::context() {
  if (parent_ != nullptr) return parent_->context();
  if (is_wrapper()) return children_.front().module->context();
  if (store_ == nullptr) initialise(std::uint64_t{0});
  return context_;
}

int Module::register_parameter(std::string name, const Shape& shape, Fill fill) {
  parameters_.push_back({std::move(name), shape, std::move(fill)});
  return static_cast<int>(parameters_.size()) - 1;
}

int Module::register_buffer(std::string name, const Shape& shape, float value) {
  buffers_.push_back({std::move(name), shape, value});
  return static_cast<int>(buffers_.size()) - 1;
}

void Module::register_module(std::string name, Module& child) {
  require<UsageError>(child.parent_ == nullptr && &child != this, "module ", name,
                      " is part of another module already");
  child.set_parent(*this);
  children_.push_back({std::move(name), &child});
}

void Module::wrap_module(std::string name, Module& child) { children_.push_back({std::move(name), &child, true}); }

void Module::set_parent(Module& parent) {
  parent_ = &parent;
  store_.reset();
  for (const Child& child : children_)
    if (child.wrapped) child.module->set_parent(*this);
}

void Module::number(Numbering& next) {
  range_.first_slot = next.slots;
  range_.first_buffer = next.buffers;
  if (!is_wrapper()) layer_ = next.layers++;  // wrapping a part of a model must not change its random numbers
  next.slots += static_cast<int>(parameters_.size());
  next.buffers += static_cast<int>(buffers_.size());
  for (const Child& child : children_) child.module->number(next);
  range_.slots = next.slots - range_.first_slot;
  range_.buffers = next.buffers - range_.first_buffer;
}

void Module::collect(const std::string& prefix, std::vector<Slot>& slots, std::vector<NamedTensor>& buffers) const {
  for (const OwnParameter& own : parameters_) slots.push_back({prefix + own.name, own.shape});
  for (const OwnBuffer& own : buffers_) {
    buffers.push_back({prefix + own.name, empty(own.shape)});
    backend(buffers.back().tensor).fill(buffers.back().tensor, own.value);
  }
  for (const Child& child : children_) child.module->collect(prefix + child.name + ".", slots, buffers);
}

void Module::fill_values(ParameterStore& store, Mt19937& generator) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor value = store.value(range_.first_slot + static_cast<int>(i));
    parameters_[i].fill(value.span<float>(), generator);
  }
  for (const Child& child : children_) child.module->fill_values(store, generator);
}

void Module::make_values() {
  Numbering numbering;
  number(numbering);
  std::vector<Slot> slots;
  std::vector<NamedTensor> buffers;
  collect("", slots, buffers);
  store_ = std::make_unique<ParameterStore>(std::move(slots), std::move(buffers), Device{});
  context_.store = store_.get();
}

void Module::initialise(Mt19937& generator) {
  require<UsageError>(parent_ == nullptr, "initialise the whole model, not ", type_name(), ", a part of it");
  if (is_wrapper()) return children_.front().module->initialise(generator);
  make_values();
  fill_values(*store_, generator);
}

void Module::initialise(std::uint64_t seed) {
  Mt19937 generator(seed);
  initialise(generator);
  context().seed = seed;
}

void Module::to(Device device) {
  require<UsageError>(parent_ == nullptr, "move the whole model, not ", type_name(), ", a part of it");
  if (is_wrapper()) return children_.front().module->to(device);
  const ParameterStore& old = parameters();
  if (old.device() == device) return;
  std::vector<NamedTensor> buffers;
  for (const NamedTensor& buffer : old.buffers()) buffers.push_back({buffer.name, buffer.tensor.to(device)});
  auto moved = std::make_unique<ParameterStore>(old.slots(), std::move(buffers), device);
  copy(old.values(), moved->values());
  store_ = std::move(moved);
  context_.store = store_.get();
}

std::vector<NamedTensor> Module::state_dict() {
  std::vector<NamedTensor> state;
  context().store->require_whole_values();
  append_state("", context(), state);
  return state;
}

void Module::append_state(const std::string& prefix, const Context& own, std::vector<NamedTensor>& state) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    state.push_back(
        {prefix + parameters_[i].name, own.store->value(range_.first_slot + static_cast<int>(i) - own.first_slot)});
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    state.push_back({prefix + buffers_[i].name, own.buffer(range_.first_buffer + static_cast<int>(i))});
  for (const Child& child : children_) child.module->append_state(prefix + child.name + ".", own, state);
}

void Module::load_state_dict(const std::vector<NamedTensor>& state) {
  const std::vector<NamedTensor> own = state_dict();
  const auto find = [](const std::vector<NamedTensor>& list, const std::string& name) -> const Tensor* {
    for (const NamedTensor& item : list)
      if (item.name == name) return &item.tensor;
    return nullptr;
  };
  for (const NamedTensor& given : state)
    require<DataError>(find(own, given.name) != nullptr, "this model has no tensor '", given.name, "'");
  for (const NamedTensor& mine : own) {
    const Tensor* const given = find(state, mine.name);
    require<DataError>(given != nullptr, "no tensor '", mine.name, "', which this model needs");
    require<DataError>(given->shape() == mine.tensor.shape() && given->dtype() == mine.tensor.dtype(), "tensor '",
                       mine.name, "' has shape ", given->shape(), " ", name(given->dtype()), ", this model expects ",
                       mine.tensor.shape(), " ", name(mine.tensor.dtype()));
  }
  for (const NamedTensor& mine : own) copy(*find(state, mine.name), mine.tensor);
}

std::string Module::str() const {
  std::string text;
  append_text(text, 0);
  return text;
}

void Module::append_text(std::string& text, int indent) const {
  text += type_name() + "(" + details();
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  for (const Child& child : children_) {
    text += "\n" + margin + "  (" + child.name + "): ";
    child.module->append_text(text, indent + 2);
  }
  text += children_.empty() ? ")" : "\n" + margin + ")";
}

}  // namespace duet::nn
