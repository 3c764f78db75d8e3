// Memory, streams and events of LibTorch's "cuda" are the simulated devices'. Every operator copies its operands to the
// host, computes there, and copies the results back. Copies to a device are left on LibTorch's current stream, and
// released memory is overwritten on the stream that it was allocated on, so that work of duet's that is not ordered
// with LibTorch's shows as a wrong number.
#include "tests/torch/simulated_gpu.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr c10::DeviceIndex kGpus = 4;

void good(cudaError_t status) { TORCH_CHECK(status == cudaSuccess, cudaGetErrorName(status)); }

cudaStream_t handle_of(const c10::Stream& stream) { return reinterpret_cast<cudaStream_t>(stream.id()); }

/// A stream's number is its handle; 0 is the default stream of the device.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    int device = 0;
    good(cudaGetDevice(&device));
    return {at::kCUDA, static_cast<c10::DeviceIndex>(device)};
  }
  void setDevice(c10::Device device) const override { good(cudaSetDevice(device.index())); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { cudaSetDevice(device.index()); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current().at(static_cast<std::size_t>(device.index())));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current().at(static_cast<std::size_t>(stream.device_index())) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(stream); }
  void synchronizeStream(const c10::Stream& stream) const override {
    const c10::DeviceGuard guard(stream.device());
    good(cudaStreamSynchronize(handle_of(stream)));
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const c10::DeviceGuard guard(stream.device());
    auto*& made = reinterpret_cast<cudaEvent_t&>(*event);
    if (made == nullptr) good(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    good(cudaEventRecord(made, handle_of(stream)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const c10::DeviceGuard guard(stream.device());
    good(cudaStreamWaitEvent(handle_of(stream), static_cast<cudaEvent_t>(event)));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kGpus; }

 private:
  static std::array<c10::StreamId, kGpus>& current() {
    thread_local std::array<c10::StreamId, kGpus> streams{};
    return streams;
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

c10::Stream current_stream(const c10::Device& device) { return Guard().getStream(device); }

/// Blocks are kept for allocations of the same size on the same stream, as LibTorch's own allocator keeps them.
class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device = Guard().getDevice();
    if (bytes == 0) return {nullptr, nullptr, c10::detail::deleteNothing, device};
    const c10::Stream stream = current_stream(device);
    const std::lock_guard lock(mutex_);
    std::vector<Block*>& free = free_[{device.index(), stream.id(), bytes}];
    if (free.empty()) {
      free.push_back(blocks_.emplace_back(new Block{*this, stream, nullptr, bytes}).get());
      good(cudaMalloc(&free.back()->memory, bytes));
    }
    Block* const block = free.back();
    free.pop_back();
    return {block->memory, block, &Memory::release, device};
  }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "not for these tests"); }

 private:
  struct Block {
    Memory& owner;
    c10::Stream stream;
    void* memory;
    std::size_t bytes;
  };
  static void release(void* given) {
    Block& block = *static_cast<Block*>(given);
    const c10::DeviceGuard guard(block.stream.device());
    good(cudaMemsetAsync(block.memory, 0xFF, block.bytes, handle_of(block.stream)));
    const std::lock_guard lock(block.owner.mutex_);
    block.owner.free_[{block.stream.device_index(), block.stream.id(), block.bytes}].push_back(&block);
  }

  std::mutex mutex_;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, std::size_t>, std::vector<Block*>> free_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

Memory& memory() {
  static auto* const memory = new Memory;
  return *memory;
}
[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(at::kCUDA, &memory());
  return true;
}();

}  // namespace

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kGpus; }
  DeviceIndex current_device() const override { return Guard().getDevice().index(); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  const Generator& getDefaultGenerator(DeviceIndex device) const override {
    static std::array<Generator, kGpus> generators = {
        at::detail::createCPUGenerator(1), at::detail::createCPUGenerator(2), at::detail::createCPUGenerator(3),
        at::detail::createCPUGenerator(4)};
    return generators.at(static_cast<std::size_t>(device < 0 ? current_device() : device));
  }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

namespace {

using Sizes = at::IntArrayRef;
template <class T>
using Maybe = std::optional<T>;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(Sizes sizes, Maybe<at::ScalarType> type, Maybe<at::Layout>, Maybe<at::Device> device, Maybe<bool>,
                 Maybe<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &memory(), kKeys, type.value_or(at::kFloat), format);
}
at::Tensor empty_strided(Sizes sizes, Sizes strides, Maybe<at::ScalarType> type, Maybe<at::Layout>,
                         Maybe<at::Device> device, Maybe<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &memory(), kKeys, type.value_or(at::kFloat));
}

std::size_t extent_of(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                          static_cast<std::size_t>(tensor.element_size()));
}

/// The memory that the tensor spans, in the host's, when all work so far is done.
at::Tensor image_of(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor;
  const c10::DeviceGuard guard(tensor.device());
  const cudaStream_t stream = handle_of(current_stream(tensor.device()));
  const at::Tensor image = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  good(cudaMemcpyAsync(image.data_ptr(), tensor.data_ptr(), extent_of(tensor), cudaMemcpyDeviceToHost, stream));
  good(cudaStreamSynchronize(stream));
  return image;
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.numel() == 0) return to;
  const at::Tensor image = image_of(to);
  image.copy_(image_of(from));
  if (!to.is_cuda()) return to;
  const c10::DeviceGuard guard(to.device());
  good(cudaMemcpyAsync(to.data_ptr(), image.data_ptr(), extent_of(to), cudaMemcpyHostToDevice,
                       handle_of(current_stream(to.device()))));
  return to;
}
at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return at::Tensor(to).copy_(from);
}
const at::Tensor& resize(const at::Tensor& tensor, Sizes sizes, Maybe<at::MemoryFormat>) {
  TORCH_CHECK(tensor.sizes() == sizes || tensor.numel() == 0, "not for these tests");
  if (tensor.sizes() != sizes) at::Tensor(tensor).set_(at::empty(sizes, tensor.options()));
  return tensor;
}
at::Tensor& set(at::Tensor& tensor, at::Storage storage, std::int64_t offset, Sizes sizes, Sizes strides) {
  c10::TensorImpl& own = *tensor.unsafeGetTensorImpl();
  own.set_storage_keep_dtype(std::move(storage));
  own.set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}
at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& other) {
  return set(tensor, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}
at::Tensor as_strided(const at::Tensor& tensor, Sizes sizes, Sizes strides, Maybe<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}
at::Tensor view(const at::Tensor& tensor, Sizes sizes) { return at::native::view(tensor, sizes); }
void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

c10::Stream duet_test::new_stream(const c10::Device& device) {
  const c10::DeviceGuard guard(device);
  cudaStream_t made = nullptr;
  good(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, 0));
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(made));
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("_copy_from_and_resize", &copy_and_resize);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
}
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}
