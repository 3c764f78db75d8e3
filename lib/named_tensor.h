// Tensors with names, as models, optimizers and checkpoints exchange them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor.h"

namespace duet {

/// A tensor under PyTorch's name: "conv1.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

/// Whether a state that lacks this tensor still fits: batch norms' count of batches, which early versions of PyTorch
/// and of duet did not keep.
inline bool is_optional(std::string_view name) { return name.ends_with("num_batches_tracked"); }

}  // namespace duet
