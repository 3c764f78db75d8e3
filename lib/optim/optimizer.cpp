#include "lib/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
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

}  // namespace

Optimizer::Optimizer(nn::Module& model, std::string kind, float lr, std::vector<std::string> buffers, bool counts_steps)
    : store_(model.parameters()),
      held_(store_.hold(kind)),
      kind_(std::move(kind)),
      initial_lr_(lr),
      buffer_names_(std::move(buffers)),
      counts_steps_(counts_steps),
      steps_(store_.slots().size(), 0) {
  set_lr(lr);
  for (std::size_t i = 0; i < buffer_names_.size(); ++i) state_.buffers.push_back(store_.flat_zeros());
}

void Optimizer::set_lr(float lr) {
  require<UsageError>(lr >= 0 && std::isfinite(lr), kind_, ": lr is ", lr, ", expected a number of 0 or more");
  lr_ = lr;
}

/// Whether all parameters have a gradient and were updated equally often.
bool Optimizer::in_step() const {
  return store_.has_all_gradients() && std::ranges::all_of(steps_, [&](std::int64_t s) { return s == steps_.front(); });
}

void Optimizer::divide(const nn::UpdateRun& run, std::int64_t step) const {
  store_.divide([&](int share, int shares) { update(run, step, share, shares); });
}

void Optimizer::update_run(const nn::UpdateRun& run) const {
  if (in_step()) return divide(run, steps_.front() + 1);
  for (int number = 0; number < store_.slot_count(); ++number) {
    if (!store_.has_gradient(number)) continue;
    const nn::Slot& slot = store_.slots()[static_cast<std::size_t>(number)];
    const std::int64_t first = std::max<std::int64_t>(0, slot.offset - run.begin);
    const std::int64_t end = std::min(run.values.count(), slot.offset + slot.shape.count() - run.begin);
    if (end <= first) continue;
    const auto part = [&](const Tensor& flat) { return flat.slice(first, {end - first}); };
    nn::UpdateRun own{.begin = run.begin + first, .values = part(run.values), .gradients = part(run.gradients)};
    for (const Tensor& buffer : run.state) own.state.push_back(part(buffer));
    divide(own, steps_[static_cast<std::size_t>(number)] + 1);
  }
}

/// Of all on which the ranks' parts of an update depend.
std::uint32_t Optimizer::settings_hash() const {
  std::uint64_t hash = 0;
  const auto add = [&](std::uint64_t bits) {  // splitmix64
    hash += bits + 0x9e3779b97f4a7c15U;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9U;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebU;
    hash ^= hash >> 31;
  };
  for (const char letter : kind_) add(static_cast<unsigned char>(letter));
  for (const double setting : settings()) add(std::bit_cast<std::uint64_t>(setting));
  for (const std::int64_t steps : steps_) add(static_cast<std::uint64_t>(steps));
  return static_cast<std::uint32_t>(hash);
}

void Optimizer::step() {
  bool any = false;
  for (int slot = 0; slot < store_.slot_count(); ++slot) any = any || store_.has_gradient(slot);
  if (!any) return;
  const std::shared_ptr<nn::UpdateSite> site = store_.update_site();
  if (state_.at_site != nullptr && (site == nullptr || site_.lock() != site)) {  // buffers may lie in the site's memory
    for (Tensor& buffer : state_.buffers) copy(std::exchange(buffer, store_.flat_zeros()), buffer);
    state_.at_site.reset();
  }
  site_ = site;
  if (site != nullptr) {
    site->update(
        state_, [this] { return settings_hash(); }, [this](const nn::UpdateRun& run) { update_run(run); });
  } else {
    nn::UpdateRun run{.values = std::as_const(store_).values(), .gradients = std::as_const(store_).gradients()};
    run.state.assign(state_.buffers.begin(), state_.buffers.end());
    update_run(run);
  }
  for (int slot = 0; slot < store_.slot_count(); ++slot)
    if (store_.has_gradient(slot)) ++steps_[static_cast<std::size_t>(slot)];
}

/// Those of the buffers, then "step" where steps are counted.
std::vector<std::string> Optimizer::state_names(const nn::Slot& slot) const {
  std::vector<std::string> names;
  for (const std::string& buffer : buffer_names_) names.push_back(concat(slot.name, ".", buffer));
  if (counts_steps_) names.push_back(concat(slot.name, ".step"));
  return names;
}

std::vector<nn::NamedTensor> Optimizer::state() const {
  store_.require_whole_values();
  std::vector<nn::NamedTensor> state;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    if (steps_[i] == 0) continue;
    const std::vector<std::string> names = state_names(slot);
    for (std::size_t b = 0; b < state_.buffers.size(); ++b)
      state.push_back({names[b], state_.buffers[b].slice(slot.offset, slot.shape).clone()});
    if (counts_steps_) state.push_back({names.back(), from_values<float>({1}, {static_cast<float>(steps_[i])})});
  }
  return state;
}

void Optimizer::load_state(const std::vector<nn::NamedTensor>& state) {
  std::set<std::string> inner;
  for (const nn::NamedTensor& one : state) inner.insert(without_wrappers(one.name));
  // As copy_by_name(): names that differ by wrappers only must be equal.
  const auto key = [&](const std::string& name) {
    return inner.size() == state.size() ? without_wrappers(name) : name;
  };
  std::map<std::string, const nn::NamedTensor*> given;
  for (const nn::NamedTensor& one : state)
    require<DataError>(given.emplace(key(one.name), &one).second, kind_, ": the state has '", one.name, "' twice");
  std::vector<Tensor> buffers;
  for (std::size_t b = 0; b < buffer_names_.size(); ++b) buffers.push_back(store_.flat_zeros());
  std::vector<std::int64_t> steps(steps_.size(), 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    std::vector<std::string> names = state_names(slot);
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
      require<DataError>(one.tensor.shape() == slot.shape && one.tensor.dtype() == DType::f32, kind_, ": buffer '",
                         one.name, "' is ", one.tensor.dtype(), one.tensor.shape(), ", expected f32", slot.shape);
      copy(one.tensor, buffers[n].slice(slot.offset, slot.shape));
      steps[i] = 1;
    }
  }
  require<DataError>(given.empty(), kind_, ": the state has '", given.empty() ? "" : given.begin()->first,
                     "', which this optimizer lacks");
  state_.buffers = std::move(buffers);
  state_.at_site.reset();
  steps_ = std::move(steps);
}

}  // namespace duet::optim
