// cuDNN's convolutions as far as duet uses them; see ../simulator.h. The calls of the three directions take the same
// arguments, of other types: one template makes all nine.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#define CUDNN_MAJOR 9
#define CUDNN_VERSION 92800

typedef enum {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_BAD_PARAM = 2000,
  CUDNN_STATUS_NOT_SUPPORTED = 3000,
  CUDNN_STATUS_INTERNAL_ERROR = 4000,
  CUDNN_STATUS_EXECUTION_FAILED = 5000
} cudnnStatus_t;
typedef enum { CUDNN_DATA_FLOAT = 0 } cudnnDataType_t;
typedef enum { CUDNN_DEFAULT_MATH = 0, CUDNN_TENSOR_OP_MATH = 1, CUDNN_FMA_MATH = 3 } cudnnMathType_t;
typedef enum { CUDNN_TENSOR_NCHW = 0 } cudnnTensorFormat_t;
typedef enum { CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;
typedef enum { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 } cudnnDeterminism_t;
// Algorithms that duet never takes, and one that its tests take.
typedef enum {
  CUDNN_CONVOLUTION_FWD_ALGO_FFT = 4,
  CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING = 5,
  CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD = 6,
  CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED = 7
} cudnnConvolutionFwdAlgo_t;
typedef enum {
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT = 2,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING = 3,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD = 4,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED = 5
} cudnnConvolutionBwdDataAlgo_t;
typedef enum {
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT = 2,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED = 5,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING = 6
} cudnnConvolutionBwdFilterAlgo_t;

template <class Algorithm>
struct DuetSimAlgoPerf {
  Algorithm algo;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnDeterminism_t determinism;
  cudnnMathType_t mathType;
};
typedef DuetSimAlgoPerf<cudnnConvolutionFwdAlgo_t> cudnnConvolutionFwdAlgoPerf_t;
typedef DuetSimAlgoPerf<cudnnConvolutionBwdDataAlgo_t> cudnnConvolutionBwdDataAlgoPerf_t;
typedef DuetSimAlgoPerf<cudnnConvolutionBwdFilterAlgo_t> cudnnConvolutionBwdFilterAlgoPerf_t;

struct cudnnTensorStruct {
  int n, c, h, w;
};
struct cudnnFilterStruct : cudnnTensorStruct {};
struct cudnnConvolutionStruct {
  int pad_h, pad_w, stride_h, stride_w;
  cudnnMathType_t math;
  int groups;
};
typedef struct cudnnContext* cudnnHandle_t;
typedef cudnnTensorStruct* cudnnTensorDescriptor_t;
typedef cudnnFilterStruct* cudnnFilterDescriptor_t;
typedef cudnnConvolutionStruct* cudnnConvolutionDescriptor_t;

namespace duet_sim {

enum class Direction { forward, data, filter };
/// A convolution in any direction: x and w are also the shapes of their gradients.
struct Convolution {
  Direction direction;
  cudnnTensorStruct x, w, y;
  cudnnConvolutionStruct how;
};
struct ConvolutionCall {
  int algorithm;
  const void *a, *b;
  void *result, *workspace;
  size_t workspace_bytes;
  const void *alpha, *beta;
};
constexpr size_t kWorkspace = 3 << 20;  // bytes that algorithm 1 asks for; algorithm 0 needs none
constexpr int kRefusedLate = 4;         // an algorithm that turns out not to be supported when it runs

bool fits_together(const Convolution& shapes);
cudnnStatus_t ask_workspace(const Convolution& shapes, int algorithm, size_t* bytes);
cudnnStatus_t convolve(cudnnHandle_t handle, const Convolution& shapes, const ConvolutionCall& call);
cudnnStatus_t describe(cudnnTensorStruct* made, int n, int c, int h, int w);

/// The calls of a direction: of x and w to y, of w and y to x, or of x and y to w.
template <Direction kDirection, class A, class B, class Result, class Algorithm>
struct Calls {
  static Convolution shapes(A a, B b, cudnnConvolutionDescriptor_t how, Result result) {
    if constexpr (kDirection == Direction::forward) return {kDirection, *a, *b, *result, *how};
    if constexpr (kDirection == Direction::data) return {kDirection, *result, *a, *b, *how};
    if constexpr (kDirection == Direction::filter) return {kDirection, *a, *result, *b, *how};
  }
  static cudnnStatus_t list(cudnnHandle_t, A a, B b, cudnnConvolutionDescriptor_t how, Result result, int asked,
                            int* returned, DuetSimAlgoPerf<Algorithm>* perf) {
    if (!fits_together(shapes(a, b, how, result)) || asked < 1) return CUDNN_STATUS_BAD_PARAM;
    DuetSimAlgoPerf<Algorithm> all[] = {
        // Guesses that turn out wrong, as cuDNN's may: ask_workspace() refuses the first, convolve() the second.
        {Algorithm(3), CUDNN_STATUS_SUCCESS, 0.05f, 0, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH},
        {Algorithm(kRefusedLate), CUDNN_STATUS_SUCCESS, 0.06f, 0, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH},
        {Algorithm(1), CUDNN_STATUS_SUCCESS, 0.1f, kWorkspace, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH},
        {Algorithm(1), CUDNN_STATUS_SUCCESS, 0.15f, kWorkspace, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH},
        {Algorithm(0), CUDNN_STATUS_SUCCESS, 0.2f, 0, CUDNN_NON_DETERMINISTIC, CUDNN_FMA_MATH},
        {Algorithm(2), CUDNN_STATUS_NOT_SUPPORTED, -1, 0, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH}};
    if (how->math == CUDNN_FMA_MATH)
      for (auto& entry : all) entry.mathType = CUDNN_FMA_MATH;
    *returned = std::min(asked, 6);
    std::copy_n(all, *returned, perf);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t workspace(cudnnHandle_t, A a, B b, cudnnConvolutionDescriptor_t how, Result result,
                                 Algorithm algorithm, size_t* bytes) {
    return ask_workspace(shapes(a, b, how, result), algorithm, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const void* alpha, A a_shape, const void* a, B b_shape, const void* b,
                           cudnnConvolutionDescriptor_t how, Algorithm algorithm, void* workspace, size_t bytes,
                           const void* beta, Result result_shape, void* result) {
    return convolve(handle, shapes(a_shape, b_shape, how, result_shape),
                    {algorithm, a, b, result, workspace, bytes, alpha, beta});
  }
};
using Forward = Calls<Direction::forward, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t,
                      cudnnConvolutionFwdAlgo_t>;
using BackwardData = Calls<Direction::data, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
                           cudnnConvolutionBwdDataAlgo_t>;
using BackwardFilter = Calls<Direction::filter, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
                             cudnnFilterDescriptor_t, cudnnConvolutionBwdFilterAlgo_t>;

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

}  // namespace duet_sim

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
size_t cudnnGetVersion();
const char* cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char* message, size_t max_size);
inline auto cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) { return duet_sim::make(d); }
inline auto cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return duet_sim::destroy(d); }
inline auto cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* d) { return duet_sim::make(d); }
inline auto cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return duet_sim::destroy(d); }
inline auto cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* d) { return duet_sim::make(d); }
inline auto cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) { return duet_sim::destroy(d); }
inline auto cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t, cudnnDataType_t, int n, int c,
                                       int h, int w) {
  return duet_sim::describe(d, n, c, h, w);
}
inline auto cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t, cudnnTensorFormat_t, int k, int c,
                                       int h, int w) {
  return duet_sim::describe(d, k, c, h, w);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int stride_h,
                                              int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t,
                                              cudnnDataType_t);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups);

constexpr auto cudnnGetConvolutionForwardAlgorithm_v7 = &duet_sim::Forward::list;
constexpr auto cudnnGetConvolutionForwardWorkspaceSize = &duet_sim::Forward::workspace;
constexpr auto cudnnConvolutionForward = &duet_sim::Forward::run;
constexpr auto cudnnGetConvolutionBackwardDataAlgorithm_v7 = &duet_sim::BackwardData::list;
constexpr auto cudnnGetConvolutionBackwardDataWorkspaceSize = &duet_sim::BackwardData::workspace;
constexpr auto cudnnConvolutionBackwardData = &duet_sim::BackwardData::run;
constexpr auto cudnnGetConvolutionBackwardFilterAlgorithm_v7 = &duet_sim::BackwardFilter::list;
constexpr auto cudnnGetConvolutionBackwardFilterWorkspaceSize = &duet_sim::BackwardFilter::workspace;
constexpr auto cudnnConvolutionBackwardFilter = &duet_sim::BackwardFilter::run;
