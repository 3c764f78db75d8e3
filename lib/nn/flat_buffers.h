// The buffers of a model (running statistics, counts of batches) in one piece of memory, so that one copy or one
// broadcast moves all of them, whatever their types.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/tensor.h"

namespace duet::nn {

/// Used by one thread at a time.
class FlatBuffers {
 public:
  /// Copies of `initial` on `device`, in this order.
  FlatBuffers(const NamedTensors& initial, Device device);
  /// For `device`, the buffers from number `first` on: the memory of `whole` itself if `share`, else copies of now.
  FlatBuffers(const FlatBuffers& whole, int first, int count, Device device, bool share);

  /// Views of the memory.
  const NamedTensors& all() const { return all_; }
  /// The bytes (u8) of the buffers from number `first` on; padding between them is 0. Valid until move_to().
  Tensor run(int first, int count) const;
  void move_to(Device device);

 private:
  /// Makes the views; memory_ is new unless it is set.
  void lay_out(const NamedTensors& like, Device device);

  Tensor memory_;                        // u8
  std::vector<std::int64_t> begins_{0};  // of each buffer in it, and the end of the last
  NamedTensors all_;
};

}  // namespace duet::nn
