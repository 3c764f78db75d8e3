#include "lib/tensor.h"

#include <array>
#include <iterator>
#include <map>
#include <ostream>
#include <utility>

#include "lib/pool.h"

namespace duet {

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) append(size);
}

void Shape::append(std::int64_t size) {
  require<ShapeError>(rank_ < kMaxRank, "a shape has at most ", kMaxRank, " dimensions");
  require<ShapeError>(size >= 0, "dimension ", rank_, " of a shape is ", size, ", expected 0 or more");
  sizes_[static_cast<std::size_t>(rank_++)] = size;
}

std::int64_t Shape::operator[](int d) const {
  const int at = d < 0 ? d + rank_ : d;
  require<ShapeError>(at >= 0 && at < rank_, "dimension ", d, " asked of shape ", *this);
  return sizes_[static_cast<std::size_t>(at)];
}

Shape Shape::with(int d, std::int64_t size) const {
  Shape changed = *this;
  const int at = d < 0 ? d + rank_ : d;
  require<ShapeError>(at >= 0 && at < rank_ && size >= 0, "cannot set dimension ", d, " of shape ", *this, " to ",
                      size);
  changed.sizes_[static_cast<std::size_t>(at)] = size;
  return changed;
}

std::int64_t Shape::count() const { return count_from(0); }

std::int64_t Shape::count_from(int d) const {
  std::int64_t product = 1;
  for (int i = d; i < rank_; ++i) product *= sizes_[static_cast<std::size_t>(i)];
  return product;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i) text += ", ";
    text += std::to_string(sizes_[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

namespace {

struct TypeRow {
  const char* name;
  std::size_t size;
  bool floating;
};

/// The row of a DType; the last one for any other number, which a peer may have sent.
const TypeRow& row_of(DType dtype) {
  static constexpr TypeRow kRows[] = {{"f32", 4, true}, {"f64", 8, true}, {"i32", 4, false}, {"i64", 8, false},
                                      {"u8", 1, false}, {"f16", 2, true}, {"bf16", 2, true}, {"?", 0, false}};
  return kRows[std::min(static_cast<std::size_t>(dtype), std::size(kRows) - 1)];
}

}  // namespace

std::size_t size_of(DType dtype) { return row_of(dtype).size; }
const char* name(DType dtype) { return row_of(dtype).name; }
bool is_floating(DType dtype) { return row_of(dtype).floating; }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

const char* name(Layout layout) {
  constexpr std::array kNames = {"plain", "blocked8", "blocked16"};
  return kNames.at(static_cast<std::size_t>(layout));
}

Storage::Storage(Device device, std::size_t bytes)
    : device_(device), data_(allocator(device).allocate(bytes)), bytes_(bytes), owned_(true) {}

Storage::Storage(Device device, void* borrowed, std::size_t bytes)
    : device_(device), data_(borrowed), bytes_(bytes), owned_(false) {}

Storage::Storage(Device device, std::shared_ptr<Storage> base)
    : device_(device),
      data_(nullptr),
      bytes_(base->bytes()),
      owned_(false),
      base_(std::move(base)),
      model_(base_->model_),
      versions_(base_->versions_) {}

Storage::Storage(std::shared_ptr<Storage> base, std::shared_ptr<const Storage> model)
    : device_(base->device()),
      data_(nullptr),
      bytes_(base->bytes()),
      owned_(false),
      base_(std::move(base)),
      model_(std::move(model)) {}

Storage::~Storage() {
  if (owned_) allocator(device_).release(data_, bytes_);
}

void Storage::move_to(std::shared_ptr<Storage> memory) {
  require<DeviceError>(memory->device().kind == device_.kind && memory->bytes() == bytes_, bytes_, " bytes on ",
                       device_, " cannot move to ", memory->bytes(), " bytes on ", memory->device());
  allocator(device_).copy(memory->data(), device_, data(), device_, bytes_);
  if (std::exchange(owned_, false)) allocator(device_).release(data_, bytes_);
  data_ = nullptr;
  base_ = std::move(memory);
}

int Rows::dimension(const Shape& shape) const {
  if (stamped()) return shape.rank() > 0 ? 0 : -1;
  std::int64_t before = 1;
  for (int d = 0; known() && d < shape.rank(); before *= shape[d++])
    if (before == outer && (samples > 0 ? shape[d] % samples == 0 : shape[d] == 0)) return d;
  return -1;
}

/// Whether a tensor of this shape has parts of a sample only.
bool Rows::cuts_samples(const Shape& shape) const {
  return outer == 0 && (shape.rank() == 0 || first % per_sample != 0 || shape[0] % per_sample != 0);
}

/// Of a tensor of shape `shape` that is (before, count samples, rest) in the order of its elements.
Rows Rows::placed(std::int64_t before, std::int64_t count, const Shape& shape) const {
  Rows stamp = *this;
  const std::int64_t rows = shape.rank() > 0 ? shape[0] : 0;
  const bool scales = before == 1 && (count > 0 ? rows >= count && rows % count == 0 : rows == 0);
  if (before == 0) return {};
  stamp.per_sample = scales && count > 0 ? rows / count : 1;
  stamp.outer = scales ? 0 : before;
  stamp.samples = scales ? 0 : count;
  stamp.first = first / per_sample * stamp.per_sample;
  stamp.global = global / per_sample * stamp.per_sample;
  return stamp;
}

Rows Rows::reshaped(const Shape& from, const Shape& to) const {
  if (from.rank() > 0 && to.rank() > 0 && stamped() && to[0] == from[0]) return *this;
  return cuts_samples(from) || to.rank() == 0 ? Rows{} : placed(std::max<std::int64_t>(outer, 1), samples_in(from), to);
}

Rows Rows::moved(const Shape& from, const Shape& to, int d) const {
  if (!known() || d < 0 || d >= to.rank()) return {};
  if (stamped() && d == 0) return *this;
  if (cuts_samples(from)) return {};
  std::int64_t before = 1;
  for (int i = 0; i < d; ++i) before *= to[i];
  return placed(before, samples_in(from), to);
}

Tensor::Tensor(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype, Layout layout)
    : storage_(std::move(storage)), offset_(offset), shape_(shape), dtype_(dtype), layout_(layout) {
  require<ShapeError>(offset_ + bytes() <= storage_->bytes(), "a tensor of shape ", shape, " and dtype ", name(dtype),
                      " at byte ", offset_, " does not fit into ", storage_->bytes(), " bytes");
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  require<ShapeError>(shape_.rank() > 0 && 0 <= begin && begin <= end && end <= shape_[0], "rows ", begin, " to ", end,
                      " asked of shape ", shape_);
  const std::size_t row_bytes = static_cast<std::size_t>(shape_.count_from(1)) * size_of(dtype_);
  Tensor view = *this;
  view.shape_ = shape_.with(0, end - begin);
  view.offset_ = offset_ + static_cast<std::size_t>(begin) * row_bytes;
  if (stamp_.stamped()) view.stamp_.first += begin;
  if (stamp_.outer > 0) view.stamp_ = stamp_.moved(shape_, view.shape_, stamp_.dimension(shape_));
  return view;
}

Tensor Tensor::reshape(const Shape& shape) const {
  require<ShapeError>(layout_ == Layout::plain && shape.count() == count(), "cannot view shape ", shape_, " in layout ",
                      name(layout_), " as shape ", shape);
  Tensor view = *this;
  view.shape_ = shape;
  if (stamp_.known()) view.stamp_ = stamp_.reshaped(shape_, shape);
  return view;
}

Tensor Tensor::slice(std::int64_t begin, const Shape& shape) const {
  require<ShapeError>(begin >= 0 && begin + shape.count() <= count(), "elements ", begin, " to ", begin + shape.count(),
                      " asked of shape ", shape_);
  return Tensor(storage_, offset_ + static_cast<std::size_t>(begin) * size_of(dtype_), shape, dtype_);
}

Tensor Tensor::reinterpret(std::int64_t begin, const Shape& shape, DType dtype) const {
  const auto end = begin + shape.count() * static_cast<std::int64_t>(size_of(dtype));
  require<ShapeError>(begin >= 0 && end <= static_cast<std::int64_t>(bytes()), "bytes ", begin, " to ", end,
                      " asked of a tensor of ", bytes());
  return Tensor(storage_, offset_ + static_cast<std::size_t>(begin), shape, dtype);
}

Tensor Tensor::to(Device device) const {
  if (this->device() == device) return *this;
  Tensor moved = empty(shape_, dtype_, device, layout_);
  copy(*this, moved);
  moved.stamp_ = stamp_;
  return moved;
}

Tensor Tensor::alias(Device device) const {
  const Device own = this->device();
  if (own == device) return *this;
  require<DeviceError>(own.kind == DeviceKind::cpu && device.kind == DeviceKind::cpu, own, " and ", device,
                       " do not share memory");
  Tensor same = *this;
  same.storage_ = make_pooled<Storage>(device, storage_);
  return same;
}

Tensor Tensor::with_own_version(const Tensor& model) const {
  Tensor same = *this;
  same.storage_ = make_pooled<Storage>(storage_, model.storage_);
  return same;
}

Tensor Tensor::clone() const {
  Tensor fresh = empty(shape_, dtype_, device(), layout_);
  copy(*this, fresh);
  fresh.stamp_ = stamp_;
  return fresh;
}

Tensor empty(const Shape& shape, DType dtype, Device device, Layout layout) {
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  return Tensor(make_pooled<Storage>(device, bytes), 0, shape, dtype, layout);
}

Tensor zeros(const Shape& shape, DType dtype, Device device) {
  Tensor tensor = empty(shape, dtype, device);
  if (tensor.bytes() > 0) allocator(device).clear(tensor.raw(), tensor.bytes());
  return tensor;
}

Tensor borrow(void* data, const Shape& shape, DType dtype, Device device) {
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  return Tensor(make_pooled<Storage>(device, data, bytes), 0, shape, dtype);
}

void copy(const Tensor& source, const Tensor& destination) {
  require<ShapeError>(source.shape() == destination.shape() && source.dtype() == destination.dtype() &&
                          source.layout() == destination.layout(),
                      "cannot copy ", source.shape(), " ", name(source.dtype()), " ", name(source.layout()), " to ",
                      destination.shape(), " ", name(destination.dtype()), " ", name(destination.layout()));
  const Device from = source.device(), to = destination.device();
  destination.bump_version();
  allocator(to.kind == DeviceKind::cpu ? from : to).copy(destination.raw(), to, source.raw(), from, source.bytes());
}

std::string without_wrappers(const std::string& name) {
  constexpr std::string_view kWrapper = "module.";
  std::string inner = name;
  for (std::size_t at = 0; (at = inner.find(kWrapper, at)) != std::string::npos;) {
    if (at == 0 || inner[at - 1] == '.')
      inner.erase(at, kWrapper.size());
    else
      at += kWrapper.size();
  }
  return inner;
}

namespace {

bool fits(const Tensor& from, const Tensor& into) {
  return from.shape() == into.shape() && from.dtype() == into.dtype();
}

/// Finds tensors of one side by the names of the other.
class Names {
 public:
  Names(const NamedTensors& from, const NamedTensors& into) {
    const auto without_doubles = [this](const NamedTensors& all) { return by_name(all).size() == all.size(); };
    inner_ = without_doubles(from) && without_doubles(into);
    from_ = by_name(from);
    into_ = by_name(into);
  }
  /// Null where there is none.
  const Tensor* in_from(const std::string& name) const { return find(from_, name); }
  const Tensor* in_into(const std::string& name) const { return find(into_, name); }
  /// For errors about a name that is missing.
  const char* how_compared() const {
    return inner_ ? "" : "; one of the two has names that differ by \"module.\" only, so names must be equal";
  }

 private:
  using ByName = std::map<std::string, const Tensor*>;
  ByName by_name(const NamedTensors& all) const {
    ByName found;
    for (const auto& [name, tensor] : all) found[key(name)] = &tensor;
    return found;
  }
  std::string key(const std::string& name) const { return inner_ ? without_wrappers(name) : name; }
  const Tensor* find(const ByName& all, const std::string& name) const {
    const auto found = all.find(key(name));
    return found == all.end() ? nullptr : found->second;
  }

  bool inner_ = true;
  ByName from_, into_;
};

}  // namespace

void copy_by_name(const NamedTensors& from, const NamedTensors& into, const std::string& source) {
  const Names names(from, into);
  for (const auto& [name, tensor] : into) {
    const Tensor* const match = names.in_from(name);
    if (match == nullptr && is_optional(name)) continue;
    require<DataError>(match != nullptr, source, " is of another model: it has no tensor \"", name, "\"",
                       names.how_compared());
    require<DataError>(fits(*match, tensor), source, " is of another model: \"", name, "\" is ", match->dtype(),
                       match->shape(), ", expected ", tensor.dtype(), tensor.shape(),
                       match->shape() == tensor.shape() ? "; convert its numbers first, by .float() in PyTorch" : "");
  }
  for (const auto& [name, tensor] : from)
    require<DataError>(names.in_into(name) != nullptr, source, " is of another model: it has the tensor \"", name,
                       "\" that this one lacks", names.how_compared());
  for (const auto& [name, tensor] : into)
    if (const Tensor* const match = names.in_from(name)) copy(*match, tensor);
}

LeftOut copy_what_fits(const NamedTensors& from, const NamedTensors& into) {
  const Names names(from, into);
  LeftOut left;
  for (const auto& [name, tensor] : into) {
    const Tensor* const match = names.in_from(name);
    if (match != nullptr && fits(*match, tensor))
      copy(*match, tensor);
    else
      left.kept.push_back(name);
  }
  for (const auto& [name, tensor] : from) {
    const Tensor* const own = names.in_into(name);
    if (own == nullptr || !fits(tensor, *own)) left.unused.push_back(name);
  }
  return left;
}

}  // namespace duet
