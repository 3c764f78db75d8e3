// Initial values of parameters, with the numbers that torch.nn.init draws from the same state of its generator.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "lib/random.h"
#include "lib/tensor.h"

namespace duet::nn::init {

/// Draws the values of one parameter, in memory order. Empty: draws nothing.
using Fill = std::function<void(std::span<float>, Mt19937&)>;

/// torch.nn.init.constant_; takes nothing from the generator.
Fill constant(float value);
/// torch.nn.init.uniform_.
Fill uniform(double low, double high);
/// torch.nn.init.normal_; the bits are PyTorch's where Mt19937::normal() says so.
Fill normal(double mean, double deviation);

/// torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu") of a weight (out, in, ...): normal with deviation
/// sqrt(2 / (out * the rest after `in`)), by He et al., "Delving Deep into Rectifiers" (2015), equation 14. Throws
/// ShapeError for fewer than two dimensions.
Fill kaiming_normal_fan_out(const Shape& weight);

}  // namespace duet::nn::init
