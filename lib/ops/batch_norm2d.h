#pragma once

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet::ops {

struct BatchNorm2dOptions {
  bool training = true;
  float momentum = 0.1f;  // how far the running statistics move towards the batch's
  float eps = 1e-5f;
  /// Where set, the statistics are those of the rows on all devices. It must outlive the tape.
  BatchSums* others = nullptr;
};

/// (x - mean) / sqrt(variance + eps) * weight + bias for each channel: x (N, C, H, W); weight, bias, running_mean,
/// running_var (C). In training the statistics are the batch's (its rows on this device alone, unless `others` is set),
/// and the running ones are updated in place, the variance by its unbiased estimate, as in torch.nn.BatchNorm2d.
Variable batch_norm2d(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                      const Tensor& running_var, const BatchNorm2dOptions& options);

}  // namespace duet::ops
