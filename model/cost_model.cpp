#include "model/cost_model.h"

#include <algorithm>
#include <iterator>

namespace duet::cli {

double StepCost::us(double batch) const {
  const auto above =
      std::find_if(measured.begin(), measured.end(), [batch](const TimePoint& point) { return point.at >= batch; });
  if (above != measured.end() && above->at == batch) return above->us;
  if (above != measured.end() && above != measured.begin()) {
    const TimePoint& below = *std::prev(above);
    return below.us + (above->us - below.us) * (batch - below.at) / (above->at - below.at);
  }
  if (above == measured.end() && !measured.empty())
    return measured.back().us + per_sample_us * (batch - measured.back().at);
  return fixed_us + per_sample_us * batch;
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
