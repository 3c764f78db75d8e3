// cuDNN and cuBLAS, answered by the CPU backend: on copies of what lies in device memory, which only the thread that
// runs an operation may touch.
#include <cublas_v2.h>
#include <cudnn.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/half.h"
#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

constexpr int kGarbage = 0xFF;
constexpr const char* kConvolutions[] = {"cudnnConvolutionForward", "cudnnConvolutionBackwardData",
                                         "cudnnConvolutionBackwardFilter"};

struct LibraryHandle {
  int device = current_device();
  cudaStream_t stream = nullptr;
  mutable bool used = false;  // the first use loads kernels, and may allocate
};

}  // namespace
}  // namespace duet_sim

struct cudnnContext : duet_sim::LibraryHandle {};
struct cublasContext : duet_sim::LibraryHandle {
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  bool own_workspace = true;  // which it allocates when it is first used
};

namespace duet_sim {
namespace {

const char* status_text(const char* library, int status) {
  thread_local std::string text;
  text = library + std::string(" status ") + std::to_string(status);
  return text.c_str();
}

/// Null when refused: handles come with memory.
template <class Handle>
Handle* open_library(const char* function) {
  if (enter(function) != cudaSuccess) return nullptr;
  const std::lock_guard lock(state().mutex);
  return forbidden_by_capture() ? nullptr : new Handle;
}

bool set_stream(LibraryHandle& handle, cudaStream_t stream) {
  const std::lock_guard lock(state().mutex);
  if (stream != nullptr && (!state().streams.count(stream) || stream->device != handle.device)) return false;
  handle.stream = stream;
  return true;
}

/// False when the call is refused, which is reported.
bool queue(const char* function, const LibraryHandle& handle, const std::vector<const void*>& pointers,
           const std::function<void()>& body) {
  if (enter(function) != cudaSuccess) return false;
  Lock lock(state().mutex);
  if (current_device() != handle.device) {
    report("%s: the handle is of device %d, the current device is %d", function, handle.device, current_device());
    return false;
  }
  Op op(function);
  for (const void* p : pointers) op.pointers.push_back({p, static_cast<int>(op.pointers.size()), true});
  op.body = body;
  const cudaStream_t stream = resolve(handle.stream);
  if (stream != nullptr && stream->capture != nullptr && !handle.used) {
    report("%s: the handle's first use is inside a capture", function);
    invalidate(stream->capture, cudaErrorStreamCaptureUnsupported);
    return false;
  }
  handle.used = true;
  return wait_for_room(lock, stream) == cudaSuccess && submit(handle.stream, op) == cudaSuccess;
}

/// Operations run one at a time, so the last of the CPU's devices is free for them.
duet::Backend& cpu() { return duet::backend(duet::DeviceKind::cpu); }
duet::Tensor make_tensor(const duet::Shape& shape) {
  return duet::empty(shape, duet::DType::f32, {duet::DeviceKind::cpu, cpu().device_count() - 1});
}

/// TF32 has 10 bits of mantissa. With odd seeds to nearest, ties away from zero, as cvt.rna; with even ones truncated,
/// as tensor cores that are given floats do.
float to_tf32(float x) {
  static const std::uint32_t half = setting("DUET_SIM_SEED", 1) % 2 != 0 ? 0x1000 : 0;
  return x != x ? x : std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + half) & ~0x1FFFu);
}

bool is_plain(const void* alpha, const void* beta) {
  return *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
}

duet::Tensor load(const void* from, const cudnnTensorStruct& shape, bool tf32) {
  const duet::Tensor values = make_tensor({shape.n, shape.c, shape.h, shape.w});
  std::memcpy(values.raw(), from, values.bytes());
  if (tf32)
    for (float& x : values.span<float>()) x = to_tf32(x);
  return values;
}

void run_convolution(const Convolution& c, const ConvolutionCall& call) {
  if (call.workspace != nullptr) std::memset(call.workspace, kGarbage, call.workspace_bytes);
  const bool tf32 = c.how.math != CUDNN_FMA_MATH;  // the default lets cuDNN round to TF32 on Ampere and later
  const duet::Window2d window = {c.w.h, c.w.w, c.how.stride_h, c.how.stride_w, c.how.pad_h, c.how.pad_w};
  const auto given = [&](const void* from, const cudnnTensorStruct& shape) { return load(from, shape, tf32); };
  duet::Tensor result;
  switch (c.direction) {
    case Direction::forward:
      result = make_tensor({c.y.n, c.y.c, c.y.h, c.y.w});
      cpu().conv2d_forward(given(call.a, c.x), given(call.b, c.w), {}, result, window);
      break;
    case Direction::data:
      result = make_tensor({c.x.n, c.x.c, c.x.h, c.x.w});
      cpu().conv2d_backward_data(given(call.b, c.y), given(call.a, c.w), result, window);
      break;
    case Direction::filter:
      result = make_tensor({c.w.n, c.w.c, c.w.h, c.w.w});
      cpu().conv2d_backward_weights(given(call.a, c.x), given(call.b, c.y), result, {}, window);
      break;
  }
  std::memcpy(call.result, result.raw(), result.bytes());
}

/// A matrix of cuBLAS: columns one after the other, `pitch` apart.
struct Matrix {
  const void* values;
  cudaDataType type;
  int pitch;
};

/// Row-major: the matrix, or its transpose when the columns become rows. With even seeds its columns stand in reverse:
/// a product of two such matrices has sums in another order, as on GPUs, and other last bits.
duet::Tensor load(const Matrix& m, bool columns_become_rows, int rows, int columns, bool tf32) {
  static const bool reverse = setting("DUET_SIM_SEED", 1) % 2 == 0;
  const duet::Tensor values = make_tensor({rows, columns});
  float* to = values.data<float>();
  for (int row = 0; row < rows; ++row)
    for (int place = 0; place < columns; ++place) {
      const int column = reverse ? columns - 1 - place : place;
      const int at = columns_become_rows ? row * m.pitch + column : column * m.pitch + row;
      const float x = m.type == CUDA_R_32F ? static_cast<const float*>(m.values)[at]
                                           : float{static_cast<const duet::BFloat16*>(m.values)[at]};
      *to++ = tf32 ? to_tf32(x) : x;
    }
  return values;
}

cublasStatus_t multiply(const char* function, const cublasContext& handle, bool transpose_a, bool transpose_b, int m,
                        int n, int k, const Matrix& a, const Matrix& b, float* c, int pitch) {
  const bool fit = m > 0 && n > 0 && k > 0 && a.pitch >= (transpose_a ? k : m) && b.pitch >= (transpose_b ? n : k);
  if (!fit || pitch < m) return CUBLAS_STATUS_INVALID_VALUE;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (handle.own_workspace && cudaStreamIsCapturing(handle.stream, &capture) == cudaSuccess &&
      capture != cudaStreamCaptureStatusNone) {
    report("%s allocates a workspace inside a capture: cublasSetWorkspace goes after cublasSetStream", function);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const bool tf32 = handle.math == CUBLAS_TF32_TENSOR_OP_MATH;
  const auto body = [=] {  // c^T (n, m) is row-major in c's place; = op(b)^T (n, k) times the transpose of op(a) (m, k)
    const duet::Tensor product = make_tensor({n, m});
    cpu().linear_forward(load(b, !transpose_b, n, k, tf32), load(a, transpose_a, m, k, tf32), {}, product);
    for (int row = 0; row < n; ++row)
      std::memcpy(c + row * pitch, product.data<float>() + row * m, static_cast<std::size_t>(m) * sizeof(float));
  };
  return queue(function, handle, {a.values, b.values, c}, body) ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

/// x (N, C, H, W), w (K, C / groups, R, S) and y (N, K, P, Q) belong together.
bool fits_together(const Convolution& c) {
  const int p = (c.x.h + 2 * c.how.pad_h - c.w.h) / c.how.stride_h + 1,
            q = (c.x.w + 2 * c.how.pad_w - c.w.w) / c.how.stride_w + 1;
  return c.x.c == c.w.c * c.how.groups && c.w.n % c.how.groups == 0 && c.y.n == c.x.n && c.y.c == c.w.n && c.y.h == p &&
         c.y.w == q;
}

cudnnStatus_t ask_workspace(const Convolution& shapes, int algorithm, size_t* bytes) {
  if (!fits_together(shapes)) return CUDNN_STATUS_BAD_PARAM;
  *bytes = algorithm == 1 ? kWorkspace : 0;
  return algorithm <= 1 || algorithm == kRefusedLate ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t convolve(cudnnHandle_t handle, const Convolution& shapes, const ConvolutionCall& call) {
  std::size_t needed = 0;
  const bool known = ask_workspace(shapes, call.algorithm, &needed) == CUDNN_STATUS_SUCCESS;
  const bool room = call.workspace_bytes >= needed && (needed == 0 || call.workspace != nullptr);
  if (!known || !room || !is_plain(call.alpha, call.beta)) return CUDNN_STATUS_BAD_PARAM;
  if (call.algorithm == kRefusedLate) return static_cast<cudnnStatus_t>(CUDNN_STATUS_NOT_SUPPORTED + 10);
  const char* const function = kConvolutions[static_cast<int>(shapes.direction)];
  // The fastest kernels read four floats at a time, unchecked.
  for (const void* p : {call.a, call.b, static_cast<const void*>(call.result)})
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) {
      report("%s: the address %p is not a multiple of 16", function, p);
      return CUDNN_STATUS_BAD_PARAM;
    }
  const bool asked =
      queue(function, *handle, {call.a, call.b, call.result, call.workspace}, [=] { run_convolution(shapes, call); });
  return asked ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

cudnnStatus_t describe(cudnnTensorStruct* made, int n, int c, int h, int w) {
  *made = {n, c, h, w};
  return n < 1 || c < 1 || h < 1 || w < 1 ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

}  // namespace duet_sim

using namespace duet_sim;

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = open_library<cudnnContext>("cudnnCreate");
  return *handle == nullptr ? CUDNN_STATUS_INTERNAL_ERROR : CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return set_stream(*handle, stream) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
size_t cudnnGetVersion() { return static_cast<size_t>(setting("DUET_SIM_CUDNN_VERSION", CUDNN_VERSION)); }
const char* cudnnGetErrorString(cudnnStatus_t status) { return status_text("cuDNN", status); }
void cudnnGetLastErrorString(char* message, size_t max_size) { std::snprintf(message, max_size, "simulated reason"); }
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t,
                                              cudnnDataType_t) {
  *d = {pad_h, pad_w, stride_h, stride_w, CUDNN_DEFAULT_MATH, 1};
  return dilation_h == 1 && dilation_w == 1 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  d->math = math;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  d->groups = groups;
  return groups > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = open_library<cublasContext>("cublasCreate");
  return *handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? static_cast<int>(setting("DUET_SIM_CUBLAS_MAJOR", CUBLAS_VER_MAJOR)) : 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->own_workspace = true;
  return set_stream(*handle, stream) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t) {
  const bool good = pointer_fault(workspace, true, handle->device, 1u << handle->device).empty();
  handle->own_workspace = handle->own_workspace && !good;
  return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) { return status_text("cuBLAS", status); }
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const float* alpha, const float* a, int lda, const float* b, int ldb, const float* beta,
                           float* c, int ldc) {
  if (!is_plain(alpha, beta)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return multiply("cublasSgemm", *handle, op_a == CUBLAS_OP_T, op_b == CUBLAS_OP_T, m, n, k, {a, CUDA_R_32F, lda},
                  {b, CUDA_R_32F, ldb}, c, ldc);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool known = a_type == b_type && c_type == CUDA_R_32F && compute == CUBLAS_COMPUTE_32F;
  if (!is_plain(alpha, beta) || !known) return CUBLAS_STATUS_NOT_SUPPORTED;
  return multiply("cublasGemmEx", *handle, op_a == CUBLAS_OP_T, op_b == CUBLAS_OP_T, m, n, k, {a, a_type, lda},
                  {b, b_type, ldb}, static_cast<float*>(c), ldc);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType a_type, int lda,
                                          long long int stride_a, const void* b, cudaDataType b_type, int ldb,
                                          long long int stride_b, const void* beta, void* c, cudaDataType c_type,
                                          int ldc, long long int stride_c, int count, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  const bool known = a_type == b_type && c_type == CUDA_R_32F && compute == CUBLAS_COMPUTE_32F;
  if (!is_plain(alpha, beta) || !known) return CUBLAS_STATUS_NOT_SUPPORTED;
  const long long int bytes = a_type == CUDA_R_32F ? 4 : 2;
  cublasStatus_t status = count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; ++i)
    status = multiply("cublasGemmStridedBatchedEx", *handle, op_a == CUBLAS_OP_T, op_b == CUBLAS_OP_T, m, n, k,
                      {static_cast<const char*>(a) + i * stride_a * bytes, a_type, lda},
                      {static_cast<const char*>(b) + i * stride_b * bytes, b_type, ldb},
                      static_cast<float*>(c) + i * stride_c, ldc);
  return status;
}
