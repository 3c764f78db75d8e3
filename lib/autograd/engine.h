// Runs the tape backwards.
#pragma once

#include <span>

#include "lib/autograd/node.h"

namespace duet {

/// An output from which a backward run starts, and its gradient. Undefined: 1, of a node that starts_from_one(), alone.
struct BackwardRoot {
  Edge edge;
  Tensor gradient;
};

/// Runs every node below the roots once, each when the gradients of all its consumers have arrived, later operators
/// first. A leaf is reached only with its complete gradient, so a hook on it fires when the last contribution is in.
/// Runs on the calling thread. Throws Error when a root requires no gradient.
void run_backward(std::span<const BackwardRoot> roots);

}  // namespace duet
