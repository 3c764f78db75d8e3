// Stochastic gradient descent.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/optim/optimizer.h"

namespace duet::optim {

struct SGDOptions {
  float lr = 0.01f;
  float momentum = 0;
  float dampening = 0;
  float weight_decay = 0;
  bool nesterov = false;
};

/// torch.optim.SGD: g += weight_decay * p; buf = g at a parameter's first step, later momentum * buf + (1 - dampening)
/// * g; g = nesterov ? g + momentum * buf : buf; p -= lr * g.
class SGD final : public Optimizer {
 public:
  /// Throws UsageError for values that make no sense.
  SGD(nn::Module& model, const SGDOptions& options);

  /// The options given to the constructor; lr() is the current rate.
  const SGDOptions& options() const { return options_; }

 private:
  void update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const override;
  void add_settings(nn::UpdateSettings& settings) const override;

  SGDOptions options_;
};

}  // namespace duet::optim
