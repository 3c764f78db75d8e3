// Runs the tape backwards.
#pragma once

#include "lib/autograd/node.h"

namespace duet {

/// Starts from `edge` with the given gradient of its output and runs every node below once, each when the gradients of
/// all its consumers have arrived, later operators first. A leaf is reached only with its complete gradient, so a hook
/// on it fires when the last contribution is in. Runs on the calling thread.
void run_backward(const Edge& edge, const Tensor& gradient);

}  // namespace duet
