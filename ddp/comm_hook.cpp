#include "ddp/comm_hook.h"

#include <algorithm>

#include "ddp/group/reduce_kernels.h"
#include "lib/error.h"
#include "lib/half.h"

namespace duet::ddp {
namespace {

std::span<float> floats_of(const Buffer& buffer) {
  require<UsageError>(buffer.dtype == DType::f32 && buffer.device.kind == DeviceKind::cpu,
                      "compression of gradients is for f32 on CPU devices, got ", buffer.dtype, " on ", buffer.device);
  return {static_cast<float*>(buffer.data), static_cast<std::size_t>(buffer.count)};
}

DType type_of(HalfFormat format) { return format == HalfFormat::f16 ? DType::f16 : DType::bf16; }

}  // namespace

Work CompressionHook::start(ProcessGroup& group, const GradBucket& bucket) {
  const std::span<const float> gradients = floats_of(bucket.gradients);
  if (buckets_.size() < static_cast<std::size_t>(bucket.count)) buckets_.resize(static_cast<std::size_t>(bucket.count));
  Halves& halves = buckets_[static_cast<std::size_t>(bucket.index)];
  halves.own.resize(gradients.size());
  halves.all.resize(gradients.size() * static_cast<std::size_t>(group.size()));
  std::transform(gradients.begin(), gradients.end(), halves.own.begin(), format_ == HalfFormat::f16 ? to_f16 : to_bf16);
  const auto sent = [&](std::vector<std::uint16_t>& bits) {
    return Buffer(bits.data(), static_cast<std::int64_t>(bits.size()), type_of(format_));
  };
  return group.all_gather(sent(halves.own), sent(halves.all));
}

void CompressionHook::finish(ProcessGroup& group, const GradBucket& bucket) {
  const std::span<float> gradients = floats_of(bucket.gradients);
  Halves& halves = buckets_[static_cast<std::size_t>(bucket.index)];
  std::vector<void*> parts;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(group.size()); ++rank)
    parts.push_back(halves.all.data() + rank * gradients.size());
  reduce_halves(parts, bucket.gradients.count, type_of(format_), ReduceOp::sum, gradients.data());
}

}  // namespace duet::ddp
