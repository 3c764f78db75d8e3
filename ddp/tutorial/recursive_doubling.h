// All-reduce by recursive doubling, over send and recv.
#pragma once

#include <span>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// Sums in place in log2(P) steps, the fewest there can be: in step k every rank exchanges all its values with the rank
/// whose number differs in bit k, so that P ranks move P log2(P) times the buffer. Ranks beyond the largest power of
/// two give their values to one within it first, and get the result. For a power of two the sums are the tree of
/// ProcessGroup::all_reduce, bit for bit; for other numbers they are equal on all ranks.
/// (Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005.)
void recursive_doubling_all_reduce(ProcessGroup& group, std::span<float> values);

}  // namespace duet::ddp
