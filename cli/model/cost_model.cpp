#include "cli/model/cost_model.h"

#include <algorithm>

namespace duet::cli {

double StepCost::us(double batch) const {
  if (!knee || batch <= knee->batch) return fixed_us + per_sample_us * batch;
  return fixed_us + per_sample_us * knee->batch + knee->per_sample_us * (batch - knee->batch);
}

double CostModel::compute_us(double batch) const {
  return std::max(0.0, step.us(batch) - input_per_sample_us * batch - update_us);
}

double CostModel::slowdown_of(int devices) const {
  Slowdown below{.devices = 1, .factor = 1};
  for (const Slowdown& measured : slowdown) {
    if (measured.devices >= devices) {
      const double share = static_cast<double>(devices - below.devices) / (measured.devices - below.devices);
      return below.factor + share * (measured.factor - below.factor);
    }
    below = measured;
  }
  return below.factor;
}

}  // namespace duet::cli
