#include <cublas_v2.h>

#include <algorithm>

#include "tests/support/fake_cuda/libraries.h"

struct cublasContext {
  int device;
  cudaStream_t stream;
  cublasMath_t math;
};

namespace duet_sim {
namespace {

/// A matrix with columns `ld` apart.
struct Matrix {
  const void* data;
  cudaDataType type;
  int ld;
};

/// op(m), `rows` by `columns`, columns side by side.
std::vector<float> load_matrix(const Matrix& m, bool transposed, int rows, int columns, Rounding rounding) {
  const int stored_rows = transposed ? columns : rows, stored_columns = transposed ? rows : columns;
  const auto extent = static_cast<std::size_t>(m.ld) * static_cast<std::size_t>(stored_columns - 1) +
                      static_cast<std::size_t>(stored_rows);
  const std::vector<float> raw = load(m.data, m.type == CUDA_R_16BF, extent, rounding);
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (int column = 0; column < columns; ++column)
    for (int row = 0; row < rows; ++row)
      values.push_back(raw[static_cast<std::size_t>(transposed ? row * m.ld + column : column * m.ld + row)]);
  return values;
}

cublasStatus_t gemm(const char* name, cublasContext* handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                    int k, const void* alpha, const Matrix& a, const Matrix& b, const void* beta, const Matrix& c,
                    void* result, Rounding rounding) {
  const bool ready = m > 0 && n > 0 && k > 0 && a.ld >= (ta == CUBLAS_OP_N ? m : k) &&
                     b.ld >= (tb == CUBLAS_OP_N ? k : n) && c.ld >= m;
  if (!ready) return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const auto body = [=] {
    const std::vector<float> left = load_matrix(a, ta != CUBLAS_OP_N, m, k, rounding);
    const std::vector<float> right = load_matrix(b, tb != CUBLAS_OP_N, k, n, rounding);
    std::vector<float> sum(static_cast<std::size_t>(m));
    for (int j = 0; j < n; ++j) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int l = 0; l < k; ++l) {
        const float factor = right[static_cast<std::size_t>(j * k + l)];
        const float* column = &left[static_cast<std::size_t>(l * m)];
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * column[i];
      }
      for (int i = 0; i < m; ++i)
        store(result, c.type == CUDA_R_16BF, static_cast<std::size_t>(j * c.ld + i), sum[static_cast<std::size_t>(i)],
              scale, keep);
    }
  };
  const bool good = queue_library_call(name, handle->device, handle->stream, {a.data, b.data, result}, body);
  return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace
}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (!begin_library("cublasCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext{current_device(), nullptr, CUBLAS_DEFAULT_MATH};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? static_cast<int>(setting("DUET_SIM_CUBLAS_MAJOR", CUBLAS_VER_MAJOR)) : 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (!stream_of_device(stream, handle->device)) return CUBLAS_STATUS_INVALID_VALUE;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t) {
  const bool good = pointer_fault(workspace, true, handle->device, 1u << handle->device).empty();
  return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown cuBLAS status";
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                              int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                              const float* beta, float* c, int ldc) {
  const Rounding rounding = handle->math == CUBLAS_TF32_TENSOR_OP_MATH ? Rounding::tf32 : Rounding::none;
  return gemm("cublasSgemm", handle, transa, transb, m, n, k, alpha, {a, CUDA_R_32F, lda}, {b, CUDA_R_32F, ldb}, beta,
              {c, CUDA_R_32F, ldc}, c, rounding);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType at, int lda, const void* b,
                            cudaDataType bt, int ldb, const void* beta, void* c, cudaDataType ct, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (at != bt || (at == CUDA_R_32F && ct != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Rounding rounding = Rounding::none;
  if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) rounding = Rounding::bf16;
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) rounding = Rounding::tf32;
  if (compute == CUBLAS_COMPUTE_32F && handle->math == CUBLAS_TF32_TENSOR_OP_MATH) rounding = Rounding::tf32;
  return gemm("cublasGemmEx", handle, transa, transb, m, n, k, alpha, {a, at, lda}, {b, bt, ldb}, beta, {c, ct, ldc}, c,
              rounding);
}

}  // extern "C"
