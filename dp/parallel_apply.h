// The third of data parallelism's four steps: the replicas run in parallel.
#pragma once

#include <memory>
#include <span>

#include "dp/replicate.h"
#include "lib/base/wrapper_times.h"
#include "lib/nn/value.h"

namespace duet::dp {

/// Runs replica i on inputs[i], each on its device's thread; grad mode is that of the caller. `model` is the context of
/// the values that were replicated: the sum of the replicas' gradients goes to its slots. When replicas throw, the
/// lowest one's exception is rethrown after all have stopped, with its own type and "replica 1 on device cpu:1" in
/// front. `times`, which may be null, gets the times of backward.
PooledVector<nn::Value> parallel_apply(const std::shared_ptr<Replicas>& replicas, nn::Context& model,
                                       std::span<const nn::Value> inputs,
                                       const std::shared_ptr<WrapperTimes>& times = nullptr);

}  // namespace duet::dp
