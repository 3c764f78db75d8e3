// Ring all-reduce over send and recv: the tutorial's, and one that keeps the ranks equal.
#pragma once

#include <span>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// The tutorial's ring as it is written there: `received` becomes the sum of all ranks' `sent`, which must be as long.
/// What was meant is a sum that all ranks share. But every rank adds in an order of its own (itself, its left
/// neighbour, the one left of that...), and floats do not add associatively: from 3 ranks on the results differ in
/// their last bits (a third of all elements with 3 ranks), so that replicas which start equal drift apart. It also
/// moves (P-1) times the buffer per rank, not 2 (P-1)/P times.
void naive_ring_all_reduce(ProcessGroup& group, std::span<const float> sent, std::span<float> received);

/// The same in chunks, in place: P-1 steps that reduce each chunk once as it goes round, then P-1 steps that copy it to
/// all ranks. Bitwise equal everywhere, though not equal to the tree of ProcessGroup::all_reduce: the values of chunk k
/// are ((x[k] + x[k+1]) + x[k+2]) + ..., ranks modulo P.
void chunked_ring_all_reduce(ProcessGroup& group, std::span<float> values);

}  // namespace duet::ddp
