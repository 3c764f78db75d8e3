// What the tutorial does by hand: after backward, one blocking all_reduce per parameter; and all-reduce over send and
// recv, as the tutorial's ring, as one that keeps the ranks equal, and by recursive doubling.
#pragma once

#include <span>

#include "ddp/group/process_group.h"
#include "lib/nn/module.h"

namespace duet::ddp {

/// Replaces every gradient by its mean over the ranks: the sum, then a division by the world size, parameter by
/// parameter in registration order. DistributedDataParallel does it in fewer messages and while backward still runs.
/// Parameters without a gradient are left out; which ones those are must be the same on all ranks. Throws UsageError
/// for gradients of a loss that was divided by the rows of the global batch already.
void average_gradients(nn::Module& model, ProcessGroup& group);

/// The tutorial's ring as it is written there: `received` becomes the sum of all ranks' `sent`, which must be as long.
/// What was meant is a sum that all ranks share. But every rank adds in an order of its own (itself, its left
/// neighbour, the one left of that...), and floats do not add associatively: from 3 ranks on the results differ in
/// their last bits (a third of all elements with 3 ranks), so that replicas which start equal drift apart. It also
/// moves (P-1) times the buffer per rank, not 2 (P-1)/P times.
void naive_ring_all_reduce(ProcessGroup& group, std::span<const float> sent, std::span<float> received);

/// Sums `values` over all ranks in place, in chunks: P-1 steps that reduce each chunk once as it goes round the ring,
/// then P-1 steps that copy it to all ranks. Bitwise equal everywhere, though not equal to the tree of
/// ProcessGroup::all_reduce: the values of chunk k are ((x[k] + x[k+1]) + x[k+2]) + ..., ranks modulo P.
void chunked_ring_all_reduce(ProcessGroup& group, std::span<float> values);

/// Sums in place in log2(P) steps, the fewest there can be: in step k every rank exchanges all its values with the rank
/// whose number differs in bit k, so that P ranks move P log2(P) times the buffer. Ranks beyond the largest power of
/// two give their values to one within it first, and get the result. For a power of two the sums are the tree of
/// ProcessGroup::all_reduce, bit for bit; for other numbers they are equal on all ranks.
/// (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005.)
void recursive_doubling_all_reduce(ProcessGroup& group, std::span<float> values);

}  // namespace duet::ddp
