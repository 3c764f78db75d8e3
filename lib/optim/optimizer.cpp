#include "lib/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/sgd.h"

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
  std::map<std::string, const nn::NamedTensor*> given;
  for (const nn::NamedTensor& one : state)
    require<DataError>(given.emplace(one.name, &one).second, kind_, ": the state has '", one.name, "' twice");
  std::vector<Tensor> buffers;
  for (std::size_t b = 0; b < buffer_names_.size(); ++b) buffers.push_back(store_.flat_zeros());
  std::vector<std::int64_t> steps(steps_.size(), 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    const std::vector<std::string> names = state_names(slot);
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

SGD::SGD(nn::Module& model, const SGDOptions& options)
    : Optimizer(model, "SGD", options.lr,
                options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}, false),
      options_(options) {
  require<UsageError>(options.momentum >= 0 && options.weight_decay >= 0, "SGD: momentum ", options.momentum,
                      " and weight decay ", options.weight_decay, ", expected 0 or more");
  require<UsageError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                      "SGD: Nesterov momentum requires a momentum and zero dampening");
}

void SGD::update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const {
  const SGDRule rule{.lr = lr(),
                     .momentum = options_.momentum,
                     .dampening = options_.dampening,
                     .weight_decay = options_.weight_decay,
                     .nesterov = options_.nesterov,
                     .first = step == 1};
  backend(run.values)
      .sgd_step(run.values, run.gradients, run.state.empty() ? Tensor() : run.state[0], rule, share, shares);
}

std::vector<double> SGD::settings() const {
  return {options_.nesterov ? 1.0 : 0.0, lr(), options_.momentum, options_.dampening, options_.weight_decay};
}

Adam::Adam(nn::Module& model, const AdamOptions& options, const std::string& kind, bool decoupled)
    : Optimizer(model, kind, options.lr, {"exp_avg", "exp_avg_sq"}, true), options_(options), decoupled_(decoupled) {
  for (const double beta : {options.beta1, options.beta2})
    require<UsageError>(beta >= 0 && beta < 1, kind, ": beta is ", beta, ", expected 0 to below 1");
  require<UsageError>(options.eps >= 0, kind, ": eps is ", options.eps, ", expected 0 or more");
  require<UsageError>(options.weight_decay >= 0, kind, ": weight decay is ", options.weight_decay,
                      ", expected 0 or more");
}

void Adam::update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const {
  const AdamRule rule{.lr = lr(),
                      .beta1 = options_.beta1,
                      .beta2 = options_.beta2,
                      .eps = options_.eps,
                      .weight_decay = options_.weight_decay,
                      .decoupled = decoupled_,
                      .step = step};
  backend(run.values).adam_step(run.values, run.gradients, run.state[0], run.state[1], rule, share, shares);
}

std::vector<double> Adam::settings() const {
  return {lr(), options_.beta1, options_.beta2, options_.eps, options_.weight_decay, decoupled_ ? 1.0 : 0.0};
}

double clip_grad_norm(nn::Module& model, double max_norm, bool error_if_nonfinite) {
  require<UsageError>(max_norm > 0, "clip_grad_norm: max_norm is ", max_norm, ", expected above 0");
  nn::ParameterStore& store = model.parameters();
  const nn::ParameterStore& read = store;
  Backend& kernels = backend(read.gradients());
  double squares = 0;
  for (int slot = 0; slot < store.slot_count(); ++slot) {
    if (store.has_gradient(slot)) squares += kernels.sum_of_squares(read.gradient(slot));
  }
  const double norm = std::sqrt(squares);
  require<NumericError>(std::isfinite(norm) || !error_if_nonfinite, "clip_grad_norm: the gradients' norm is ", norm);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (int slot = 0; slot < store.slot_count(); ++slot) {
    if (store.has_gradient(slot)) kernels.scale(store.gradient(slot), static_cast<float>(factor));
  }
  return norm;
}

}  // namespace duet::optim
