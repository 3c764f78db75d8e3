// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/optim/optimizer.h"

namespace duet::optim {

struct AdamOptions {
  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

struct AdamWOptions {
  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// torch.optim.Adam: g += weight_decay * p; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g;
/// p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps), t from 1 on for each parameter. On a GPU a step
/// cannot be recorded as a CUDA graph, because t changes: StepGraph throws UsageError.
class Adam : public Optimizer {
 public:
  /// Throws UsageError for values that make no sense.
  explicit Adam(nn::Module& model, const AdamOptions& options = {}) : Adam(model, options, "Adam", false) {}

  /// The options given to the constructor; lr() is the current rate.
  const AdamOptions& options() const { return options_; }

 protected:
  Adam(nn::Module& model, const AdamOptions& options, const std::string& kind, bool decoupled);

 private:
  void update(const nn::UpdateRun& run, std::int64_t step, int share, int shares) const override;
  void add_settings(nn::UpdateSettings& settings) const override;

  AdamOptions options_;
  bool decoupled_;
};

/// torch.optim.AdamW: Adam, but p *= 1 - lr * weight_decay first, in place of the addition to g.
class AdamW final : public Adam {
 public:
  explicit AdamW(nn::Module& model, const AdamWOptions& options = {})
      : Adam(model, {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay}, "AdamW", true) {}
};

}  // namespace duet::optim
