// Linear layers by cuBLAS, alone, with relu and dropout, and with log_softmax. cuBLAS counts columns first: a row-major
// matrix is the transpose of what it sees.
#include <cstdint>
#include <optional>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/sizes.h"

namespace duet::cuda {
namespace {

/// A row-major matrix (rows, columns) in memory, and whether the product takes its transpose.
struct Matrix {
  const Tensor& values;
  bool transposed;
};

cublasMath_t math_of(Precision precision) {
  return precision == Precision::fp32 ? CUBLAS_PEDANTIC_MATH : CUBLAS_TF32_TENSOR_OP_MATH;
}

/// A copy in bfloat16, two bytes a value.
Tensor in_bfloat16(CudaDevice& device, const Tensor& x) {
  Tensor copy = empty({2 * x.count()}, DType::u8, x.device());
  kernels::to_bfloat16(x.data<float>(), static_cast<std::uint16_t*>(copy.raw()), x.count(), device.stream());
  return copy;
}

/// c (m, n) = a (m, k) b (k, n), all row-major, after the transpositions; in cuBLAS's order c^T = b^T a^T.
void multiply(CudaDevice& device, const Matrix& a, const Matrix& b, const Tensor& c, std::int64_t inner) {
  const char* const op = current_operator();
  if (c.count() == 0) return;
  if (inner == 0) return check(cudaMemsetAsync(c.raw(), 0, c.bytes(), device.stream()), op);
  const int m = to_int(c.size(0), "rows"), n = to_int(c.size(1), "columns"), k = to_int(inner, "inner size");
  const int a_pitch = a.transposed ? m : k, b_pitch = b.transposed ? k : n;
  const cublasOperation_t a_op = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                          b_op = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  constexpr float kOne = 1, kZero = 0;
  const cublasHandle_t handle = device.cublas();
  const Precision precision = device.precision();
  check(cublasSetMathMode(handle, math_of(precision)), op);
  if (precision == Precision::bf16) {
    const Tensor left = in_bfloat16(device, a.values), right = in_bfloat16(device, b.values);
    return check(
        cublasGemmEx(handle, b_op, a_op, n, m, k, &kOne, right.raw(), CUDA_R_16BF, b_pitch, left.raw(), CUDA_R_16BF,
                     a_pitch, &kZero, c.raw(), CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        op);
  }
  check(cublasSgemm(handle, b_op, a_op, n, m, k, &kOne, b.values.data<float>(), b_pitch, a.values.data<float>(),
                    a_pitch, &kZero, c.data<float>(), n),
        op);
}

}  // namespace

void CudaBackend::linear_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  same_device("linear_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  multiply(device, {x, false}, {w, true}, y, x.size(1));
  if (b.defined())
    kernels::add_row_bias(y.data<float>(), b.data<float>(), y.size(0), to_int(y.size(1), "columns"), device.stream());
}

void CudaBackend::linear_log_softmax_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  same_device("linear_log_softmax_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  multiply(device, {x, false}, {w, true}, y, x.size(1));
  kernels::log_softmax_forward(y.data<float>(), b.defined() ? b.data<float>() : nullptr, y.data<float>(), y.size(0),
                               to_int(y.size(1), "classes"), device.stream());
}

void CudaBackend::linear_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx) {
  same_device("linear_backward_data", {{"dy", dy}, {"w", w}, {"dx", dx}});
  multiply(on(dy), {dy, false}, {w, false}, dx, dy.size(1));
}

void CudaBackend::linear_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db) {
  same_device("linear_backward_weights", {{"x", x}, {"dy", dy}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  multiply(device, {dy, true}, {x, false}, dw, x.size(0));
  if (db.defined())
    kernels::sum_rows(dy.data<float>(), db.data<float>(), dy.size(0), to_int(dy.size(1), "columns"), device.stream());
}

void CudaBackend::linear_relu_dropout_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                              const DropoutKey& dropout) {
  same_device("linear_relu_dropout_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  multiply(device, {x, false}, {w, true}, y, x.size(1));
  // The kernel counts the elements of a row in ints, in whole chunks of dropout's.
  to_int(y.size(1) + arithmetic::kDropoutLanes * arithmetic::kDropoutNumbers, "columns");
  std::optional<kernels::StepDraw> draw;
  if (dropout.p > 0) draw = device.draw(dropout, x.stamp_or_self());
  kernels::bias_relu_dropout_forward(y.data<float>(), b.defined() ? b.data<float>() : nullptr, y.size(0),
                                     static_cast<int>(y.size(1)), draw ? &*draw : nullptr, dropout.scale(),
                                     device.stream());
}

void CudaBackend::linear_relu_dropout_backward(const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& w,
                                               const Tensor& dx, const Tensor& dw, const Tensor& db,
                                               const DropoutKey& dropout) {
  same_device("linear_relu_dropout_backward",
              {{"dy", dy}, {"y", y}, {"x", x}, {"w", w}, {"dx", dx}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  const Tensor gradient = empty(y.shape(), DType::f32, y.device());
  kernels::bias_relu_dropout_backward(dy.data<float>(), y.data<float>(), dropout.scale(), gradient.data<float>(),
                                      db.defined() ? db.data<float>() : nullptr, y.size(0),
                                      to_int(y.size(1), "columns"), device.stream());
  if (dw.defined()) multiply(device, {gradient, true}, {x, false}, dw, x.size(0));
  if (dx.defined()) multiply(device, {gradient, false}, {w, false}, dx, y.size(1));
}

}  // namespace duet::cuda
