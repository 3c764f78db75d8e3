// Linear layers, alone, with relu and dropout, and with log_softmax: by cuBLAS, small ones by own kernels. cuBLAS
// counts columns first: a row-major matrix is the transpose of what it sees.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/cuda_recorder.h"

namespace duet::cuda {
namespace {

/// A row-major matrix (rows, columns) in memory, and whether the product takes its transpose.
struct Matrix {
  const Tensor& values;
  bool transposed;
};

/// cuBLAS's default keeps the digits of a float, too, and has more algorithms than its pedantic mode.
cublasMath_t math_of(Precision precision) {
  return precision == Precision::fp32 ? CUBLAS_DEFAULT_MATH : CUBLAS_TF32_TENSOR_OP_MATH;
}

/// A copy in bfloat16, two bytes a value.
Tensor in_bfloat16(CudaDevice& device, const Tensor& x) {
  Tensor copy = empty({2 * x.count()}, DType::u8, x.device());
  kernels::to_bfloat16(x.data<float>(), static_cast<std::uint16_t*>(copy.raw()), x.count(), device.stream());
  return copy;
}

/// c (m, n) = a (m, k) b (k, n), all row-major, after the transpositions, for each of `matrices`; in cuBLAS's order
/// c^T = b^T a^T.
void multiply(CudaDevice& device, const Matrix& a, const Matrix& b, const Tensor& c, std::int64_t inner,
              std::int64_t matrices = 1) {
  const char* const op = current_operator();
  if (c.count() == 0) return;
  if (inner == 0) return check(cudaMemsetAsync(c.raw(), 0, c.bytes(), device.stream()), op);
  const int m = to_int(c.size(-2), "rows"), n = to_int(c.size(-1), "columns"), k = to_int(inner, "inner size");
  const int a_pitch = a.transposed ? m : k, b_pitch = b.transposed ? k : n;
  const cublasOperation_t a_op = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                          b_op = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  constexpr float kAlpha = 1, kBeta = 0;
  const cublasHandle_t handle = device.cublas();
  const bool rounds = device.precision() == Precision::bf16;
  check(cublasSetMathMode(handle, math_of(device.precision())), op);
  const Tensor left = rounds ? in_bfloat16(device, a.values) : a.values,
               right = rounds ? in_bfloat16(device, b.values) : b.values;
  const cudaDataType type = rounds ? CUDA_R_16BF : CUDA_R_32F;
  if (matrices > 1)
    return check(cublasGemmStridedBatchedEx(handle, b_op, a_op, n, m, k, &kAlpha, right.raw(), type, b_pitch,
                                            std::int64_t{k} * n, left.raw(), type, a_pitch, std::int64_t{m} * k, &kBeta,
                                            c.raw(), CUDA_R_32F, n, std::int64_t{m} * n, to_int(matrices, "matrices"),
                                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 op);
  if (rounds)
    return check(cublasGemmEx(handle, b_op, a_op, n, m, k, &kAlpha, right.raw(), type, b_pitch, left.raw(), type,
                              a_pitch, &kBeta, c.raw(), CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 op);
  check(cublasSgemm(handle, b_op, a_op, n, m, k, &kAlpha, right.data<float>(), b_pitch, left.data<float>(), a_pitch,
                    &kBeta, c.data<float>(), n),
        op);
}

/// The vectors of x (..., size) as rows of a matrix.
Tensor in_rows(const Tensor& x) { return x.defined() ? x.reshape({vectors_of(x.shape()), x.size(-1)}) : x; }

/// dw = dy^T x and dx = dy w, where they are wanted.
void multiply_both(CudaDevice& device, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dx,
                   const Tensor& dw) {
  const auto weights = [&] { multiply(device, {dy, true}, {x, false}, dw, x.size(0)); };
  const auto data = [&] { multiply(device, {dy, false}, {w, false}, dx, dy.size(1)); };
  if (dw.defined() && dx.defined()) return device.beside(weights, data);
  if (dw.defined()) weights();
  if (dx.defined()) data();
}

// Layers that own kernels compute, within a launch or two. Their backward adds up rows with few threads.
constexpr std::int64_t kMostSmallWeights = 4096, kMostSmallRows = 1024;

bool is_small(const Tensor& w) { return w.size(0) <= kernels::kMostOutputs && w.count() <= kMostSmallWeights; }

kernels::SmallLinear small_shape(const CudaDevice& device, const Tensor& x, const Tensor& w) {
  return {.rows = x.size(0),
          .in = static_cast<int>(w.size(1)),
          .out = static_cast<int>(w.size(0)),
          .rounds = device.precision() == Precision::bf16};
}

void small_forward(CudaDevice& device, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                   bool log_softmax) {
  kernels::small_linear_forward(x.data<float>(), w.data<float>(), data_or_null(b), y.data<float>(), log_softmax,
                                small_shape(device, x, w), device.stream());
}

}  // namespace

void CudaBackend::linear_forward(const Tensor& input, const Tensor& w, const Tensor& b, const Tensor& result) {
  const Tensor x = in_rows(input), y = in_rows(result);
  same_device("linear_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  if (is_small(w)) return small_forward(device, x, w, b, y, false);
  multiply(device, {x, false}, {w, true}, y, x.size(1));
  if (b.defined())
    kernels::add_row_bias(y.data<float>(), b.data<float>(), y.size(0), to_int(y.size(1), "columns"), device.stream());
}

void CudaBackend::linear_log_softmax_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  same_device("linear_log_softmax_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  if (is_small(w)) return small_forward(device, x, w, b, y, true);
  multiply(device, {x, false}, {w, true}, y, x.size(1));
  kernels::log_softmax_forward(y.data<float>(), data_or_null(b), y.data<float>(), y.size(0),
                               to_int(y.size(1), "classes"), device.stream());
}

void CudaBackend::matmul(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed, const Tensor& y) {
  same_device("matmul", {{"a", a}, {"b", b}, {"y", y}});
  multiply(on(y), {a, a_transposed}, {b, b_transposed}, y, a.size(a_transposed ? -2 : -1),
           vectors_of(y.shape()) / std::max<std::int64_t>(1, y.size(-2)));
}

void CudaBackend::linear_backward(const Tensor& gradient, const Tensor& input, const Tensor& w,
                                  const Tensor& input_gradient, const Tensor& dw, const Tensor& db) {
  const Tensor dy = in_rows(gradient), x = in_rows(input), dx = in_rows(input_gradient);
  same_device("linear_backward", {{"dy", dy}, {"x", x}, {"w", w}, {"dx", dx}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  if (is_small(w) && x.size(0) <= kMostSmallRows)
    return kernels::small_linear_backward(dy.data<float>(), x.data<float>(), w.data<float>(), data_or_null(dx),
                                          data_or_null(dw), data_or_null(db), small_shape(device, x, w),
                                          device.stream());
  if (db.defined())
    kernels::sum_rows(dy.data<float>(), db.data<float>(), dy.size(0), to_int(dy.size(1), "columns"), device.stream());
  multiply_both(device, dy, x, w, dx, dw);
}

void CudaBackend::linear_relu_dropout_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                              const DropoutKey& dropout) {
  same_device("linear_relu_dropout_forward", {{"x", x}, {"w", w}, {"b", b}, {"y", y}});
  CudaDevice& device = on(x);
  multiply(device, {x, false}, {w, true}, y, x.size(1));
  // The kernel counts the elements of a row in ints, in whole chunks of dropout's.
  to_int(y.size(1) + arithmetic::kDropoutLanes * arithmetic::kDropoutNumbers, "columns");
  std::optional<kernels::StepDraw> draw;
  if (dropout.p > 0) draw = device.recorder().draw(dropout, x.stamp_or_self());
  kernels::bias_relu_dropout_forward(y.data<float>(), data_or_null(b), y.size(0), static_cast<int>(y.size(1)),
                                     draw ? &*draw : nullptr, dropout.scale(), device.stream());
}

void CudaBackend::linear_relu_dropout_backward(const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& w,
                                               const Tensor& dx, const Tensor& dw, const Tensor& db,
                                               const DropoutKey& dropout) {
  same_device("linear_relu_dropout_backward",
              {{"dy", dy}, {"y", y}, {"x", x}, {"w", w}, {"dx", dx}, {"dw", dw}, {"db", db}});
  CudaDevice& device = on(x);
  const Tensor gradient = empty(y.shape(), DType::f32, y.device());
  kernels::bias_relu_dropout_backward(dy.data<float>(), y.data<float>(), dropout.scale(), gradient.data<float>(),
                                      data_or_null(db), y.size(0), to_int(y.size(1), "columns"), device.stream());
  multiply_both(device, gradient, x, w, dx, dw);
}

}  // namespace duet::cuda
