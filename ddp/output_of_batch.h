// Outputs of a rank's forward, from which backward finds the batch.
#pragma once

#include <memory>

#include "ddp/rank_weights.h"
#include "lib/autograd/variable.h"
#include "lib/nn/value.h"

namespace duet::ddp {

/// `output` with a node of the tape through which gradients pass unchanged. Every backward that will reach it calls
/// weights->reached(batch) before any node runs.
Variable output_of_batch(const Variable& output, const std::shared_ptr<RankWeights>& weights,
                         const RankWeights::Batch& batch);
nn::Value output_of_batch(const nn::Value& output, const std::shared_ptr<RankWeights>& weights,
                          const RankWeights::Batch& batch);

}  // namespace duet::ddp
