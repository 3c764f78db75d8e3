#include "lib/optim/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::optim {
namespace {

std::int64_t read_steps(const std::string& kind, const nn::NamedTensor& given) {
  constexpr float kMost = 1 << 24;  // from which on f32 skips numbers
  require<DataError>(given.tensor.count() == 1 && given.tensor.dtype() == DType::f32, kind, ": '", given.name, "' is ",
                     given.tensor.dtype(), given.tensor.shape(), ", expected one f32");
  const float steps = *given.tensor.to(Device{}).data<float>();
  require<DataError>(steps >= 1 && steps <= kMost && steps == std::floor(steps), kind, ": '", given.name, "' is ",
                     steps, ", expected a whole number from 1 to ", static_cast<std::int64_t>(kMost));
  return static_cast<std::int64_t>(steps);
}

/// Whether this is the name of a parameter's state: "conv1.weight.exp_avg" of "conv1.weight".
bool of_parameter(const std::string& name, const std::string& parameter) {
  return name.size() > parameter.size() + 1 && name.starts_with(parameter) && name[parameter.size()] == '.' &&
         name.find('.', parameter.size() + 1) == std::string::npos;
}

/// Once in a process: a loop without backward() would train nothing, without a word.
void remark_no_gradients(const std::string& kind) {
  static std::atomic_flag said;
  if (said.test_and_set()) return;
  std::cerr << concat("warning: ", kind, "::step() changes nothing: there was no backward() since zero_grad()\n");
}

}  // namespace

Optimizer::Optimizer(nn::Module& model, std::string kind, float lr, std::vector<std::string> buffers, bool counts_steps)
    : store_(model.parameters()),
      held_(store_.residence().hold(kind)),
      kind_(std::move(kind)),
      initial_lr_(lr),
      buffer_names_(std::move(buffers)),
      counts_steps_(counts_steps),
      state_{.first_slot = model.range().first_slot, .slots = model.range().slots},
      steps_(static_cast<std::size_t>(state_.slots), 0) {
  require<UsageError>(state_.slots > 0, kind_, ": ", model.label(), " has no parameters");
  set_lr(lr);
  state_ = empty_state();
  join(kind_);
}

nn::OptimizerState Optimizer::empty_state() const {
  nn::OptimizerState state{.first_slot = state_.first_slot, .slots = state_.slots};
  while (state.buffers.size() < buffer_names_.size())
    state.buffers.push_back(store_.flat_zeros(state.first_slot, state.slots));
  return state;
}

void Optimizer::set_lr(float lr) {
  require<UsageError>(lr >= 0 && std::isfinite(lr), kind_, ": lr is ", lr, ", expected a number of 0 or more");
  if (!Recovery::instance().is_void()) lr_ = lr;
}

/// Whether all parameters have a gradient and were updated equally often.
bool Optimizer::in_step() const {
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (!has_gradient(i) || steps_[i] != steps_.front()) return false;
  return true;
}

void Optimizer::divide(const nn::UpdateRun& run, std::int64_t step) const {
  store_.residence().divide([&](int share, int shares) { update(run, step, share, shares); });
}

void Optimizer::update_run(const nn::UpdateRun& run) const {
  if (in_step()) return divide(run, steps_.front() + 1);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (!has_gradient(i)) continue;
    const nn::Slot& of = slot(i);
    const auto own_part = [&](const Tensor& flat) { return part(flat, of).reshape({of.shape.count()}); };
    nn::UpdateRun own{.values = own_part(run.values), .gradients = own_part(run.gradients)};
    for (const Tensor& buffer : run.state) own.state.push_back(own_part(buffer));
    divide(own, steps_[i] + 1);
  }
}

void Optimizer::step() {
  if (Recovery::instance().is_void()) return;
  bool any = false;
  for (std::size_t i = 0; i < steps_.size() && !any; ++i) any = has_gradient(i);
  if (!any) return remark_no_gradients(kind_);
  require<UsageError>(!is_loaded_ || !new_schedules_.lasts(), kind_,
                      " continues from a loaded state, but a learning rate schedule begins at step 0: call the "
                      "schedule's set_steps() with its steps so far, or set_steps(0) to restart it");
  forget_load();
  nn::UpdateSettings settings{.optimizer = nn::UpdateSettings::custom};
  settings.values[nn::UpdateSettings::lr] = lr_;
  add_settings(settings);
  store_.hooks().update_begins(state_.first_slot, state_.slots, settings);
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (has_gradient(i)) store_.variable(number_of(i)).value().bump_version();
  const std::shared_ptr<nn::UpdateSite> site = store_.residence().update_site();
  if (site == nullptr || site_.lock() != site) state_.at_site.reset();
  site_ = site;
  if (site != nullptr) {
    site->update(state_, [this](const nn::UpdateRun& run) { update_run(run); });
  } else {
    update_run(store_.update_run(state_, state_.buffers));
  }
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (has_gradient(i)) ++steps_[i];
  if (Recovery::instance().on()) Recovery::instance().complete_step();
}

void Optimizer::stream(StateStream& state) {
  for (const Tensor& buffer : state_.buffers) state.tensor(buffer);
  if (state.reads()) state_.at_site.reset();  // copies of before
  state.bytes(std::as_writable_bytes(std::span(steps_)));
  state.value(lr_);
  lr_at_begin_ = lr_;
  if (state.reads()) forget_load();
}

/// A parameter's part of a buffer.
Tensor Optimizer::part(const Tensor& buffer, const nn::Slot& slot) const {
  return buffer.slice(slot.offset - this->slot(steps_.size() - 1).offset, slot.shape);
}

/// The names of a parameter's state: one for each buffer, then "step" where steps are counted.
std::vector<std::string> Optimizer::state_names(const nn::Slot& slot) const {
  std::vector<std::string> names;
  for (const std::string& buffer : buffer_names_) names.push_back(concat(slot.name, ".", buffer));
  if (counts_steps_) names.push_back(concat(slot.name, ".step"));
  return names;
}

std::vector<nn::NamedTensor> Optimizer::state() const {
  std::vector<nn::NamedTensor> state;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i] == 0) continue;
    const std::vector<std::string> names = state_names(slot(i));
    for (std::size_t b = 0; b < state_.buffers.size(); ++b)
      state.push_back({names[b], part(state_.buffers[b], slot(i)).clone()});
    if (counts_steps_) state.push_back({names.back(), from_values<float>({1}, {static_cast<float>(steps_[i])})});
  }
  return state;
}

void Optimizer::load_state(const std::vector<nn::NamedTensor>& state) {
  std::set<std::string> inner;
  for (const nn::NamedTensor& one : state) inner.insert(without_wrappers(one.name));
  // Where two names differ by wrappers only, names must be equal: copy_by_name() has the same rule.
  const auto key = [&](const std::string& name) {
    return inner.size() == state.size() ? without_wrappers(name) : name;
  };
  std::map<std::string, const nn::NamedTensor*> given;
  for (const nn::NamedTensor& one : state)
    require<DataError>(given.emplace(key(one.name), &one).second, kind_, ": the state has '", one.name, "' twice");
  nn::OptimizerState loaded = empty_state();
  std::vector<Tensor>& buffers = loaded.buffers;
  std::vector<std::int64_t> steps(steps_.size(), 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::vector<std::string> names = state_names(slot(i));
    for (std::string& name : names) name = key(name);
    const auto has = [&](const std::string& name) { return given.contains(name); };
    if (std::ranges::none_of(names, has)) continue;
    for (std::size_t n = 0; n < names.size(); ++n) {
      require<DataError>(has(names[n]), kind_, ": the state lacks '", names[n], "', but has others of this parameter");
      const nn::NamedTensor& one = *given.extract(names[n]).mapped();
      if (n == buffers.size()) {
        steps[i] = read_steps(kind_, one);
        continue;
      }
      require<DataError>(one.tensor.shape() == slot(i).shape && one.tensor.dtype() == DType::f32, kind_, ": buffer '",
                         one.name, "' is ", one.tensor.dtype(), one.tensor.shape(), ", expected f32", slot(i).shape);
      copy(one.tensor, part(buffers[n], slot(i)));
      steps[i] = 1;
    }
  }
  for (int other = 0; other < store_.slot_count(); ++other) {
    if (other >= state_.first_slot && other < state_.first_slot + state_.slots) continue;
    const std::string name = key(store_.slots()[static_cast<std::size_t>(other)].name);
    std::erase_if(given, [&](const auto& one) { return of_parameter(one.first, name); });
  }
  require<DataError>(given.empty(), kind_, ": the state has '", given.empty() ? "" : given.begin()->first,
                     "', which this optimizer lacks");
  state_ = std::move(loaded);
  steps_ = std::move(steps);
  is_loaded_ = std::ranges::any_of(steps_, [](std::int64_t one) { return one > 0; });
}

}  // namespace duet::optim
