#include "ddp/comm_hook.h"

#include <algorithm>

#include "ddp/reduce_kernels.h"
#include "lib/error.h"
#include "lib/half.h"

namespace duet::ddp {
namespace {

constexpr std::size_t kBlock = 2048;  // gradients summed up at once, of every rank

std::span<float> floats_of(const Buffer& buffer) {
  require<UsageError>(buffer.dtype == DType::f32 && buffer.device.kind == DeviceKind::cpu,
                      "compression of gradients is for f32 on CPU devices, got ", buffer.dtype, " on ", buffer.device);
  return {static_cast<float*>(buffer.data), static_cast<std::size_t>(buffer.count)};
}

Buffer bytes_of(std::vector<std::uint16_t>& halves) {
  return {halves.data(), static_cast<std::int64_t>(halves.size() * sizeof(std::uint16_t)), DType::u8};
}

}  // namespace

Work CompressionHook::start(ProcessGroup& group, const GradBucket& bucket) {
  const std::span<const float> gradients = floats_of(bucket.gradients);
  if (buckets_.size() < static_cast<std::size_t>(bucket.count)) buckets_.resize(static_cast<std::size_t>(bucket.count));
  Halves& halves = buckets_[static_cast<std::size_t>(bucket.index)];
  halves.own.resize(gradients.size());
  halves.all.resize(gradients.size() * static_cast<std::size_t>(group.size()));
  std::transform(gradients.begin(), gradients.end(), halves.own.begin(), format_ == HalfFormat::f16 ? to_f16 : to_bf16);
  return group.all_gather(bytes_of(halves.own), bytes_of(halves.all));
}

void CompressionHook::finish(ProcessGroup& group, const GradBucket& bucket) {
  const std::span<float> gradients = floats_of(bucket.gradients);
  const auto ranks = static_cast<std::size_t>(group.size());
  Halves& halves = buckets_[static_cast<std::size_t>(bucket.index)];
  halves.sums.resize(ranks * kBlock);
  std::vector<void*> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) parts.push_back(halves.sums.data() + rank * kBlock);
  for (std::size_t begin = 0; begin < gradients.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, gradients.size() - begin);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      std::transform(halves.all.data() + rank * gradients.size() + begin,
                     halves.all.data() + rank * gradients.size() + begin + count, halves.sums.data() + rank * kBlock,
                     format_ == HalfFormat::f16 ? from_f16 : from_bf16);
    reduce_parts(parts, static_cast<std::int64_t>(count), DType::f32, ReduceOp::sum);
    std::copy_n(halves.sums.data(), count, gradients.data() + begin);
  }
}

}  // namespace duet::ddp
