// Reductions of equally long arrays in the fixed order that makes all ranks' results the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ddp/group/process_group.h"
#include "lib/blocks.h"

namespace duet::ddp {

inline std::byte* at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + static_cast<std::size_t>(element) * size_of(buffer.dtype);
}

/// Nothing where source and target are the same.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

/// Reduces `parts` (in rank order, `count` elements each) into parts[0]; all parts are overwritten. For a power of two
/// the order is the tree ((0+1)+(2+3))+((4+5)+(6+7)), else 0+1+2+.... Integers wrap around; f16 and bf16 are reduced in
/// f32, and the result is rounded once. `order`: these additions in place of that order, for sums.
void reduce_parts(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op,
                  std::span<const Addition> order = {});

/// Reduces f16 or bf16 as reduce_parts() does, but into `to`, without rounding; the parts stay as they are.
void reduce_halves(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op, float* to);

}  // namespace duet::ddp
