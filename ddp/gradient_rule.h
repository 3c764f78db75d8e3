// How gradients of ranks become one.
#pragma once

namespace duet::ddp {

/// `rows`: the gradient of the mean over all ranks' rows. Where the loss of a batch that the loader has stamped divided
/// by the rows of the global batch (lib/ops/losses.h), gradients are added up, with the bits of one device for 1, 2, 4
/// and 8 ranks. All other losses count as means over the rank's own rows, which are dimension 0 of the first tensor of
/// forward's input: the ranks exchange how many those are when backward begins, and gradients are weighted by them
/// (ddp/rank_weights.h). A sum of both kinds throws UsageError. Ranks with batches of their own draw the same dropout
/// masks, as each counts its rows from 0.
///
/// `torch`: gradients are multiplied by 1 / world size before they are added up, as PyTorch does, however many rows
/// each rank has. UsageError for a loss that was divided by the rows of the global batch.
enum class GradientRule { rows, torch };

}  // namespace duet::ddp
