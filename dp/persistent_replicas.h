// Copies of a model's values that stay on their devices between steps.
#pragma once

#include <vector>

#include "lib/nn/parameters.h"
#include "lib/nn/update_site.h"

namespace duet::dp {

/// The update site of devices that do not share memory: an optimizer updates every copy as it updates the values, which
/// saves a copy to every device in the next forward. Used by the thread of the model's store.
class PersistentReplicas final : public nn::UpdateSite {
 public:
  /// `stores` are laid out as `model`, on other devices. All must outlive this.
  PersistentReplicas(const nn::ParameterStore& model, std::vector<nn::ParameterStore*> stores);

  void update(nn::OptimizerState& state, Settings settings, Rule rule) override;
  void values_written() override { has_values_ = false; }
  void gradients_written() override { has_gradients_ = false; }

  /// Whether the copies are the values as they are now.
  bool has_values() const { return has_values_; }
  void set_values_copied();
  /// Whether they have the sum of the gradients.
  void set_gradients_copied(bool copied) { has_gradients_ = copied; }

 private:
  const nn::ParameterStore& model_;
  std::vector<nn::ParameterStore*> stores_;
  bool has_values_ = false, has_gradients_ = false;
};

}  // namespace duet::dp
