// Functions of elements and sums over dimensions, for tensors of any strides; rows of tables.
#include <cstdint>

#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {
namespace {

const float* first_of(const Strided& x) { return x.tensor.defined() ? x.tensor.data<float>() + x.begin : nullptr; }

}  // namespace

void CudaBackend::pointwise(Pointwise f, const Shape& shape, const PointwiseInputs& inputs, const Strided& y) {
  const auto& [a, b, c, number] = inputs;
  same_device("pointwise", {{"a", a.tensor}, {"b", b.tensor}, {"c", c.tensor}, {"y", y.tensor}});
  CudaDevice& device = on(y.tensor);
  if (shape.count() == 0) return;
  const Walk walk = walk_of(shape, {&a, &b, &c, &y});
  to_int(shape.count() / walk.sizes[0], "elements of an outer loop");
  kernels::pointwise(f, walk, {first_of(a), first_of(b), first_of(c), number}, y.tensor.data<float>() + y.begin,
                     device.stream());
}

void CudaBackend::sum(const Tensor& x, bool over_rows, const Tensor& y) {
  same_device("sum", {{"x", x}, {"y", y}});
  CudaDevice& device = on(x);
  if (y.count() == 0) return;
  if (x.count() == 0) return kernels::fill(y.data<float>(), 0, y.count(), device.stream());
  if (over_rows && y.count() == x.shape().count_from(1))
    return kernels::sum_rows(x.data<float>(), y.data<float>(), x.size(0), to_int(y.count(), "columns"),
                             device.stream());
  if (y.count() == 1) {
    const Tensor partials = empty({kernels::kSumPartials}, DType::f32, x.device());
    kernels::fill(y.data<float>(), 0, 1, device.stream());
    return kernels::add_sum(x.data<float>(), 1, y.data<float>(), partials.data<float>(), x.count(), device.stream());
  }
  Shape kept = x.shape(), summed = x.shape();
  for (int d = 0; d < x.shape().rank(); ++d) {
    Shape& without = y.size(d) == x.size(d) ? summed : kept;
    without = without.with(d, 1);
  }
  const Strided all = broadcast(x, x.shape());
  to_int(x.count() / y.count(), "elements of a sum");
  to_int(y.count(), "sums");
  kernels::sum(walk_of(kept, {&all}), walk_of(summed, {&all}), x.data<float>(), y.data<float>(), device.stream());
}

void CudaBackend::gather_rows(const Tensor& table, const Tensor& indices, const Tensor& y) {
  same_device("gather_rows", {{"table", table}, {"indices", indices}, {"y", y}});
  CudaDevice& device = on(y);
  kernels::gather_rows(table.data<float>(), table.size(0), indices.data<std::int64_t>(), indices.count(),
                       to_int(table.size(1), "columns"), y.data<float>(), device.stream());
}

void CudaBackend::sum_gathered_rows(const Tensor& dy, const Tensor& indices, const Tensor& dtable) {
  same_device("sum_gathered_rows", {{"dy", dy}, {"indices", indices}, {"dtable", dtable}});
  CudaDevice& device = on(dtable);
  kernels::sum_gathered_rows(dy.data<float>(), indices.data<std::int64_t>(), indices.count(), dtable.data<float>(),
                             dtable.size(0), to_int(dtable.size(1), "columns"), device.stream());
}

}  // namespace duet::cuda
