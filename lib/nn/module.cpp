#include "lib/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/backend/step_graph.h"
#include "lib/elastic.h"
#include "lib/error.h"
#include "lib/random.h"

namespace duet::nn {

Module::~Module() {
  set_training(true);
  if (parent_ != nullptr) parent_->forget(*this);
  for (const Child& child : children_)
    if (child.linked && child.module != nullptr) child.module->parent_ = nullptr;
}

Variable Module::forward(Context&, const Variable&) const {
  throw UsageError(concat(type_name(), ": takes no single tensor, or has no forward"));
}

Value Module::forward(Context& context, const Value& input) const { return forward(context, input.variable()); }

template <class T>
T Module::run(const T& input) {
  Context& own = context();
  const Variable* const x = first_tensor(input);
  own.stamped = x != nullptr && x->defined() && x->value().stamp().stamped();
  T output = forward(own, input);
  if (training() && grad_enabled()) ++own.step;
  return output;
}

Variable Module::operator()(const Variable& x) { return run(x); }
Value Module::operator()(const Value& input) { return run(input); }

Context& Module::context() {
  if (parent_ != nullptr) return parent_->context();
  if (is_wrapper()) return child(children_.front()).context();
  if (store_ == nullptr) {
    require<UsageError>(model_id_ == 0, label(), " has lost its values: the model that it was part of was destroyed");
    Mt19937 generator(0);
    draw_values(generator, true);
    context_.seed = 0;
  }
  return context_;
}

/// Recorded steps hold the modes of modules.
void Module::set_training(bool on) {
  if (std::exchange(training_, on) != on) switch_mode(Philox(reinterpret_cast<std::uintptr_t>(this)).word64());
}

void Module::train(bool on) {
  set_training(on);
  for (const Child& own : children_) child(own).train(on);
}

void Module::zero_grad() {
  FlatParameters& store = parameters();  // which numbers the slots
  store.zero_grad(range().first_slot, range().slots);
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const OwnParameter& own : parameters_) count += own.shape.count();
  for (const Child& own : children_) count += child(own).parameter_count();
  return count;
}

void Module::require_can_register(const char* kind, const std::string& name) const {
  const auto has_name = [&](const auto& own) { return own.name == name; };
  require<UsageError>(!is_wrapper(), type_name(), " wraps a module: it has nothing of its own such as '", name, "'");
  require<UsageError>(!name.empty() && name.find('.') == std::string::npos, type_name(), ": '", name,
                      "' is no name: expected letters without a dot");
  require<UsageError>(std::none_of(parameters_.begin(), parameters_.end(), has_name) &&
                          std::none_of(buffers_.begin(), buffers_.end(), has_name) &&
                          std::none_of(children_.begin(), children_.end(), has_name),
                      type_name(), " has something named '", name, "' already");
  require<UsageError>(root().store_ == nullptr, kind, " '", name, "' of ", label(),
                      " is registered after the values of its model were made");
}

int Module::register_parameter(std::string name, const Shape& shape, Fill fill) {
  require_can_register("parameter", name);
  parameters_.push_back({std::move(name), shape, std::move(fill)});
  return static_cast<int>(parameters_.size()) - 1;
}

int Module::register_buffer(std::string name, const Tensor& initial) {
  require_can_register("buffer", name);
  buffers_.push_back({std::move(name), initial});
  return static_cast<int>(buffers_.size()) - 1;
}

void Module::register_module(std::string name, Module& child) {
  Module& inner = child.innermost();
  require<UsageError>(child.parent_ == nullptr && inner.parent_ == nullptr, "module ", name,
                      " is part of another module already");
  for (const Module* holder = this; holder != nullptr; holder = holder->parent_)
    require<UsageError>(holder != &child && holder != &inner, "module ", name,
                        " holds the module that it is registered in");
  require_can_register("module", name);
  inner.require_not_held(concat("become a part of ", type_name(), "'s"));
  children_.push_back({.name = std::move(name), .module = &child, .linked = true});
  child.set_parent(*this);
}

void Module::wrap_module(std::string name, Module& child) {
  require<UsageError>(parameters_.empty() && buffers_.empty() && children_.empty(), type_name(),
                      " has something of its own: it wraps no module such as '", name, "'");
  children_.push_back({.name = std::move(name), .module = &child, .wrapped = true});
}

void Module::wrap_child(const std::string& name, Module& wrapper) {
  const auto own = std::ranges::find(children_, name, &Child::name);
  require<UsageError>(own != children_.end(), label(), " has no module '", name, "' to be wrapped");
  require<UsageError>(
      wrapper.is_wrapper() && wrapper.parent_ == nullptr && wrapper.children_.front().module == own->module, "module '",
      name, "' of ", label(), " gives its place to a wrapper of it only, got ", wrapper.type_name());
  require<UsageError>(root().store_ == nullptr, "module '", name, "' of ", label(),
                      " is wrapped after the values of its model were made");
  own->module = &wrapper;
  wrapper.set_parent(*this);
}

void Module::set_parent(Module& parent) {
  parent_ = &parent;
  for (Child& child : children_) {
    if (!child.wrapped) continue;
    child.module->set_parent(*this);
    child.linked = true;
  }
}

void Module::forget(const Module& child) {
  for (Child& own : children_)
    if (own.module == &child) own.module = nullptr;
}

Module& Module::child(const Child& of) const {
  if (of.module == nullptr) [[unlikely]]
    throw UsageError(concat("module '", of.name, "' of ", label(), " was destroyed before it"));
  return *of.module;
}

void Module::require_not_held(const std::string& purpose) const {
  const std::string holders = store_ ? store_->holders() : "";
  require<UsageError>(holders.empty(), "the values of ", label(), " cannot ", purpose, ": held by ", holders);
}

void Module::refuse(const Context& context, const char* what, std::size_t own, int number) const {
  require<UsageError>(number >= 0 && static_cast<std::size_t>(number) < own, type_name(), " has ", own, " ", what,
                      ", asked for number ", number);
  const std::string text = concat(type_name(), "(", details(), ")");
  const std::string self = parent_ ? concat(path(), " (", text, ") of ", root().type_name()) : text;
  const char* const why = context.store == nullptr    ? " runs with a context that has no values"
                          : !context.is_of(model_id_) ? " is not registered in the model whose values it runs with: "
                                                        "register_module() makes a child a part of its parent's model"
                                                      : " lies outside the part of its model whose values it runs with";
  throw UsageError(self + why, {.in_layer = true});
}

void Module::rethrow_named(const Error& error) const {
  if (error.origin().in_layer) throw;
  rethrow_with_prefix(label() + ": ", true);
}

void Module::number(Numbering& next) {
  model_id_ = next.model_id;
  range_.first_slot = next.slots;
  range_.first_buffer = next.buffers;
  if (!is_wrapper()) layer_ = next.layers++;  // wrapping a part of a model must not change its random numbers
  next.slots += static_cast<int>(parameters_.size());
  next.buffers += static_cast<int>(buffers_.size());
  for (const Child& own : children_) child(own).number(next);
  range_.slots = next.slots - range_.first_slot;
  range_.buffers = next.buffers - range_.first_buffer;
}

void Module::collect(const std::string& prefix, std::vector<Slot>& slots, std::vector<NamedTensor>& buffers) const {
  for (const OwnParameter& own : parameters_) slots.push_back({prefix + own.name, own.shape});
  for (const NamedTensor& own : buffers_) buffers.push_back({prefix + own.name, own.tensor});
  for (const Child& own : children_) child(own).collect(prefix + own.name + ".", slots, buffers);
}

void Module::make_values() {
  static std::atomic<std::uint64_t> last_id{0};
  std::vector<Slot> slots;
  std::vector<NamedTensor> buffers;
  collect("", slots, buffers);
  Numbering numbering{.model_id = ++last_id};
  number(numbering);
  store_ = std::make_unique<FlatParameters>(std::move(slots), buffers, Device{});
  store_->set_model_id(model_id_);
  context_.store = store_.get();
}

void Module::draw_values(Mt19937& generator, bool adopt) {
  if (store_ == nullptr) make_values();
  fill_values(*store_, generator, adopt);
  store_->zero_grad();
}

void Module::fill_values(FlatParameters& store, Mt19937& generator, bool adopt) {
  if (parent_ != nullptr && store_ != nullptr) {  // values from before it was registered
    if (adopt) adopt_values(store);
    store_.reset();
    context_.store = nullptr;
    adopted_ = adopt;
    if (adopt) return;
  }
  adopted_ = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) draw(store, i, parameters_[i].fill, generator);
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    copy(buffers_[i].tensor, store.buffers()[static_cast<std::size_t>(range_.first_buffer) + i].tensor);
  for (const Child& own : children_) child(own).fill_values(store, generator, adopt);
  if (redraw_) draw_over(store, generator, redraw_);
}

void Module::draw(FlatParameters& store, std::size_t parameter, const Fill& fill, Mt19937& generator) const {
  const Tensor drawn = empty(parameters_[parameter].shape);
  fill(drawn.span<float>(), generator);
  copy(drawn, store.value(range_.first_slot + static_cast<int>(parameter)));
}

void Module::draw_over(FlatParameters& store, Mt19937& generator, const Redraw& redraw) const {
  if (adopted_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (const Fill fill = redraw(*this, parameters_[i].name, parameters_[i].shape)) draw(store, i, fill, generator);
  for (const Child& own : children_) child(own).draw_over(store, generator, redraw);
}

void Module::adopt_values(FlatParameters& store) const {
  for (int slot = 0; slot < range_.slots; ++slot) copy(store_->value(slot), store.value(range_.first_slot + slot));
  copy(store_->buffer_run(0, range_.buffers), store.buffer_run(range_.first_buffer, range_.buffers));
}

void Module::initialise(Mt19937& generator) {
  require<UsageError>(parent_ == nullptr, "initialise the whole model, not ", type_name(), ", a part of it");
  if (is_wrapper()) return child(children_.front()).initialise(generator);
  draw_values(generator, false);
  context_.draws = {};
}

void Module::initialise(std::uint64_t seed) {
  Mt19937 generator(seed);
  initialise(generator);
  context().seed = seed;
}

void Module::to(Device device) {
  require<UsageError>(parent_ == nullptr, "move the whole model, not ", type_name(), ", a part of it");
  if (is_wrapper()) return child(children_.front()).to(device);
  FlatParameters& store = parameters();
  if (store.device() == device) return;
  require_not_held(concat("move from ", store.device(), " to ", device));
  store.move_to(device);
}

std::string Module::type_name() const {
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, nullptr), &std::free);
  const std::string_view name = text.get();
  std::size_t begin = 0, end = name.size();  // without the namespaces before it and a template's arguments
  for (std::size_t i = 0, depth = 0; i < name.size(); ++i) {
    if (name[i] == '<' && depth++ == 0) end = i;
    if (name[i] == '>') --depth;
    if (name[i] != ':' || depth > 0) continue;
    begin = i + 1;
    end = name.size();
  }
  return std::string(name.substr(begin, end - begin));
}

std::string Module::path() const {
  if (parent_ == nullptr) return {};
  const std::string above = parent_->path();
  for (const Child& own : parent_->children_)
    if (own.module == this) return above.empty() ? own.name : above + "." + own.name;
  return above;
}

std::string Module::label() const {
  const std::string place = path();
  return place.empty() ? type_name() : concat(place, " (", type_name(), ")");
}

std::vector<NamedTensor> Module::state_dict() {
  std::vector<NamedTensor> state;
  append_state("", context(), state);
  return state;
}

void Module::append_state(const std::string& prefix, const Context& own, std::vector<NamedTensor>& state) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    state.push_back(
        {prefix + parameters_[i].name, own.store->value(range_.first_slot + static_cast<int>(i) - own.first_slot)});
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    state.push_back({prefix + buffers_[i].name, own.buffer(range_.first_buffer + static_cast<int>(i))});
  for (const Child& part : children_) child(part).append_state(prefix + part.name + ".", own, state);
}

void Module::load_state_dict(const std::vector<NamedTensor>& state) { copy_by_name(state, state_dict(), "the state"); }

bool Module::sums_by_blocks() const {
  return all_modules([](const Module& one) { return one.own_sums_by_blocks(); });
}

bool Module::all_modules(FunctionRef<bool(const Module&)> holds) const {
  return holds(*this) && std::all_of(children_.begin(), children_.end(),
                                     [&](const Child& part) { return child(part).all_modules(holds); });
}

std::string Module::str() const {
  std::string text;
  append_text(text, 0);
  return text;
}

void Module::append_text(std::string& text, int indent) const {
  text += type_name() + "(" + details();
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::vector<std::string> parts(children_.size());
  for (std::size_t i = 0; i < parts.size(); ++i) child(children_[i]).append_text(parts[i], indent + 2);
  for (std::size_t first = 0, last; first < parts.size(); first = last + 1) {
    last = first;
    while (merges_equal_children() && last + 1 < parts.size() && parts[last + 1] == parts[first]) ++last;
    text += "\n" + margin + "  (" + children_[first].name;
    if (last > first) text += "-" + children_[last].name;
    text += "): " + (last > first ? std::to_string(last - first + 1) + " x " : "") + parts[first];
  }
  text += children_.empty() ? ")" : "\n" + margin + ")";
}

}  // namespace duet::nn

namespace duet {

elastic::State elastic::state(std::string name, nn::Module& module) {
  require<UsageError>(module.parameters().device().kind == DeviceKind::cpu, "the state '", name,
                      "' is no module on CPU");  // it also numbers slots and buffers
  const nn::Module::Range range = module.range();
  std::vector<State> parts;
  if (range.slots > 0)
    parts.push_back(
        keep_state(name + ", parameters",
                   {.element = sizeof(float), .bytes = [&module, range] {
                      return std::as_writable_bytes(
                          module.parameters().written_values_of(range.first_slot, range.slots).span<float>());
                    }}));
  if (range.buffers > 0)
    parts.push_back(
        keep_state(name + ", buffers", {.bytes = [&module, range] {
                     return std::as_writable_bytes(
                         module.parameters().buffer_run(range.first_buffer, range.buffers).span<std::uint8_t>());
                   }}));
  return std::make_shared<const std::vector<State>>(std::move(parts));
}

}  // namespace duet
