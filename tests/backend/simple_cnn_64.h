// SimpleCNN's training step once more, as plain loops in double: what whole steps are compared with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/nn/flat_parameters.h"

namespace duet_test {

using Doubles = std::vector<double>;

/// Places of the maxima in each 2x2 window of a plain (N, C, H, W), 255 where no gradient passes.
using Places = std::vector<std::uint8_t>;

/// What a step draws or is given besides its weights.
struct StepInput {
  Doubles images;  // (N, 1, 28, 28)
  std::vector<std::int64_t> labels;
  std::vector<std::uint8_t> keep1, keep2;  // dropout: (N, 64, 7, 7) and (N, 128)
  // A run's own choices in place of the step's, unless they are empty.
  Places places1, places2;
};

class SimpleCNN64 {
 public:
  /// With the model's values now.
  explicit SimpleCNN64(const duet::nn::FlatParameters& store);

  /// Forward and backward; returns the loss and leaves the gradients.
  double run(const StepInput& input);
  void update(double lr, double momentum);
  /// By the parameter's name: "conv1.weight".
  const Doubles& gradient(const std::string& name) const;

 private:
  struct Parameter {
    std::string name;
    Doubles value, gradient, momentum;
  };
  Parameter& parameter(const std::string& name);

  std::vector<Parameter> parameters_;
  bool first_ = true;
};

}  // namespace duet_test
