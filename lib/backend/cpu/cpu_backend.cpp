#include "lib/backend/cpu/cpu_backend.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "lib/backend/cpu/conv_plan.h"
#include "lib/backend/cpu/cpu_device.h"

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

}  // namespace duet::cpu
