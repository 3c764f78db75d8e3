// Tensors with names, as models, optimizers and checkpoints exchange them.
#pragma once

#include <string>
#include <vector>

#include "lib/tensor.h"

namespace duet {

/// A tensor under PyTorch's name: "conv1.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

}  // namespace duet
