// The tutorial's synchronisation: after backward, one blocking all_reduce per parameter.
#pragma once

#include "ddp/group/process_group.h"
#include "lib/nn/module.h"

namespace duet::ddp {

/// Replaces every gradient by its mean over the ranks: the sum, then a division by the world size, parameter by
/// parameter in registration order. DistributedDataParallel does it in fewer messages and while backward still runs.
/// Parameters without a gradient are left out; which ones those are must be the same on all ranks. Throws UsageError
/// for gradients of a loss that was divided by the rows of the global batch already.
void average_gradients(nn::Module& model, ProcessGroup& group);

}  // namespace duet::ddp
