#pragma once

#include <cstdint>
#include <span>

#include "lib/autograd/variable.h"
#include "lib/rows.h"

namespace duet::ops {

/// The mean over all rows of a batch from the means of its shards: sum of rows_i / rows * losses_i, a scalar on
/// `device`; shards without rows count nothing. Losses that divide by the rows of the stamped batch (lib/ops/losses.h)
/// each get the whole gradient, as theirs is already the shard's share; others, of the user's own, get rows_i / rows of
/// it. `batch`: the stamp of the whole. Throws UsageError for a loss that is a sum of both kinds.
Variable mean_of_shards(std::span<const Variable> losses, std::span<const std::int64_t> rows, const Rows& batch,
                        Device device);

}  // namespace duet::ops
