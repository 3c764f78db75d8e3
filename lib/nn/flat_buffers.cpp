#include "lib/nn/flat_buffers.h"

#include <cstddef>

namespace duet::nn {
namespace {

constexpr std::int64_t kAligned = 16;  // bytes that CUDA kernels load at once

}  // namespace

FlatBuffers::FlatBuffers(const NamedTensors& initial, Device device) {
  lay_out(initial, device);
  for (std::size_t i = 0; i < initial.size(); ++i) copy(initial[i].tensor, all_[i].tensor);
}

FlatBuffers::FlatBuffers(const FlatBuffers& whole, int first, int count, Device device, bool share) {
  if (share) memory_ = whole.run(first, count).alias(device);
  const auto begin = whole.all_.begin() + first;
  lay_out({begin, begin + count}, device);
  if (!share) copy(whole.run(first, count), memory_);
}

void FlatBuffers::lay_out(const NamedTensors& like, Device device) {
  for (const auto& [name, tensor] : like) {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes());
    begins_.push_back(begins_.back() + (bytes + kAligned - 1) / kAligned * kAligned);
  }
  if (!memory_.defined()) memory_ = zeros({begins_.back()}, DType::u8, device);
  for (std::size_t i = 0; i < like.size(); ++i)
    all_.push_back({like[i].name, memory_.reinterpret(begins_[i], like[i].tensor.shape(), like[i].tensor.dtype())});
}

Tensor FlatBuffers::run(int first, int count) const {
  const std::int64_t begin = begins_[static_cast<std::size_t>(first)];
  return memory_.slice(begin, {begins_[static_cast<std::size_t>(first + count)] - begin});
}

void FlatBuffers::move_to(Device device) {
  *this = FlatBuffers(*this, 0, static_cast<int>(all_.size()), device, false);
}

}  // namespace duet::nn
