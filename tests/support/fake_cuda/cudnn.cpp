#include <cudnn.h>

#include <algorithm>

#include "tests/support/fake_cuda/libraries.h"

struct cudnnContext {
  int device;
  cudaStream_t stream;
};
struct cudnnTensorStruct {
  cudnnDataType_t type;
  int n, c, h, w;
  std::size_t count() const { return static_cast<std::size_t>(n) * static_cast<std::size_t>(c * h * w); }
};
struct cudnnFilterStruct : cudnnTensorStruct {};
struct cudnnConvolutionStruct {
  int pad_h, pad_w, stride_h, stride_w;
  cudnnMathType_t math;
};

namespace duet_sim {

bool begin_library(const char* name) {
  if (enter(name) != cudaSuccess) return false;
  std::lock_guard lock(state().mutex);
  return !forbidden_by_capture();
}

bool stream_of_device(cudaStream_t stream, int device) {
  std::lock_guard lock(state().mutex);
  return stream == nullptr || (state().streams.count(stream) && stream->device == device);
}

bool queue_library_call(const char* name, int device, cudaStream_t stream, std::vector<const void*> pointers,
                        std::function<void()> body) {
  if (enter(name) != cudaSuccess) return false;
  std::lock_guard lock(state().mutex);
  if (current_device() != device) {
    report("%s: the handle is of device %d, the current device is %d", name, device, current_device());
    return false;
  }
  const auto sound = [=, pointers = std::move(pointers)] {
    for (const void* p : pointers) {
      const std::string fault = pointer_fault(p, true, device, 1u << device);
      if (!fault.empty()) report("a pointer given to %s %s", name, fault.c_str());
      if (!fault.empty()) return false;
    }
    return true;
  };
  if (!sound()) return false;
  Op op(name);
  op.body = [=, body = std::move(body)] { return sound() ? body() : fail_current_op(cudaErrorIllegalAddress); };
  return submit(stream, op) == cudaSuccess;
}

namespace {

constexpr std::size_t kWorkspace = 4096;  // bytes that algorithm 1 asks for; algorithm 0 needs none

using Descriptor = const cudnnTensorStruct*;

bool known(Descriptor d) { return d->type == CUDNN_DATA_FLOAT || d->type == CUDNN_DATA_BFLOAT16; }
bool halves(Descriptor d) { return d->type == CUDNN_DATA_BFLOAT16; }

/// x (N, C, H, W), w (K, C, R, S) and y (N, K, P, Q) belong together.
bool match(Descriptor x, Descriptor w, const cudnnConvolutionStruct& conv, Descriptor y) {
  const int p = (x->h + 2 * conv.pad_h - w->h) / conv.stride_h + 1,
            q = (x->w + 2 * conv.pad_w - w->w) / conv.stride_w + 1;
  return known(x) && known(w) && known(y) && x->type == w->type && x->c == w->c && y->n == x->n && y->c == w->n &&
         y->h == p && y->w == q;
}

template <class Perf>
cudnnStatus_t list_algorithms(bool good, int asked, int* returned, Perf* perf) {
  if (!good || asked < 1) return CUDNN_STATUS_BAD_PARAM;
  const cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  // The first is a guess that turns out wrong, as cuDNN's may: workspace_of() refuses it.
  const Perf all[] = {{decltype(Perf::algo)(3), CUDNN_STATUS_SUCCESS, 0.05f, 0, CUDNN_DETERMINISTIC, math, {}},
                      {decltype(Perf::algo)(1), CUDNN_STATUS_SUCCESS, 0.1f, kWorkspace, CUDNN_DETERMINISTIC, math, {}},
                      {decltype(Perf::algo)(0), CUDNN_STATUS_SUCCESS, 0.2f, 0, CUDNN_NON_DETERMINISTIC, math, {}},
                      {decltype(Perf::algo)(2), CUDNN_STATUS_NOT_SUPPORTED, -1, 0, CUDNN_DETERMINISTIC, math, {}}};
  *returned = std::min(asked, 4);
  std::copy(all, all + *returned, perf);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t workspace_of(int algorithm, bool good, std::size_t* bytes) {
  if (!good) return CUDNN_STATUS_BAD_PARAM;
  *bytes = algorithm == 1 ? kWorkspace : 0;
  return algorithm <= 1 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

/// Calls f(y's place, x's row, w's entry, how far, first q) for each run of products along a row of y.
template <class F>
void each_run(const cudnnTensorStruct& x, const cudnnTensorStruct& w, const cudnnConvolutionStruct& conv,
              const cudnnTensorStruct& y, F&& f) {
  for (int n = 0; n < y.n; ++n)
    for (int k = 0; k < y.c; ++k)
      for (int c = 0; c < x.c; ++c)
        for (int r = 0; r < w.h; ++r)
          for (int s = 0; s < w.w; ++s)
            for (int p = 0; p < y.h; ++p) {
              const int h = p * conv.stride_h - conv.pad_h + r;
              if (h < 0 || h >= x.h) continue;
              const int offset = s - conv.pad_w;  // of x's column to q * stride
              int from = 0, to = y.w;
              while (from < to && from * conv.stride_w + offset < 0) ++from;
              while (from < to && (to - 1) * conv.stride_w + offset >= x.w) --to;
              if (from < to)
                f(((n * y.c + k) * y.h + p) * y.w + from,
                  ((n * x.c + c) * x.h + h) * x.w + from * conv.stride_w + offset, ((k * x.c + c) * w.h + r) * w.w + s,
                  to - from);
            }
}

enum class Direction { forward, data, filter };

struct Call {
  const char* name;
  Direction direction;
  Descriptor x, w, y;
  const void *in_x, *in_w, *in_y;  // one of them is the result
  void* result;
};

cudnnStatus_t convolve(cudnnContext* handle, const Call& call, const cudnnConvolutionStruct* convolution, int algorithm,
                       void* workspace, std::size_t bytes, const void* alpha, const void* beta) {
  const std::size_t needed = algorithm == 1 ? kWorkspace : 0;
  if (!match(call.x, call.w, *convolution, call.y) || algorithm > 1 || bytes < needed || (needed && !workspace))
    return CUDNN_STATUS_BAD_PARAM;
  // The fastest kernels read four floats at a time, and do not ask.
  for (const void* p : {call.in_x, call.in_w, call.in_y})
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) {
      report("%s: the address %p is not a multiple of 16", call.name, p);
      return CUDNN_STATUS_BAD_PARAM;
    }
  const cudnnTensorStruct x = *call.x, w = *call.w, y = *call.y;
  const cudnnConvolutionStruct conv = *convolution;
  const float a = *static_cast<const float*>(alpha), b = *static_cast<const float*>(beta);
  // Only FMA_MATH is strict: the default lets cuDNN round float inputs to TF32 on Ampere and later.
  const Rounding rounding = conv.math == CUDNN_FMA_MATH || halves(&x)            ? Rounding::none
                            : conv.math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION ? Rounding::bf16
                                                                                 : Rounding::tf32;
  const auto body = [=] {
    if (needed) std::memset(workspace, 0xFF, needed);
    const bool forward = call.direction == Direction::forward, data = call.direction == Direction::data;
    const cudnnTensorStruct& result = forward ? y : data ? x : w;
    std::vector<float> sum(result.count());
    const auto read = [&](const void* p, const cudnnTensorStruct& d) {
      return p == call.result ? std::vector<float>() : load(p, halves(&d), d.count(), rounding);
    };
    const std::vector<float> xs = read(call.in_x, x), ws = read(call.in_w, w), ys = read(call.in_y, y);
    // On memory of its own, which the thread sanitizer need not watch.
    const auto add_run = [&](int at_y, int at_x, int at_w, int length, int step)
        __attribute__((no_sanitize("thread"))) {
      if (forward) {
        float *to = &sum[static_cast<std::size_t>(at_y)], factor = ws[static_cast<std::size_t>(at_w)];
        const float* from = &xs[static_cast<std::size_t>(at_x)];
        for (int i = 0; i < length; ++i) to[i] += factor * from[i * step];
      } else if (data) {
        float *to = &sum[static_cast<std::size_t>(at_x)], factor = ws[static_cast<std::size_t>(at_w)];
        const float* from = &ys[static_cast<std::size_t>(at_y)];
        for (int i = 0; i < length; ++i) to[i * step] += factor * from[i];
      } else {
        const float *left = &xs[static_cast<std::size_t>(at_x)], *right = &ys[static_cast<std::size_t>(at_y)];
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int i = 0; i < length; ++i) total += left[i * step] * right[i];
        sum[static_cast<std::size_t>(at_w)] += total;
      }
    };
    each_run(x, w, conv, y, [&](int at_y, int at_x, int at_w, int length) {
      if (conv.stride_w == 1)  // several at a time
        add_run(at_y, at_x, at_w, length, 1);
      else
        add_run(at_y, at_x, at_w, length, conv.stride_w);
    });
    for (std::size_t i = 0; i < sum.size(); ++i) store(call.result, halves(&result), i, sum[i], a, b);
  };
  std::vector<const void*> pointers{call.in_x, call.in_w, call.in_y};
  if (needed) pointers.push_back(workspace);
  const bool good = queue_library_call(call.name, handle->device, handle->stream, pointers, body);
  return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

template <class T>
cudnnStatus_t make(T** made) {
  *made = new T{};
  return CUDNN_STATUS_SUCCESS;
}
template <class T>
cudnnStatus_t destroy(T* made) {
  delete made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t describe(cudnnTensorStruct* d, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h,
                       int w) {
  if (format != CUDNN_TENSOR_NCHW) return CUDNN_STATUS_NOT_SUPPORTED;
  if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  d->type = type;
  d->n = n, d->c = c, d->h = h, d->w = w;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (!begin_library("cudnnCreate")) return CUDNN_STATUS_INTERNAL_ERROR;
  *handle = new cudnnContext{current_device(), nullptr};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!stream_of_device(stream, handle->device)) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return static_cast<size_t>(setting("DUET_SIM_CUDNN_VERSION", CUDNN_VERSION)); }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "unknown cuDNN status";
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) { return make(d); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* d) { return make(d); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* d) { return make(d); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w) {
  return describe(d, format, type, n, c, h, w);
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
  return describe(d, format, type, k, c, h, w);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int u, int v,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (dilation_h != 1 || dilation_w != 1 || mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT)
    return CUDNN_STATUS_NOT_SUPPORTED;
  *d = {pad_h, pad_w, u, v, CUDNN_DEFAULT_MATH};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  d->math = math;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                     cudnnTensorDescriptor_t y, int asked, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* perf) {
  return list_algorithms(match(x, w, *conv, y), asked, returned, perf);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                          cudnnTensorDescriptor_t dx, int asked, int* returned,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* perf) {
  return list_algorithms(match(dx, w, *conv, dy), asked, returned, perf);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv,
                                                            cudnnFilterDescriptor_t dw, int asked, int* returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* perf) {
  return list_algorithms(match(x, dw, *conv, dy), asked, returned, perf);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algo,
                                                      size_t* bytes) {
  return workspace_of(algo, match(x, w, *conv, y), bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t conv,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algo, size_t* bytes) {
  return workspace_of(algo, match(dx, w, *conv, dy), bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t conv,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algo, size_t* bytes) {
  return workspace_of(algo, match(x, dw, *conv, dy), bytes);
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t xd,
                                      const void* x, cudnnFilterDescriptor_t wd, const void* w,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algo,
                                      void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t yd,
                                      void* y) {
  const Call call{"cudnnConvolutionForward", Direction::forward, xd, wd, yd, x, w, y, y};
  return convolve(handle, call, conv, algo, workspace, bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t wd,
                                           const void* w, cudnnTensorDescriptor_t dyd, const void* dy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algo,
                                           void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t dxd,
                                           void* dx) {
  const Call call{"cudnnConvolutionBackwardData", Direction::data, dxd, wd, dyd, dx, w, dy, dx};
  return convolve(handle, call, conv, algo, workspace, bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t xd,
                                             const void* x, cudnnTensorDescriptor_t dyd, const void* dy,
                                             cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdFilterAlgo_t algo,
                                             void* workspace, size_t bytes, const void* beta,
                                             cudnnFilterDescriptor_t dwd, void* dw) {
  const Call call{"cudnnConvolutionBackwardFilter", Direction::filter, xd, dwd, dyd, x, dw, dy, dw};
  return convolve(handle, call, conv, algo, workspace, bytes, alpha, beta);
}

}  // extern "C"
