#include "dp/persistent_replicas.h"

#include <memory>
#include <utility>

namespace duet::dp {
namespace {

using Buffers = std::vector<std::vector<Tensor>>;  // by replica: copies of the optimizer's

nn::UpdateRun run_of(const nn::ParameterStore& store, const std::vector<Tensor>& buffers) {
  nn::UpdateRun run{.values = store.values(), .gradients = store.gradients()};
  run.state.assign(buffers.begin(), buffers.end());
  return run;
}

}  // namespace

PersistentReplicas::PersistentReplicas(const nn::ParameterStore& model, std::vector<nn::ParameterStore*> stores)
    : model_(model), stores_(std::move(stores)) {}

void PersistentReplicas::set_values_copied() {
  has_values_ = true;
  has_gradients_ = false;
}

void PersistentReplicas::update(nn::OptimizerState& state, Settings, Rule rule) {
  if (!has_values_) {
    state.at_site.reset();  // copies of the buffers miss this update
    return rule(run_of(model_, state.buffers));
  }
  auto copies = std::static_pointer_cast<Buffers>(state.at_site);
  if (copies == nullptr) {
    copies = std::make_shared<Buffers>();
    for (const nn::ParameterStore* store : stores_) {
      std::vector<Tensor>& own = copies->emplace_back();
      for (const Tensor& buffer : state.buffers) own.push_back(buffer.to(store->device()));
    }
    state.at_site = copies;
  }
  if (!has_gradients_)
    for (nn::ParameterStore* store : stores_) copy(model_.gradients(), store->gradients());
  has_gradients_ = true;
  has_values_ = false;  // until all of them are updated
  rule(run_of(model_, state.buffers));
  for (std::size_t i = 0; i < stores_.size(); ++i) rule(run_of(*stores_[i], (*copies)[i]));
  has_values_ = true;
}

}  // namespace duet::dp
