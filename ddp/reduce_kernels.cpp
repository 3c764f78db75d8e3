#include "ddp/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace duet::ddp {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements; the parts of a block stay in the first cache

template <class T>
void combine(T* into, const T* from, std::int64_t count, ReduceOp op) {
  // Sums and products of integers wrap around instead of being undefined.
  using Exact = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      for (std::int64_t i = 0; i < count; ++i)
        into[i] = static_cast<T>(static_cast<Exact>(into[i]) + static_cast<Exact>(from[i]));
      return;
    case ReduceOp::product:
      for (std::int64_t i = 0; i < count; ++i)
        into[i] = static_cast<T>(static_cast<Exact>(into[i]) * static_cast<Exact>(from[i]));
      return;
    case ReduceOp::min:
      for (std::int64_t i = 0; i < count; ++i) into[i] = std::min(into[i], from[i]);
      return;
    case ReduceOp::max:
      for (std::int64_t i = 0; i < count; ++i) into[i] = std::max(into[i], from[i]);
      return;
  }
}

template <class T>
void reduce_block(std::span<void* const> parts, std::int64_t begin, std::int64_t count, ReduceOp op) {
  const auto part = [&](std::size_t i) { return static_cast<T*>(parts[i]) + begin; };
  if (std::has_single_bit(parts.size())) {
    for (std::size_t step = 1; step < parts.size(); step *= 2) {
      for (std::size_t i = 0; i < parts.size(); i += 2 * step) combine(part(i), part(i + step), count, op);
    }
  } else {
    for (std::size_t i = 1; i < parts.size(); ++i) combine(part(0), part(i), count, op);
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op != ReduceOp::avg) return;
    T* sum = part(0);
    for (std::int64_t i = 0; i < count; ++i) sum[i] /= static_cast<T>(parts.size());
  }
}

template <class T>
void reduce_all(std::span<void* const> parts, std::int64_t count, ReduceOp op) {
  for (std::int64_t begin = 0; begin < count; begin += kBlock)
    reduce_block<T>(parts, begin, std::min(kBlock, count - begin), op);
}

}  // namespace

void reduce_parts(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32: return reduce_all<float>(parts, count, op);
    case DType::f64: return reduce_all<double>(parts, count, op);
    case DType::i32: return reduce_all<std::int32_t>(parts, count, op);
    case DType::i64: return reduce_all<std::int64_t>(parts, count, op);
    case DType::u8: return reduce_all<std::uint8_t>(parts, count, op);
  }
}

}  // namespace duet::ddp
