#include "lib/backend/cpu/cpu_backend.h"

#include <malloc.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "lib/backend/cpu/conv_plan.h"
#include "lib/backend/cpu/cpu_device.h"
#include "lib/error.h"

namespace duet::cpu {

CpuBackend::CpuBackend() : kernels_(kernels()) {}

int CpuBackend::device_count() const { return kCpuDevices; }

std::string CpuBackend::describe(Device) const {
  const int threads = threads_per_device_;
  return concat(kernels_.name, ", ", threads, threads == 1 ? " thread" : " threads");
}

CpuDevice& CpuBackend::device(Device device) {
  require<DeviceError>(device.kind == DeviceKind::cpu && device.index >= 0 && device.index < device_count(),
                       "expected a CPU device, got ", device);
  return thread_device(device.index);
}

void CpuBackend::bind_thread(Device device) {
  const int threads = threads_per_device_;
  if ((device.index + 1) * threads <= own_cores()) pin_current_thread(device.index * threads);
}

void CpuBackend::set_threads_per_device(int threads) {
  require<UsageError>(threads >= 1 && threads <= 1024, "threads per device is ", threads, ", expected 1 to 1024");
  set_device_threads(threads);
  threads_per_device_ = threads;
}

void CpuBackend::set_precision(Precision precision) {
  require<UsageError>(precision != Precision::tf32, "precision tf32 on CPU, expected fp32 or bf16");
  require<UsageError>(precision != Precision::bf16 || has_bf16(), "precision bf16 on CPU, but ", kernels_.name,
                      " here has no instructions for bf16, which AVX512-BF16 or AMX has");
  // Limited by a variable, oneDNN would take a slow way or find none in the first step.
  require<UsageError>(precision != Precision::bf16 || onednn_multiplies_bf16(),
                      "precision bf16 on CPU, but oneDNN does not use this machine's instructions for it: is ",
                      "ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA set?");
  precision_ = precision;
  has_rounded_ = false;
}

void CpuBackend::copy_2d(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
                         std::size_t width, std::size_t rows, Device) {
  for (std::size_t i = 0; i < rows; ++i)
    std::memcpy(static_cast<std::byte*>(destination) + i * destination_pitch,
                static_cast<const std::byte*>(source) + i * source_pitch, width);
}

void CpuBackend::for_each_block(const Tensor& tensor, FunctionRef<void(std::int64_t, std::int64_t, int)> task) {
  const Blocks blocks = blocks_of(tensor);
  device(tensor).pool().run(blocks.leaf_count, [&](int leaf, int worker) {
    const Blocks::Range range = blocks.leaf(leaf);
    if (range.rows() > 0) task(range.begin, range.end, worker);
  });
}

namespace {

/// Calls move(plain, blocked, pixels, block) for each group of channels of an (N, C, H, W) tensor.
template <class Move>
void for_each_channel_block(const Tensor& blocked, const Tensor& plain, Move move) {
  const int block = blocked.layout() == Layout::blocked16 ? 16 : 8;
  const std::int64_t pixels = blocked.size(2) * blocked.size(3);
  for (std::int64_t i = 0; i < blocked.count(); i += pixels * block)
    move(plain.data<float>() + i, blocked.data<float>() + i, pixels, block);
}

}  // namespace

void CpuBackend::to_plain(const Tensor& x, const Tensor& y) {
  if (x.layout() == Layout::plain) return duet::copy(x, y);
  for_each_channel_block(x, y, [&](float* plain, const float* blocked, std::int64_t pixels, int block) {
    kernels_.unblock(blocked, plain, pixels, block);
  });
}

void CpuBackend::from_plain(const Tensor& x, const Tensor& y) {
  if (y.layout() == Layout::plain) return duet::copy(x, y);
  for_each_channel_block(y, x, [&](const float* plain, float* blocked, std::int64_t pixels, int block) {
    kernels_.block(plain, blocked, pixels, block);
  });
}

namespace {

constexpr std::size_t kAlignment = 64;  // one AVX-512 vector, one cache line
constexpr std::size_t kHugePage = 2 << 20;

std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment) / kAlignment * kAlignment; }

/// Blocks that fill most of a huge page lie in such pages where the system gives them: a step walks over more memory
/// than the processor keeps addresses of small pages for.
void* fresh_block(std::size_t size) {
  if (size < kHugePage / 2) return std::aligned_alloc(kAlignment, size);
  const std::size_t whole = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* const block = std::aligned_alloc(kHugePage, whole);
  if (block != nullptr) ::madvise(block, whole, MADV_HUGEPAGE);
  return block;
}

}  // namespace

HostAllocator::~HostAllocator() { free_blocks(); }

void* HostAllocator::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& blocks = free_[size];
    if (!blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
    // Room for this block to come back without an allocation in release(), which must not throw.
    blocks.reserve(blocks.capacity() + 1);
  }
  void* const fresh = fresh_block(size);
  require<DeviceError>(fresh != nullptr, "out of memory on cpu: asked for ", size, " bytes");
  return fresh;
}

void HostAllocator::release(void* memory, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  free_[rounded(bytes)].push_back(memory);
}

std::size_t HostAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = free_blocks();
  ::malloc_trim(0);  // free() keeps blocks of up to 32 MB that it once took from the system
  return bytes;
}

std::size_t HostAllocator::free_blocks() noexcept {
  std::size_t freed = 0;
  for (auto& [bytes, blocks] : free_) {
    freed += bytes * blocks.size();
    for (void* const block : blocks) std::free(block);
    blocks.clear();  // which leaves the room for those that tensors hold
  }
  return freed;
}

void HostAllocator::clear(void* memory, std::size_t bytes) { std::memset(memory, 0, bytes); }

void HostAllocator::copy(void* destination, Device, const void* source, Device, std::size_t bytes) {
  if (bytes > 0 && destination != source) std::memcpy(destination, source, bytes);
}

}  // namespace duet::cpu
