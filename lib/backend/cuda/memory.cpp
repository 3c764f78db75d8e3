#include "lib/backend/cuda/memory.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lib/backend/cuda/device_table.h"

namespace duet::cuda {
namespace {

constexpr std::size_t kSmallest = 512;                     // the alignment of cudaMalloc's memory, and of vector loads
constexpr std::size_t kStageBytes = std::size_t{4} << 20;  // larger copies go piece by piece
constexpr std::size_t kSmallestStage = std::size_t{4} << 10;
constexpr std::size_t kMaxStages = 8;

/// The size class of a request: multiples of 512 bytes, from 4 KiB on eight classes per power of two, so that at most
/// an eighth of a block is wasted.
std::size_t rounded(std::size_t bytes) {
  const std::size_t step = std::max(kSmallest, std::bit_floor(std::max(bytes, kSmallest)) / 8);
  return std::max(kSmallest, (bytes + step - 1) / step * step);
}

/// Lets the calling thread allocate while some stream is being recorded, which is otherwise refused.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Calls a function at scope exit.
template <class F>
struct Finally {
  explicit Finally(F call) : end(std::move(call)) {}
  ~Finally() { end(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;
  F end;
};

void require_not_recorded(const CudaDevice& device, const char* what) {
  require<DeviceError>(!is_capturing(device.stream()), "a copy ", what, " the host on ", device.device(),
                       " cannot be part of a recorded step");
}

}  // namespace

int& recording_of_thread() {
  thread_local int recording = 0;
  return recording;
}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  const bool outside = is_outside_recording();
  const int recording = outside ? 0 : recording_;
  // Blocks of a recording's branches do not meet those of the rest: both run at the same time.
  const int owner = device_.in_branch() ? -recording : recording;
  std::vector<void*>& cached = free_[owner][size];
  std::vector<void*>& shared = free_[0][size];
  void* block = nullptr;
  const auto take = [&block](std::vector<void*>& blocks) {
    if (blocks.empty()) return false;
    block = blocks.back();
    blocks.pop_back();
    return true;
  };
  // The recorded work may have used a shared block before its release, so threads outside get fresh memory.
  const bool reused = !outside && take(cached);
  if (!reused) {
    // Reserves the place of this block in the free lists, so that release() cannot throw. A recording's block goes
    // to the shared list when the recording is dropped; one that comes from there has its place already.
    cached.reserve(cached.capacity() + 1);
    if (outside || !take(shared)) {
      if (recording != 0) shared.reserve(shared.capacity() + 1);
      block = from_driver(size);
    }
    if (recording != 0) owner_[block] = owner;
  }
  if (recording == 0 || !reused) used_ += size;
  peak_ = std::max(peak_, used_);
  if (!outside) block_changes_hands(block, bytes, device_.stream());
  return block;
}

void* DeviceMemory::from_driver(std::size_t size) {
  device_.activate();
  const RelaxedCapture relaxed;
  void* block = nullptr;
  cudaError_t status = cudaMalloc(&block, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    give_back_cached();
    trim_others();
    status = cudaMalloc(&block, size);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0, held = 0;
    for (CudaDevice* const device : table_.on_gpu(device_.physical())) held += device->memory().held_;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw DeviceError(concat("out of memory on ", device_.device(), ": asked for ", size, " bytes, but ", free, " of ",
                             total, " bytes are free; this process holds ", held,
                             " bytes there, other programs and the driver the rest (nvidia-smi lists programs)"));
  }
  check(status, "cudaMalloc");
  held_ += size;
  return block;
}

void DeviceMemory::release(void* memory, std::size_t bytes) noexcept {
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  if (!is_outside_recording()) block_changes_hands(memory, 0, device_.stream());
  const auto owner = owner_.find(memory);
  const bool recorded = owner != owner_.end();
  free_[recorded ? owner->second : 0][size].push_back(memory);
  if (!recorded) used_ -= size;
}

void DeviceMemory::give_back_cached() {
  if (live_recordings_ > 0) return;  // a recorded graph may use any block
  // Waits for all users of the blocks; copies by other devices are ordered on this stream too.
  check(cudaStreamSynchronize(device_.stream()), "giving memory back");
  for (auto& [size, blocks] : free_[0]) {
    while (!blocks.empty()) {
      void* const block = blocks.back();
      blocks.pop_back();  // first: after an error it must not be handed out again
      held_ -= size;
      check(cudaFree(block), "cudaFree");
    }
  }
}

std::size_t DeviceMemory::empty_cache() {
  const std::lock_guard lock(mutex_);
  device_.activate();
  const std::size_t before = held_;
  give_back_cached();
  return before - held_;
}

void DeviceMemory::trim() {
  // Only if no thread holds the lock: two devices that run out of memory together would deadlock.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  device_.activate();
  give_back_cached();
}

void DeviceMemory::trim_others() {
  for (CudaDevice* const other : table_.on_gpu(device_.physical()))
    if (other != &device_) other->memory().trim();
}

void DeviceMemory::begin_recording(int recording) {
  const std::lock_guard lock(mutex_);
  ++live_recordings_;
  recording_ = recording;
}

void DeviceMemory::end_recording() {
  const std::lock_guard lock(mutex_);
  recording_ = 0;
}

void DeviceMemory::drop_recording(int recording) {
  const std::lock_guard lock(mutex_);
  if (recording_ == recording) recording_ = 0;
  for (const int owner : {recording, -recording}) {
    for (auto& [size, blocks] : free_[owner]) {
      std::vector<void*>& everybodys = free_[0][size];
      everybodys.insert(everybodys.end(), blocks.begin(), blocks.end());
      used_ -= size * blocks.size();
    }
    free_.erase(owner);
  }
  std::erase_if(owner_, [recording](const auto& block) { return std::abs(block.second) == recording; });
  --live_recordings_;
}

DeviceMemory::Use DeviceMemory::use() const {
  const std::lock_guard lock(mutex_);
  return {held_, used_, peak_};
}

void DeviceMemory::clear(void* memory, std::size_t bytes) {
  device_.activate();
  check(cudaMemsetAsync(memory, 0, bytes, device_.stream()), "clear");
}

void DeviceMemory::copy(void* destination, Device to, const void* source, Device from, std::size_t bytes) {
  if (bytes == 0 || (destination == source && to == from)) return;
  device_.activate();
  if (from.kind == DeviceKind::cpu) return copy_from_host(destination, source, bytes);
  if (to.kind == DeviceKind::cpu) return copy_to_host(destination, source, bytes);
  if (from == to) {
    check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, device_.stream()), "copy");
    return;
  }
  table_.copy(table_.find(to), destination, table_.find(from), source, bytes);
}

void DeviceMemory::copy_from_host(void* destination, const void* source, std::size_t bytes) {
  require_not_recorded(device_, "from");
  device_.count_moved(bytes);
  for (std::size_t begin = 0; begin < bytes; begin += kStageBytes) {
    const std::size_t piece = std::min(kStageBytes, bytes - begin);
    Stage& stage = take_stage(piece);
    const Finally give([&] { give_stage(stage); });
    std::memcpy(stage.memory, static_cast<const std::byte*>(source) + begin, piece);
    check(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, stage.memory, piece, cudaMemcpyHostToDevice,
                          device_.stream()),
          "copy from the host");
    check(cudaEventRecord(stage.done, device_.stream()), "cudaEventRecord");
  }
}

void DeviceMemory::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  require_not_recorded(device_, "to");
  device_.count_moved(bytes);
  for (std::size_t begin = 0; begin < bytes; begin += kStageBytes) {
    const std::size_t piece = std::min(kStageBytes, bytes - begin);
    Stage& stage = take_stage(piece);
    const Finally give([&] { give_stage(stage); });
    check(cudaMemcpyAsync(stage.memory, static_cast<const std::byte*>(source) + begin, piece, cudaMemcpyDeviceToHost,
                          device_.stream()),
          "copy to the host");
    check(cudaEventRecord(stage.done, device_.stream()), "cudaEventRecord");
    check(cudaEventSynchronize(stage.done), "copy to the host");
    std::memcpy(static_cast<std::byte*>(destination) + begin, stage.memory, piece);
  }
  device_.throw_fault();
}

DeviceMemory::Stage& DeviceMemory::take_stage(std::size_t bytes) {
  const RelaxedCapture relaxed;
  const auto lend = [this](Stage& stage) -> Stage& {
    stage.taken = true;
    stage.used = ++stage_count_;
    return stage;
  };
  std::unique_lock lock(stages_mutex_);
  // One that is large enough and idle; else a new one; else the one that was used first, when its copy is done.
  Stage* oldest = nullptr;
  for (const auto& stage : stages_) {
    if (stage->taken || stage->bytes < bytes) continue;
    const cudaError_t status = cudaEventQuery(stage->done);
    if (status == cudaSuccess) return lend(*stage);
    if (status != cudaErrorNotReady) check(status, "copy");
    cudaGetLastError();
    if (oldest == nullptr || stage->used < oldest->used) oldest = stage.get();
  }
  if (stages_.size() < kMaxStages || oldest == nullptr) {
    auto fresh = std::make_unique<Stage>();
    fresh->bytes = std::bit_ceil(std::max(bytes, kSmallestStage));
    check(cudaMallocHost(&fresh->memory, fresh->bytes), "cudaMallocHost");
    check(cudaEventCreateWithFlags(&fresh->done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return lend(*stages_.emplace_back(std::move(fresh)));
  }
  lend(*oldest);
  lock.unlock();
  check(cudaEventSynchronize(oldest->done), "copy");
  return *oldest;
}

void DeviceMemory::give_stage(Stage& stage) {
  const std::lock_guard lock(stages_mutex_);
  stage.taken = false;
}

}  // namespace duet::cuda
