// Concatenation along dimension 1.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

constexpr const char* kConcat = "concat";

/// Copies the rows of `part` into those of `whole`, from byte `offset` of each row on, or back. Of one layout, blocked
/// or not, a row of the whole is the rows of its parts one after the other.
void copy_rows(const Tensor& part, const Tensor& whole, std::size_t offset, bool back) {
  if (part.count() == 0) return;
  const auto rows = static_cast<std::size_t>(part.size(0));
  const std::size_t width = part.bytes() / rows, pitch = whole.bytes() / rows;
  auto* const inside = static_cast<std::byte*>(whole.raw()) + offset;
  if (back) {
    backend(whole).copy_2d(part.raw(), width, inside, pitch, width, rows, whole.device());
  } else {
    backend(whole).copy_2d(inside, pitch, part.raw(), width, width, rows, whole.device());
  }
}

struct ConcatGradient {
  static constexpr const char* kName = kConcat;
  static constexpr bool kLinear = true;
  void backward(const Gradients& g) const {
    const Tensor& dy = g.outputs[0];
    std::size_t offset = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (g.wanted(i)) copy_rows(g.place(i, shapes[i], dy.device(), dy.layout()), dy, offset, true);
      offset += static_cast<std::size_t>(shapes[i].count_from(1)) * sizeof(float);
    }
  }
  PooledVector<Shape> shapes;
};

/// Throws ShapeError unless the part fits to the first one.
void require_part(const Variable& part, const Variable& first, std::size_t number) {
  require_floats(kConcat, part);
  bool fits = part.shape().rank() >= 2 && part.shape().rank() == first.shape().rank();
  for (int d = 0; fits && d < part.shape().rank(); ++d) fits = d == 1 || part.shape()[d] == first.shape()[d];
  require<ShapeError>(fits, kConcat, ": part ", number, " is ", part.shape(), ", expected ", first.shape(),
                      " but for dimension 1");
}

}  // namespace

Variable concat(std::span<const Variable> parts) {
  require<ShapeError>(!parts.empty(), kConcat, ": got no parts, expected 1 or more");
  for (const Variable& part : parts) {
    if (const auto device = device_to_share(kConcat, {&part, &parts[0]})) {
      PooledVector<Variable> shared;
      for (const Variable& one : parts) shared.push_back(on(*device, one));
      return concat(std::span<const Variable>(shared));
    }
  }
  std::int64_t channels = 0;
  bool one_layout = true;
  const Variable* batch = &parts[0];  // the first that belongs to one
  for (std::size_t i = 0; i < parts.size(); ++i) {
    require_part(parts[i], parts[0], i);
    if (!batch->value().stamp().known()) batch = &parts[i];
    require_same_rows(kConcat, batch->value().stamp(), parts[i].value().stamp());
    channels += parts[i].shape()[1];
    one_layout = one_layout && parts[i].value().layout() == parts[0].value().layout();
  }
  const Layout layout = one_layout ? parts[0].value().layout() : Layout::plain;
  const Tensor y = result_of(*batch, parts[0].shape().with(1, channels), layout);
  PooledVector<Variable> inputs;
  PooledVector<const Variable*> places;
  PooledVector<Shape> shapes;
  std::size_t offset = 0;
  for (const Variable& part : parts) {
    inputs.push_back(to_layout(part, layout));
    shapes.push_back(part.shape());
    copy_rows(inputs.back().value(), y, offset, false);
    offset += static_cast<std::size_t>(part.shape().count_from(1)) * sizeof(float);
  }
  for (const Variable& input : inputs) places.push_back(&input);
  return record(y, std::span<const Variable* const>(places), [&] { return ConcatGradient{std::move(shapes)}; });
}

}  // namespace duet::ops
