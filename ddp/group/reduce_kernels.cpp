#include "ddp/group/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <vector>

#include "lib/error.h"

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
void divide(T* sum, std::int64_t count, std::size_t parts) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] /= static_cast<T>(parts);
}

template <class T>
void reduce_block(std::span<void* const> parts, std::int64_t begin, std::int64_t count, ReduceOp op,
                  std::span<const Addition> order) {
  const auto part = [&](std::size_t i) { return static_cast<T*>(parts[i]) + begin; };
  if (!order.empty()) {
    for (const auto& [to, from] : order)
      combine(part(static_cast<std::size_t>(to)), part(static_cast<std::size_t>(from)), count, op);
  } else if (std::has_single_bit(parts.size())) {
    for (std::size_t step = 1; step < parts.size(); step *= 2) {
      for (std::size_t i = 0; i < parts.size(); i += 2 * step) combine(part(i), part(i + step), count, op);
    }
  } else {
    for (std::size_t i = 1; i < parts.size(); ++i) combine(part(0), part(i), count, op);
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::avg) divide(part(0), count, parts.size());
  }
}

template <class T>
void reduce_all(std::span<void* const> parts, std::int64_t count, ReduceOp op, std::span<const Addition> order) {
  for (std::int64_t begin = 0; begin < count; begin += kBlock)
    reduce_block<T>(parts, begin, std::min(kBlock, count - begin), op, order);
}

constexpr std::int64_t kHalfBlock = 256;  // elements of the same in single precision
using Row = float[kHalfBlock];

/// Reduces `count` <= kHalfBlock elements from `begin` on into the first row, in the order of reduce_block(). The rows
/// are as many as the tree has levels.
template <class Half>
void reduce_wide(std::span<void* const> parts, bool tree, std::int64_t begin, std::int64_t count, ReduceOp op,
                 Row* rows) {
  if (parts.size() == 1) {
    std::copy_n(static_cast<const Half*>(parts[0]) + begin, count, rows[0]);
    return;
  }
  const std::size_t left = tree ? parts.size() / 2 : parts.size() - 1;
  reduce_wide<Half>(parts.first(left), tree, begin, count, op, rows);
  reduce_wide<Half>(parts.subspan(left), tree, begin, count, op, rows + 1);
  combine(rows[0], rows[1], count, op);
}

/// `to` may be one of the parts.
template <class Half, class To>
void reduce_all_wide(std::span<void* const> parts, std::int64_t count, ReduceOp op, To* to) {
  Row rows[std::numeric_limits<int>::digits + 1];
  const bool tree = std::has_single_bit(parts.size());
  for (std::int64_t begin = 0; begin < count; begin += kHalfBlock) {
    const std::int64_t some = std::min(kHalfBlock, count - begin);
    reduce_wide<Half>(parts, tree, begin, some, op, rows);
    if (op == ReduceOp::avg) divide(rows[0], some, parts.size());
    std::transform(rows[0], rows[0] + some, to + begin, [](float x) { return static_cast<To>(x); });
  }
}

template <class Half>
void reduce_and_round(std::span<void* const> parts, std::int64_t count, ReduceOp op, std::span<const Addition> order) {
  auto* const to = static_cast<Half*>(parts[0]);
  if (order.empty()) return reduce_all_wide<Half>(parts, count, op, to);
  std::vector<float> wide(parts.size() * kHalfBlock);
  const auto row = [&](std::size_t i) { return wide.data() + i * kHalfBlock; };
  for (std::int64_t begin = 0; begin < count; begin += kHalfBlock) {
    const std::int64_t some = std::min(kHalfBlock, count - begin);
    for (std::size_t i = 0; i < parts.size(); ++i)
      std::copy_n(static_cast<const Half*>(parts[i]) + begin, some, row(i));
    for (const auto& [sum, part] : order)
      combine(row(static_cast<std::size_t>(sum)), row(static_cast<std::size_t>(part)), some, op);
    std::transform(row(0), row(0) + some, to + begin, [](float x) { return static_cast<Half>(x); });
  }
}

}  // namespace

void reduce_parts(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op,
                  std::span<const Addition> order) {
  switch (dtype) {
    case DType::f32: return reduce_all<float>(parts, count, op, order);
    case DType::f64: return reduce_all<double>(parts, count, op, order);
    case DType::i32: return reduce_all<std::int32_t>(parts, count, op, order);
    case DType::i64: return reduce_all<std::int64_t>(parts, count, op, order);
    case DType::u8: return reduce_all<std::uint8_t>(parts, count, op, order);
    case DType::f16: return reduce_and_round<Float16>(parts, count, op, order);
    case DType::bf16: return reduce_and_round<BFloat16>(parts, count, op, order);
  }
}

void reduce_halves(std::span<void* const> parts, std::int64_t count, DType dtype, ReduceOp op, float* to) {
  require<UsageError>(dtype == DType::f16 || dtype == DType::bf16, "reduce_halves is for f16 and bf16, got ", dtype);
  dtype == DType::f16 ? reduce_all_wide<Float16>(parts, count, op, to)
                      : reduce_all_wide<BFloat16>(parts, count, op, to);
}

}  // namespace duet::ddp
