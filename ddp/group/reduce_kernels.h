// Reductions of equally long arrays in the fixed order that makes all ranks' results the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// Reduces `parts` (in rank order, `count` elements each) into parts[0]; all parts are overwritten. For a power of two
/// the order is the tree ((0+1)+(2+3))+((4+5)+(6+7)), else 0+1+2+.... Integers wrap around; f16 and bf16 are reduced in
/// f32, and the result is rounded once.
void reduce_parts(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op);

/// The same of f16 or bf16 without the rounding, into `to`; the parts stay as they are.
void reduce_halves(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op, float* to);

}  // namespace duet::ddp
