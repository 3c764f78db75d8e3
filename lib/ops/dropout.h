#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet {
class Mt19937;
}

namespace duet::ops {

/// Throws UsageError unless 0 <= p < 1; `op` is the operator's name, for the message.
void require_probability(const char* op, double p);

/// x with each element zeroed with probability key.p and the others scaled by 1 / (1 - p); x (N, ...) in plain order.
/// The decision for an element depends on the key, the row's number in the global batch and its place in the row only.
Variable dropout(const Variable& x, const DropoutKey& key);

/// The same with PyTorch's stream of random numbers: two words per element in memory order (semantics of
/// aten bernoulli_ without MKL). The result depends on how the batch is split.
Variable dropout(const Variable& x, float p, Mt19937& generator);

}  // namespace duet::ops
