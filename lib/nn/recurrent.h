// Recurrent layers, with PyTorch's names, formulas and initial values.
#pragma once

#include <cstdint>
#include <string>

#include "lib/nn/module.h"

namespace duet::nn {

/// Options of a recurrent layer, named as PyTorch's.
struct RecurrentOptions {
  int num_layers = 1;  // each reads the output of the one before it
  bool bias = true;
  double dropout = 0;  // of the output of each layer but the last, in training: a warning if there is one layer
};

/// Runs (N, L, input) -> (N, L, hidden): batch first, one direction. Parameters are weight_ih_l0, weight_hh_l0,
/// bias_ih_l0, bias_hh_l0, weight_ih_l1 and so on, uniform within 1 / sqrt(hidden) at first. A parameter is used once
/// for all L steps, so gradients have equal bits on any number of CPU devices.
class Recurrent : public Module {
 public:
  /// What all steps gave, and the state after the last one. The batch is first in the state, so that wrappers can
  /// divide it; PyTorch's is (num_layers, N, hidden).
  struct Result {
    Variable output;        // (N, L, hidden)
    Variable hidden, cell;  // (N, num_layers, hidden); cell: of an LSTM, else undefined
  };
  /// Returns the output of the last layer, from a state of zeros.
  Variable forward(Context& context, const Variable& x) const override { return with_state(context, x).output; }
  using Module::forward;
  /// Starts from a state, such as that of an earlier result, or from zeros if it is undefined. Throws ShapeError for
  /// other shapes.
  Result with_state(Context& context, const Variable& x, const Variable& hidden = {}, const Variable& cell = {}) const;

 protected:
  /// Throws UsageError for sizes below 1, and unless 0 <= dropout < 1.
  Recurrent(bool lstm, std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options);
  std::string details() const override;

 private:
  Variable drop(Context& context, const Variable& x) const;

  bool lstm_;
  std::int64_t input_, hidden_;
  RecurrentOptions options_;
};

/// torch.nn.LSTM(batch_first=True): gates i, f, g, o; c' = f c + i g, h' = o tanh(c').
class LSTM : public Recurrent {
 public:
  LSTM(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options = {})
      : Recurrent(true, input_size, hidden_size, options) {}
};

/// torch.nn.GRU(batch_first=True): gates r, z, n, where r scales the product of n with its bias; h' = (1 - z) n + z h.
class GRU : public Recurrent {
 public:
  GRU(std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options = {})
      : Recurrent(false, input_size, hidden_size, options) {}
};

}  // namespace duet::nn
