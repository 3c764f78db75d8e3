// Clipping of gradients by their norm, between backward() and step().
#pragma once

#include "lib/nn/module.h"

namespace duet::optim {

/// torch.nn.utils.clip_grad_norm_ with norm_type 2 (torch/nn/utils/clip_grad.py): the norm over all gradients of the
/// module and its parts together, seen as one vector; where it is above max_norm all are multiplied by max_norm / (norm
/// + 1e-6). Returns the norm as it was. Gradients that the ranks have in common give the same norm on all of them.
/// Parameters without a gradient count as zeros. Throws UsageError for a max_norm that is not positive, and with
/// `error_if_nonfinite` NumericError when the norm is infinite or NaN, leaving the gradients as they are.
double clip_grad_norm(nn::Module& module, double max_norm, bool error_if_nonfinite = false);

}  // namespace duet::optim
