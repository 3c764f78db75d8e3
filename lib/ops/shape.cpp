// Sums and means over dimensions; other shapes of the same elements, and parts of them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "lib/base/recovery.h"
#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

template <bool kMean>
struct SumGradient {
  static constexpr const char* kName = kMean ? "mean" : "sum";
  static constexpr bool kLinear = true, kSums = true, kAdds = !kMean;
  void backward(const Gradients& g) const {
    const Tensor dy = g.outputs[0].reshape(summed), dx = g.place(0, own, dy.device()).reshape(shape);
    backend(dy).pointwise(Pointwise::mul, shape, {broadcast(dy, shape), {}, {}, factor}, broadcast(dx, shape));
  }
  Shape own, shape, summed;  // of the argument; as below
  float factor = 1;
};

template <bool kMean>
Variable sum_over(const Variable& input, std::span<const int> dims, bool keepdim) {
  constexpr const char* kOp = SumGradient<kMean>::kName;
  require_floats(kOp, input);
  const Variable x = to_plain(input);
  std::array<bool, Shape::kMaxRank> over{};
  over.fill(dims.empty());
  for (const int d : dims) {
    bool& chosen = over[static_cast<std::size_t>(dimension_of(kOp, x.shape(), d))];
    require<ShapeError>(!chosen, kOp, ": got dimension ", d, " of shape ", x.shape(), " twice, expected once");
    chosen = true;
  }
  // That of x, of one element a vector; with dimensions of size 1 for those that are added up; without these.
  Shape shape = x.shape(), summed, kept;
  for (int d = 0; d < shape.rank(); ++d) {
    const bool adds = over[static_cast<std::size_t>(d)];
    summed.append(adds ? 1 : shape[d]);
    if (!adds || keepdim) kept.append(summed[d]);
  }
  if (shape.rank() == 0) shape = summed = {1};
  const bool over_rows = over[0];
  Tensor y = empty(kept, DType::f32, x.device());
  const int samples = x.value().stamp().dimension(x.shape());
  const auto before = over.begin() + std::max(samples, 0);
  const int place = keepdim ? samples : samples - static_cast<int>(std::count(over.begin(), before, true));
  if (samples >= 0 && !*before) y.set_stamp(x.value().stamp().moved(x.shape(), kept, place));
  backend(y).sum(x.value().reshape(shape), over_rows, y.reshape(summed));
  const std::int64_t terms = summed.count() == 0 ? 1 : shape.count() / summed.count();
  const float factor = kMean ? 1 / static_cast<float>(terms) : 1;
  if (kMean) backend(y).scale(y, factor);
  return record(y, {&x}, [&] { return SumGradient<kMean>{x.shape(), shape, summed, factor}; });
}

template <bool kFlatten>
struct ReshapeGradient {
  static constexpr const char* kName = kFlatten ? "flatten" : "reshape";
  static constexpr bool kLinear = true, kIsView = true;
  void backward(const Gradients& g) const { g.inputs[0] = g.outputs[0].reshape(shape); }
  Shape shape;
};

template <bool kFlatten>
Variable reshaped(const Variable& x, const Shape& shape) {
  return record(x.value().reshape(shape), {&x}, [&] { return ReshapeGradient<kFlatten>{x.shape()}; });
}

/// Elements of the argument in another order, or a part of them: those at the places of `view`, which has no tensor.
template <bool kPart>
struct ViewGradient {
  static constexpr const char* kName = kPart ? "slice" : "transpose";
  static constexpr bool kLinear = true, kIsView = true;
  void backward(const Gradients& g) const {
    const Tensor& dy = g.outputs[0];
    const Tensor& dx = g.place(0, own, dy.device());
    if (kPart) backend(dx).fill(dx, 0);
    Strided to = view;
    to.tensor = dx;
    backend(dy).pointwise(Pointwise::copy, dy.shape(), {broadcast(dy, dy.shape()), {}, {}}, to);
  }
  Shape own;
  Strided view;
};

/// Puts the result y on the tape, which has `view` of x.
template <bool kPart>
Variable record_view(const Tensor& y, const Variable& x, Strided view) {
  view.tensor = {};
  return record(y, {&x}, [&] { return ViewGradient<kPart>{x.shape(), view}; });
}

}  // namespace

void require_same_rows(const char* op, const Rows& a, const Rows& b) {
  if (!a.known() || !b.known() || (a.first == b.first && a.global == b.global && a.outer == b.outer)) return;
  static std::atomic<bool> said{false};
  report_dependence(said, [&] {
    return duet::concat(op, ": one argument has rows from ", a.first, " on of the ", a.global,
                        " of a batch, another one from ", b.first, " on of ", b.global, ", expected the same rows");
  });
}

void require_blocks(const char* op, std::span<const Variable* const> inputs) {
  static std::atomic<bool> said{false};
  const auto cuts_blocks = [](const Variable* x) {
    if (!x->defined() || !x->value().stamp().known() || x->value().stamp().keeps_blocks()) return false;
    const Rows& stamp = x->value().stamp();
    return x->device().kind == DeviceKind::cpu && stamp.samples_in(x->shape()) * stamp.per_sample != stamp.global;
  };
  const auto part = std::ranges::find_if(inputs, cuts_blocks);
  if (part == inputs.end()) return;
  for (const Variable* const x : inputs)
    if (auto* const leaf = x->defined() ? dynamic_cast<Leaf*>(x->edge().node.get()) : nullptr; leaf && leaf->listener())
      report_dependence(said, [&] {
        return duet::concat(op, ": the gradient of ", leaf->name(), " is a sum over an input ", (*part)->shape(),
                            " whose dimension 0 does not hold the batch's samples in whole blocks");
      });
}

Variable sum(const Variable& x, std::span<const int> dims, bool keepdim) { return sum_over<false>(x, dims, keepdim); }
Variable mean(const Variable& x, std::span<const int> dims, bool keepdim) { return sum_over<true>(x, dims, keepdim); }

Variable reshape(const Variable& input, std::initializer_list<std::int64_t> sizes) {
  require_floats("reshape", input);
  const Variable x = to_plain(input);
  const auto refuse = [&](const char* why) {
    std::string asked;
    for (const std::int64_t size : sizes) asked += duet::concat(asked.empty() ? "" : ", ", size);
    throw ShapeError(duet::concat("reshape: ", x.shape(), " to [", asked, "]", why));
  };
  std::int64_t known = 1, unknown = 0;
  for (const std::int64_t size : sizes) {
    unknown += size == -1;
    if (size != -1) known *= size;
  }
  if (unknown > 1 || (unknown == 1 && known == 0)) refuse(", expected one -1 at most, and no 0 beside it");
  Shape shape;
  for (const std::int64_t size : sizes) shape.append(size == -1 ? x.value().count() / known : size);
  if (shape.count() != x.value().count()) refuse(", expected equally many elements");
  return reshaped<false>(x, shape);
}

Variable flatten(const Variable& input) {
  require_floats("flatten", input);
  require<ShapeError>(input.shape().rank() >= 1, "flatten: got a scalar, expected (N, ...)");
  return reshaped<true>(to_plain(input), {input.shape()[0], input.shape().count_from(1)});
}

Variable transpose(const Variable& input, int first, int second) {
  require_floats("transpose", input);
  const Variable x = to_plain(input);
  const int a = dimension_of("transpose", x.shape(), first), b = dimension_of("transpose", x.shape(), second);
  const Shape shape = x.shape().with(a, x.shape()[b]).with(b, x.shape()[a]);
  Strided view = broadcast(x.value(), x.shape());
  std::swap(view.strides[static_cast<std::size_t>(a)], view.strides[static_cast<std::size_t>(b)]);
  Tensor y = empty(shape, DType::f32, x.device());
  const int samples = x.value().stamp().dimension(x.shape());
  y.set_stamp(x.value().stamp().moved(x.shape(), shape, samples == a ? b : samples == b ? a : samples));
  backend(y).pointwise(Pointwise::copy, shape, {view, {}, {}}, broadcast(y, shape));
  return record_view<false>(y, x, view);
}

Variable slice(const Variable& input, int dimension, std::int64_t begin, std::int64_t end) {
  require_floats("slice", input);
  const Variable x = to_plain(input);
  const int d = dimension_of("slice", x.shape(), dimension);
  require<ShapeError>(0 <= begin && begin <= end && end <= x.shape()[d], "slice: ", begin, " to ", end,
                      " in dimension ", d, " of shape ", x.shape(), ", expected 0 to ", x.shape()[d]);
  Strided view = broadcast(x.value(), x.shape());
  view.begin = begin * x.shape().count_from(d + 1);
  if (d == 0) return record_view<true>(x.value().rows(begin, end), x, view);
  const Shape shape = x.shape().with(d, end - begin);
  const Tensor y = result_of(x, shape);
  backend(y).pointwise(Pointwise::copy, shape, {view, {}, {}}, broadcast(y, shape));
  return record_view<true>(y, x, view);
}

}  // namespace duet::ops
