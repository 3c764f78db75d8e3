#include "lib/nn/init.h"

#include <algorithm>
#include <cmath>

#include "lib/error.h"

namespace duet::nn::init {

Fill constant(float value) {
  return [value](std::span<float> values, Mt19937&) { std::ranges::fill(values, value); };
}

Fill uniform(double low, double high) {
  return [low, high](std::span<float> values, Mt19937& generator) { generator.uniform(values, low, high); };
}

Fill normal(double mean, double deviation) {
  return [mean, deviation](std::span<float> values, Mt19937& generator) { generator.normal(values, mean, deviation); };
}

Fill kaiming_normal_fan_out(const Shape& weight) {
  require<ShapeError>(weight.rank() >= 2, "kaiming_normal_fan_out: got a weight of shape ", weight,
                      ", expected two dimensions or more");
  const std::int64_t fan_out = weight[0] * weight.count_from(2);
  return normal(0, std::sqrt(2.0) / std::sqrt(static_cast<double>(fan_out)));
}

}  // namespace duet::nn::init
