// Memory of one device on a GPU: a cache over cudaMalloc, and copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lib/backend/cuda/cuda_device.h"
#include "lib/backend/cuda/device_table.h"
#include "lib/tensor.h"

namespace duet::cuda {

/// The number of the recording in which the calling thread takes part; 0: none.
int& recording_of_thread();

/// Released blocks are kept by size for the next request of that size. A block may be handed out again while the device
/// still works on what it held: everything that touches it, copies to other devices included, is ordered on the
/// device's stream. Thread-safe.
class DeviceMemory final : public Allocator {
 public:
  DeviceMemory(DeviceTable& table, CudaDevice& device) : table_(table), device_(device) {}

  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  std::size_t empty_cache() override;
  void clear(void* memory, std::size_t bytes) override;
  void copy(void* destination, Device to, const void* source, Device from, std::size_t bytes) override;

  /// While a recording (of a CUDA graph) runs, blocks of the threads that take part in it (see recording_of_thread())
  /// come from a set of its own, and go back to it even after its end, so that no other user's data is in them at a
  /// replay; they count as used as long as the recording lives. One at a time on a device.
  void begin_recording(int recording);
  void end_recording();
  /// The recording is never replayed again: its blocks go to the shared free list.
  void drop_recording(int recording);

  /// Gives cached blocks back to the driver, unless recordings live or another thread uses this cache.
  void trim();
  /// Bytes held from the driver, those of them that tensors use, and the most they ever used.
  struct Use {
    std::size_t held = 0, used = 0, peak = 0;
  };
  Use use() const;

 private:
  using FreeLists = std::map<std::size_t, std::vector<void*>>;  // by size
  void* from_driver(std::size_t size);
  bool is_outside_recording() const { return recording_ != 0 && recording_of_thread() != recording_; }
  void give_back_cached();
  /// Has the other devices on the same GPU give their cached memory back to the driver.
  void trim_others();
  void copy_from_host(void* destination, const void* source, std::size_t bytes);
  void copy_to_host(void* destination, const void* source, std::size_t bytes);

  /// A piece of pinned host memory through which copies to and from pageable memory go.
  struct Stage {
    void* memory = nullptr;
    std::size_t bytes = 0;
    cudaEvent_t done = nullptr;  // after the last copy that used it
    bool taken = false;          // by a thread that fills or empties it
    std::uint64_t used = 0;      // when it was last taken
  };
  Stage& take_stage(std::size_t bytes);
  void give_stage(Stage& stage);

  DeviceTable& table_;
  CudaDevice& device_;
  mutable std::mutex mutex_;
  std::unordered_map<int, FreeLists> free_;  // by recording, of its branches by minus its number; 0: shared
  std::unordered_map<void*, int> owner_;     // by block: the recording to which it belongs, if any
  int recording_ = 0;                        // the one that runs
  int live_recordings_ = 0;
  std::atomic<std::size_t> held_{0};
  std::size_t used_ = 0, peak_ = 0;
  std::mutex stages_mutex_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::uint64_t stage_count_ = 0;
};

/// A hook for memory checkers, which do not see the users of a cudaMalloc block behind this cache. Called when the
/// cache hands out the first `bytes` bytes of a block, and with 0 when the block is released; users follow each other
/// in the order of `stream`. block_watch.cpp does nothing; a build may link another file in its place.
void block_changes_hands(void* block, std::size_t bytes, cudaStream_t stream);

}  // namespace duet::cuda
