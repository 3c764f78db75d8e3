#include "lib/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "lib/error.h"

namespace duet::optim {

Optimizer::Optimizer(nn::Module& model, std::string kind, float lr, std::vector<std::string> buffers, bool counts_steps)
    : store_(model.parameters()),
      held_(store_.hold(kind)),
      kind_(std::move(kind)),
      lr_(0),
      buffer_names_(std::move(buffers)),
      counts_steps_(counts_steps),
      steps_(store_.slots().size(), 0) {
  set_lr(lr);
  for (std::size_t i = 0; i < buffer_names_.size(); ++i) state_.buffers.push_back(store_.flat_zeros());
}

Optimizer::~Optimizer() = default;

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
    std::uint64_t bits = 0;
    for (const char letter : kind_) bits = bits * 1'000'003 + static_cast<unsigned char>(letter);
    for (const double setting : settings()) bits = bits * 1'000'003 + std::bit_cast<std::uint64_t>(setting);
    site->update(state_, static_cast<std::uint32_t>(bits ^ bits >> 32),
                 [&](const nn::UpdateRun& run) { update_run(run); });
  } else {
    nn::UpdateRun run{.values = std::as_const(store_).values(), .gradients = std::as_const(store_).gradients()};
    run.state.assign(state_.buffers.begin(), state_.buffers.end());
    update_run(run);
  }
  for (int slot = 0; slot < store_.slot_count(); ++slot)
    if (store_.has_gradient(slot)) ++steps_[static_cast<std::size_t>(slot)];
}

std::string Optimizer::name_of(const nn::Slot& slot, const std::string& buffer) const {
  return concat(slot.name, ".", buffer);
}

std::vector<nn::NamedTensor> Optimizer::state() const {
  store_.require_whole_values();
  std::vector<nn::NamedTensor> state;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    if (steps_[i] == 0) continue;
    for (std::size_t b = 0; b < state_.buffers.size(); ++b)
      state.push_back({name_of(slot, buffer_names_[b]), state_.buffers[b].slice(slot.offset, slot.shape)});
    if (counts_steps_)
      state.push_back({name_of(slot, "step"), from_values<float>({1}, {static_cast<float>(steps_[i])})});
  }
  return state;
}

void Optimizer::load(const nn::NamedTensor& given) {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const nn::Slot& slot = store_.slots()[i];
    const auto check = [&](const Shape& expected) {
      require<DataError>(given.tensor.shape() == expected && given.tensor.dtype() == DType::f32, kind_, ": buffer '",
                         given.name, "' is ", given.tensor.dtype(), given.tensor.shape(), ", expected f32", expected);
    };
    for (std::size_t b = 0; b < buffer_names_.size(); ++b) {
      if (given.name != name_of(slot, buffer_names_[b])) continue;
      check(slot.shape);
      copy(given.tensor, state_.buffers[b].slice(slot.offset, slot.shape));
      steps_[i] = std::max<std::int64_t>(steps_[i], 1);
      return;
    }
    if (!counts_steps_ || given.name != name_of(slot, "step")) continue;
    check({1});
    const float steps = *given.tensor.to(Device{}).data<float>();
    require<DataError>(steps >= 1 && steps == std::floor(steps), kind_, ": '", given.name, "' is ", steps,
                       ", expected a whole number of 1 or more");
    steps_[i] = static_cast<std::int64_t>(steps);
    return;
  }
  throw DataError(concat(kind_, ": the state has '", given.name, "', which this optimizer lacks"));
}

void Optimizer::load_state(const std::vector<nn::NamedTensor>& state) {
  std::fill(steps_.begin(), steps_.end(), 0);
  state_.at_site.reset();
  for (Tensor& buffer : state_.buffers) buffer = store_.flat_zeros();
  for (const nn::NamedTensor& given : state) load(given);
}

}  // namespace duet::optim
