#include "lib/backend/backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/step_graph.h"
#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet {
namespace {

struct CudaModule {
  Backend* backend = nullptr;
  std::string error;
};

CudaModule find_cuda() {
  const LoadedModule module = load_module({.title = "the CUDA module",
                                           .file = "libduet_cuda.so",
                                           .build_folder = "lib/backend/cuda",
                                           .symbol = kCudaBackendName,
                                           .path_variable = "DUET_CUDA_MODULE"});
  if (module.symbol == nullptr) return {nullptr, module.error};
  try {
    return {reinterpret_cast<CudaBackendEntry>(module.symbol)(), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

/// Decided once: a machine's driver and GPUs do not appear while a program runs. Never destroyed: tensors in static
/// storage may outlive it.
const CudaModule& cuda_module() {
  static const auto* const result = new CudaModule(find_cuda());
  return *result;
}

std::atomic<bool> parts_are_timed{false};

}  // namespace

const char* name(Precision precision) {
  constexpr std::array kNames = {"fp32", "tf32", "bf16"};
  return kNames.at(static_cast<std::size_t>(precision));
}

Backend& backend(DeviceKind kind) {
  if (kind == DeviceKind::cuda) {
    require<DeviceError>(cuda_module().backend != nullptr, "no CUDA device: ", cuda_module().error);
    return *cuda_module().backend;
  }
  // Never destroyed: tensors in static storage may outlive any order of destructors.
  static auto* const cpu = new cpu::CpuBackend();
  return *cpu;
}

void TimedParts::turn_on() { parts_are_timed.store(true, std::memory_order_relaxed); }

void TimedParts::end_part(std::span<const Device> devices) {
  if (!parts_are_timed.load(std::memory_order_relaxed)) return;
  for (const Device device : devices) backend(device.kind).synchronize(device);
}

Tensor in_layout(const Tensor& x, Layout layout) {
  if (x.layout() == layout) return x;
  if (x.layout() != Layout::plain && layout != Layout::plain) return in_layout(in_layout(x, Layout::plain), layout);
  Tensor y = empty(x.shape(), DType::f32, x.device(), layout);
  y.set_stamp(x.stamp());
  if (layout == Layout::plain) {
    backend(x).to_plain(x, y);
  } else {
    backend(x).from_plain(x, y);
  }
  return y;
}

Strided broadcast(const Tensor& tensor, const Shape& shape) {
  Strided strided{.tensor = tensor};
  if (!tensor.defined()) return strided;
  const int missing = shape.rank() - tensor.shape().rank();
  for (int d = tensor.shape().rank() - 1; d >= 0; --d)
    if (tensor.size(d) != 1) strided.strides[static_cast<std::size_t>(d + missing)] = tensor.shape().count_from(d + 1);
  return strided;
}

Walk walk_of(const Shape& shape, std::initializer_list<const Strided*> tensors) {
  static_assert(Walk::kLoops == Shape::kMaxRank);
  Walk walk{.loops = 0};
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1) continue;
    const int outer = walk.loops - 1;
    bool joins = outer >= 0;
    const auto stride = [&](const Strided* tensor) { return tensor->strides[static_cast<std::size_t>(d)]; };
    for (int t = 0; const Strided* tensor : tensors)
      joins = joins && walk.strides[t++][outer] == stride(tensor) * shape[d];
    const int loop = joins ? outer : walk.loops++;
    walk.sizes[loop] = joins ? walk.sizes[loop] * shape[d] : shape[d];
    for (int t = 0; const Strided* tensor : tensors) walk.strides[t++][loop] = stride(tensor);
  }
  if (walk.loops == 0) {
    walk.loops = 1;
    walk.sizes[0] = 1;
  }
  return walk;
}

std::string why_no_cuda() { return cuda_module().error; }

Allocator& allocator(Device device) { return backend(device.kind).allocator(device); }

int recording_of(Device device) {
  const StepRecorder* const recorder = backend(device.kind).recorder(device);
  return recorder != nullptr ? recorder->recording() : 0;
}

void require_rows_of_batch(const Rows& stamp, std::int64_t rows) {
  require<UsageError>(!stamp.stamped() || (stamp.first >= 0 && stamp.first + rows <= stamp.global), "a tensor of ",
                      rows, " rows has the stamp of rows from ", stamp.first, " on of a batch of ", stamp.global,
                      ", so sums over the batch would leave some out: a batch that was augmented or concatenated is "
                      "one of its own, set_stamp({})");
}

Blocks blocks_of(const Rows& stamp, std::int64_t rows) {
  Blocks blocks;
  const std::int64_t global = stamp.stamped() ? stamp.global : rows;
  const std::int64_t first = stamp.stamped() ? stamp.first : 0;
  require_rows_of_batch(stamp, rows);
  std::array<int, kMostBlocks> leaf_of_block{};
  const int shift = std::countr_zero(static_cast<unsigned>(stamp.blocks));
  for (int i = 0; i < stamp.blocks; ++i) {
    const std::int64_t begin = std::max((i * global) >> shift, first);  // block_begin() without divisions
    const std::int64_t end = std::min(((i + 1) * global) >> shift, first + rows);
    leaf_of_block[static_cast<std::size_t>(i)] = begin < end ? blocks.leaf_count : -1;
    if (begin >= end) continue;
    const auto at = 2 * static_cast<std::size_t>(blocks.leaf_count++);
    blocks.ranges[at] = begin - first;
    blocks.ranges[at + 1] = end - first;
  }
  if (blocks.leaf_count == 0) blocks.leaf_count = 1;
  const auto leaf = [&](int low, int high) {
    return high - low == 1 ? leaf_of_block[static_cast<std::size_t>(low)] : -1;
  };
  add_by_tree(0, stamp.blocks, leaf, [&](int to, int from) {
    const auto at = 2 * static_cast<std::size_t>(blocks.addition_count++);
    blocks.additions[at] = to;
    blocks.additions[at + 1] = from;
  });
  blocks.add_zero = global < stamp.blocks;
  return blocks;
}

}  // namespace duet
