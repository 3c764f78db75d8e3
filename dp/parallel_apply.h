// The third of data parallelism's four steps: the replicas run on their pieces of the batch in parallel.
#pragma once

#include <memory>
#include <span>

#include "dp/replicate.h"
#include "lib/autograd/node.h"
#include "lib/base/trace.h"
#include "lib/nn/value.h"
#include "lib/pool.h"

namespace duet::dp {

/// Runs replica i on inputs[i], each on its device's thread; grad mode is that of the caller. `model` is the context of
/// the values that were replicated: the sum of the replicas' gradients goes to its slots. When replicas throw, the
/// lowest one's exception is rethrown after all have stopped, with its own type and "replica 1 on device cpu:1" in
/// front. `of_all_parts`: what a loss of all inputs' rows would be divided by. `times` gets the times of backward.
PooledVector<nn::Value> parallel_apply(const std::shared_ptr<Replicas>& replicas, nn::Context& model,
                                       std::span<const nn::Value> inputs, Normaliser of_all_parts);

}  // namespace duet::dp
