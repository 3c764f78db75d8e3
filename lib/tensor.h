// Tensors: a shared block of memory on one device, a shape, an element type and a layout; tensors with names; and the
// stamp of a batch: which rows of which global batch a tensor holds.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/blocks.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/half.h"

namespace duet {

/// Sizes of a tensor, outermost first: (N, C, H, W). A rank of 0 is a scalar with one element.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  /// Throws ShapeError past kMaxRank sizes or for a negative size.
  Shape(std::initializer_list<std::int64_t> sizes);

  int rank() const { return rank_; }
  /// Size of dimension `d`; negative `d` counts from the end. Throws ShapeError out of range.
  std::int64_t operator[](int d) const;
  /// A copy with dimension `d` replaced.
  Shape with(int d, std::int64_t size) const;
  void append(std::int64_t size);
  /// Product of all sizes.
  std::int64_t count() const;
  /// Product of the sizes after the first `d`.
  std::int64_t count_from(int d) const;
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }

  bool operator==(const Shape& other) const;
  /// "[4, 1, 28, 28]".
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// Rows [first, first + n) of the global batch number `step`, which has `global` rows in all, where n is the tensor's
/// own first dimension. The loader stamps each batch, scatter and row slices narrow the stamp, operators pass it on:
/// so that dropout uses the rows' numbers and sums over samples their blocks, on any device.
struct Rows {
  std::int64_t step = 0;
  std::int64_t first = 0;
  std::int64_t global = 0;  // 0: not stamped; the tensor is its own global batch
  int shards = 1;           // ranks among which a sampler divided the global batch
  /// Hash of the order of samples from which the batch was cut, and of the data set, for comparison between ranks; 0:
  /// unknown. Where shards is 1, one rank's part of an order, which no other rank has. Equality leaves it out.
  std::uint64_t order = 0;
  /// Differs from that of every other batch that loaders of this process have delivered; 0: of no loader. It is no part
  /// of where the rows lie: equality leaves it out.
  std::uint64_t delivery = 0;
  int blocks = kBlocks;  // of the global batch: see lib/blocks.h
  bool owned = false;    // each rank has whole blocks: see Note [Owners] there
  /// Rows for each sample of the batch: 2 in a (2N, 4) that was (N, 8). `first` and `global` count such rows.
  std::int64_t per_sample = 1;
  /// Above 0: dimension 0 does not hold the samples. In the order of its elements the tensor is (outer, samples, rest),
  /// as a (T, N, C) that was (N, T, C) is, and `first` and `global` count samples.
  std::int64_t outer = 0, samples = 0;

  /// Whether the tensor belongs to a batch; whether its rows are those of the batch, or equal parts of these.
  bool known() const { return global > 0; }
  bool stamped() const { return known() && outer == 0; }
  /// Whether a tensor of a part of the batch adds up its rows by the blocks of the batch.
  bool keeps_blocks() const { return stamped() && (per_sample == 1 || global / per_sample % blocks == 0); }
  /// The samples of a tensor with this stamp and shape, and the dimension that they lie in; -1: in none.
  std::int64_t samples_in(const Shape& shape) const { return outer > 0 ? samples : shape[0] / per_sample; }
  int dimension(const Shape& shape) const;
  /// The stamp of the same elements in the same order in another shape.
  Rows reshaped(const Shape& from, const Shape& to) const;
  /// The stamp of a tensor of shape `to` with the samples of this one in dimension `d`; none if d < 0.
  Rows moved(const Shape& from, const Shape& to, int d) const;
  bool operator==(const Rows& other) const {
    return step == other.step && first == other.first && global == other.global && shards == other.shards &&
           blocks == other.blocks && per_sample == other.per_sample && outer == other.outer && samples == other.samples;
  }

 private:
  bool cuts_samples(const Shape& shape) const;
  Rows placed(std::int64_t before, std::int64_t count, const Shape& shape) const;
};

/// f16 and bf16 are sent, reduced over ranks and stored; operators refuse them (ShapeError).
enum class DType { f32, f64, i32, i64, u8, f16, bf16 };
std::size_t size_of(DType dtype);
const char* name(DType dtype);
/// Whether it has fractions.
bool is_floating(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

constexpr DType dtype_of(const float*) { return DType::f32; }
constexpr DType dtype_of(const double*) { return DType::f64; }
constexpr DType dtype_of(const std::int32_t*) { return DType::i32; }
constexpr DType dtype_of(const std::int64_t*) { return DType::i64; }
constexpr DType dtype_of(const std::uint8_t*) { return DType::u8; }
constexpr DType dtype_of(const Float16*) { return DType::f16; }
constexpr DType dtype_of(const BFloat16*) { return DType::bf16; }
template <class T>
constexpr DType dtype_of() {
  return dtype_of(static_cast<const T*>(nullptr));
}

/// Order of the elements in memory. `plain` is row-major, outermost dimension first. `blockedN` holds (N, C, H, W) as
/// (N, C/N, H, W, N): the N channels of a block are adjacent; C is a multiple of N. Blocked tensors are made
/// and read by operators of the CPU backend only.
enum class Layout { plain, blocked8, blocked16 };
const char* name(Layout layout);

/// The memory interface of a device, which the backends implement (lib/backend). All functions are thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes` bytes, aligned to 64 or more. Throws DeviceError when there is no memory left.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Takes back what allocate(bytes) gave; keeps it for the next allocation of that size.
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  /// Returns the memory that is kept for later allocations to the system, as far as it can, and how many bytes that
  /// were (PyTorch: torch.cuda.empty_cache). Of a GPU nothing while a recorded step lives.
  virtual std::size_t empty_cache() = 0;
  /// Sets memory of this device to zero bytes, in order with the device's work.
  virtual void clear(void* memory, std::size_t bytes) = 0;
  /// Copies between memory of any two devices of which at least one is this allocator's, in the order of Note [Order]
  /// in lib/backend/backend.h; done when it returns if one of them is a CPU.
  virtual void copy(void* destination, Device to, const void* source, Device from, std::size_t bytes) = 0;
};

/// The allocator of a device. Throws DeviceError, with the reason, when there is no such device.
Allocator& allocator(Device device);

/// Memory of one device, released with the last tensor.
class Storage {
 public:
  /// Throws DeviceError when the device has no such memory.
  Storage(Device device, std::size_t bytes);
  /// Memory of `base`, which it keeps alive, under the name of another device that shares it; of the same version.
  Storage(Device device, std::shared_ptr<Storage> base);
  /// Memory of `base`, to whose versions those of `model` add up: see Tensor::with_own_version().
  Storage(std::shared_ptr<Storage> base, std::shared_ptr<const Storage> model);
  /// Memory that the caller owns and keeps alive.
  Storage(Device device, void* borrowed, std::size_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return base_ == nullptr ? data_ : base_->data(); }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// See Tensor::version().
  std::uint64_t version() const {
    return versions_.load(std::memory_order_relaxed) + (model_ != nullptr ? model_->version() : 0);
  }
  void bump_version() { versions_.fetch_add(1, std::memory_order_relaxed); }

  /// Moves what it holds to other memory, which it keeps alive: all tensors of this storage lie there from then on. No
  /// other thread may use them meanwhile. Throws DeviceError for memory of another kind of device, or of other size.
  void move_to(std::shared_ptr<Storage> memory);

 private:
  Device device_;
  void* data_;  // unless base_ is set
  std::size_t bytes_;
  bool owned_;
  std::shared_ptr<Storage> base_;
  std::shared_ptr<const Storage> model_;  // whose versions count here, too
  std::atomic<std::uint64_t> own_versions_{0};
  std::atomic<std::uint64_t>& versions_ = own_versions_;  // those of base_ in an alias of it
};

/// A handle: copies share the memory. Distinct handles may be used from distinct threads; writes to shared elements are
/// the callers' to order.
class Tensor {
 public:
  /// An undefined tensor: no memory, defined() is false.
  Tensor() = default;
  /// A view of all of `storage` from `offset` bytes on.
  Tensor(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype,
         Layout layout = Layout::plain);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  std::int64_t size(int d) const { return shape_[d]; }
  std::int64_t count() const { return shape_.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Layout layout() const { return layout_; }
  Device device() const { return storage_->device(); }
  /// Its memory, of which it may be a part.
  Storage& storage() const { return *storage_; }
  std::shared_ptr<const Storage> shared_storage() const { return storage_; }

  void* raw() const { return static_cast<std::byte*>(storage_->data()) + offset_; }
  /// The elements, in memory order. Throws ShapeError when T is not the dtype.
  template <class T>
  T* data() const {
    require<ShapeError>(dtype_of<T>() == dtype_, "tensor holds ", name(dtype_), ", asked for ", name(dtype_of<T>()));
    return static_cast<T*>(raw());
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(count())};
  }

  /// Rows [begin, end) of dimension 0, sharing memory; a stamp is narrowed. Throws ShapeError out of range.
  Tensor rows(std::int64_t begin, std::int64_t end) const;
  /// A view of the elements in another shape (plain layout only); the stamp scales with the rows.
  Tensor reshape(const Shape& shape) const;
  /// `count` elements from element `begin` on, as a tensor of shape `shape`.
  Tensor slice(std::int64_t begin, const Shape& shape) const;
  /// The bytes from byte `begin` on as a tensor of another shape and dtype.
  Tensor reinterpret(std::int64_t begin, const Shape& shape, DType dtype) const;
  /// A copy on `device`, or this tensor itself if it is there already.
  Tensor to(Device device) const;
  /// A tensor of `device` in this memory. Throws DeviceError unless the two devices share memory (cpu:0, cpu:1).
  Tensor alias(Device device) const;
  /// A copy in memory of its own.
  Tensor clone() const;

  const Rows& stamp() const { return stamp_; }
  Tensor& set_stamp(const Rows& stamp) {
    stamp_ = stamp;
    return *this;
  }
  /// The stamp, or for an unstamped tensor the stamp that makes it its own global batch.
  Rows stamp_or_self() const { return stamp_.stamped() ? stamp_ : Rows{stamp_.step, 0, shape_[0]}; }

  /// How often the elements were written by copy(), an optimizer or bump_version(); all views of one memory have one
  /// version. backward compares those of the tensors that it reads with the ones in forward
  /// (lib/autograd/saved_tensor.h). Thread-safe.
  std::uint64_t version() const { return storage_->version(); }
  /// Says that elements were written by other means, such as a kernel of one's own.
  void bump_version() const { storage_->bump_version(); }
  /// Returns a view with a version of its own, which also counts writes to `model` and to the memory around that;
  /// writes to the view do not count there.
  Tensor with_own_version(const Tensor& model) const;

  /// True when both are views of the same first element.
  bool same_memory(const Tensor& other) const { return defined() && other.defined() && raw() == other.raw(); }

 private:
  std::shared_ptr<Storage> storage_;
  std::size_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::f32;
  Layout layout_ = Layout::plain;
  Rows stamp_;
};

/// Uninitialised memory. Throws DeviceError when there is none.
Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = {}, Layout layout = Layout::plain);
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
/// A CPU tensor with these values, row-major. Throws ShapeError when their number does not fit.
template <class T>
Tensor from_values(const Shape& shape, const std::vector<T>& values) {
  Tensor tensor = empty(shape, dtype_of<T>());
  require<ShapeError>(static_cast<std::int64_t>(values.size()) == shape.count(), "got ", values.size(),
                      " values for shape ", shape);
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}
/// A plain tensor over memory of `device` that the caller keeps alive.
Tensor borrow(void* data, const Shape& shape, DType dtype, Device device = {});
/// Copies elements between tensors of the same shape, dtype and layout, on any devices.
void copy(const Tensor& source, const Tensor& destination);

/// A tensor under PyTorch's name: "conv1.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

/// Whether a state that lacks this tensor still fits: batch norms' count of batches, which early versions of PyTorch
/// and of duet did not keep.
inline bool is_optional(std::string_view name) { return name.ends_with("num_batches_tracked"); }

/// The name without the "module" that wrapped modules have in PyTorch: "features.0.weight" for
/// "module.features.module.0.weight".
std::string without_wrappers(const std::string& name);

/// Copies `from` into the memory of `into`, by their names without_wrappers(). Throws DataError that names `source` and
/// the first tensor that is missing, left over, or of another shape or dtype; then nothing was copied. Tensors that
/// is_optional() names may be missing, and stay. Where two tensors of one side differ by wrappers only, names must be
/// equal.
void copy_by_name(const NamedTensors& from, const NamedTensors& into, const std::string& source);

/// Names of tensors that copy_what_fits() left out.
struct LeftOut {
  std::vector<std::string> kept;    // in `into`, but missing in `from`, or there of another shape or dtype
  std::vector<std::string> unused;  // in `from`, but missing in `into`, or there of another shape or dtype
};
/// Copies what copy_by_name() would, but leaves out what does not fit, such as a classifier of other classes.
[[nodiscard]] LeftOut copy_what_fits(const NamedTensors& from, const NamedTensors& into);

}  // namespace duet
