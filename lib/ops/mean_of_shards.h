#pragma once

#include <span>

#include "lib/autograd/variable.h"

namespace duet::ops {

/// The mean over all rows from the means of stamped shards (lib/ops/losses.h): sum of rows_i / rows * losses_i, a
/// scalar on `device`; shards without rows count nothing. As the gradient of a shard's loss is already its share, each
/// loss gets the whole gradient.
Variable mean_of_shards(std::span<const Variable> losses, std::span<const std::int64_t> rows, Device device);

}  // namespace duet::ops
