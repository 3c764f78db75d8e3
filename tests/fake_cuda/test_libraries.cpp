#include <cublas_v2.h>
#include <cudnn.h>

#include <cstddef>
#include <vector>

#include "tests/fake_cuda/gpu.h"

using namespace duet_test;

TEST_CASE("cuBLAS multiplies on its stream, and rounds to TF32 only when set") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  cublasHandle_t handle;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetStream(handle, stream) == CUBLAS_STATUS_SUCCESS);
  Buffer a(6), b(6), c(4);
  a.set({1, 2, 3, 4, 5, 6}, stream);     // rows of 2 x 3
  b.set({1, 0, 1, 0, 2, 1.5f}, stream);  // rows of 2 x 3
  const float one = 1, zero = 0;
  // Row-major c (2, 2) = a b^T is column-major b a^T.
  const auto multiply_them = [&] {
    REQUIRE(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 3, &one, b.data, 3, a.data, 3, &zero, c.data, 2) ==
            CUBLAS_STATUS_SUCCESS);
    return c.get(stream);
  };
  CHECK(multiply_them() == std::vector<float>{4, 8.5f, 10, 19});
  const float fine = 1 + 1.0f / 4096;
  a.set({fine, 0, 0, 0, 0, 0}, stream);
  CHECK(multiply_them()[0] == fine);
  REQUIRE(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
  CHECK(multiply_them()[0] == 1);
  good(cudaSetDevice(1));
  CHECK(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 3, &one, b.data, 3, a.data, 3, &zero, c.data, 2) !=
        CUBLAS_STATUS_SUCCESS);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("the handle is of device 0, the current device is 1"));
  good(cudaSetDevice(0));
  duet_sim::take_report();
  // Inside a capture it may not allocate its workspace.
  const auto captured = [&] {
    cudaGraph_t graph = nullptr;
    good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const cublasStatus_t status =
        cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 3, &one, b.data, 3, a.data, 3, &zero, c.data, 2);
    good(cudaStreamEndCapture(stream, &graph));
    good(cudaGraphDestroy(graph));
    return status;
  };
  CHECK(captured() == CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("cublasSetWorkspace goes after cublasSetStream"));
  Buffer<char> workspace(4096);
  REQUIRE(cublasSetWorkspace(handle, workspace.data, 4096) == CUBLAS_STATUS_SUCCESS);
  CHECK(captured() == CUBLAS_STATUS_SUCCESS);
  cublasDestroy(handle);
  // Nor may a handle that was never used be used there.
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetStream(handle, stream) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetWorkspace(handle, workspace.data, 4096) == CUBLAS_STATUS_SUCCESS);
  cudaGraph_t graph = nullptr;
  good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 3, &one, b.data, 3, a.data, 3, &zero, c.data, 2) ==
        CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("cublasSgemm: the handle's first use is inside a capture"));
  multiply_them();
  CHECK(captured() == CUBLAS_STATUS_SUCCESS);
  cublasDestroy(handle);
  good(cudaStreamDestroy(stream));
}

TEST_CASE("cuDNN convolves forward and back, strictly with FMA_MATH") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t xd, yd;
  cudnnFilterDescriptor_t wd;
  cudnnConvolutionDescriptor_t conv;
  cudnnCreate(&handle);
  cudnnSetStream(handle, stream);
  cudnnCreateTensorDescriptor(&xd);
  cudnnCreateTensorDescriptor(&yd);
  cudnnCreateFilterDescriptor(&wd);
  cudnnCreateConvolutionDescriptor(&conv);
  cudnnSetTensor4dDescriptor(xd, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 3, 3);
  cudnnSetTensor4dDescriptor(yd, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 2, 2);
  cudnnSetFilter4dDescriptor(wd, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 2, 2);
  cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  cudnnSetConvolutionMathType(conv, CUDNN_FMA_MATH);
  cudnnConvolutionFwdAlgoPerf_t perf[3] = {};
  int count = 0;
  REQUIRE(cudnnGetConvolutionForwardAlgorithm_v7(handle, xd, wd, conv, yd, 3, &count, perf) == CUDNN_STATUS_SUCCESS);
  REQUIRE(count == 3);
  std::size_t bytes_needed = 0;  // the first is a guess that turns out wrong
  CHECK(cudnnGetConvolutionForwardWorkspaceSize(handle, xd, wd, conv, yd, perf[0].algo, &bytes_needed) ==
        CUDNN_STATUS_NOT_SUPPORTED);
  Buffer x(9), w(4), y(4), dx(9), dw(4);
  Buffer<char> workspace(perf[2].memory);
  x.set({1, 2, 3, 4, 5, 6, 7, 8, 9}, stream);
  w.set({1, 0, 0, 2}, stream);
  const float one = 1, zero = 0;
  const auto forward = [&](std::size_t bytes) {
    return cudnnConvolutionForward(handle, &one, xd, x.data, wd, w.data, conv, perf[2].algo, workspace.data, bytes,
                                   &zero, yd, y.data);
  };
  const cudnnStatus_t late =
      cudnnConvolutionForward(handle, &one, xd, x.data, wd, w.data, conv, perf[1].algo, nullptr, 0, &zero, yd, y.data);
  CHECK(late / 1000 * 1000 == CUDNN_STATUS_NOT_SUPPORTED);
  CHECK(forward(perf[2].memory - 1) == CUDNN_STATUS_BAD_PARAM);
  REQUIRE(forward(perf[2].memory) == CUDNN_STATUS_SUCCESS);
  CHECK(y.get(stream) == std::vector<float>{11, 14, 20, 23});
  REQUIRE(cudnnConvolutionBackwardData(handle, &one, wd, w.data, yd, y.data, conv, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
                                       nullptr, 0, &zero, xd, dx.data) == CUDNN_STATUS_SUCCESS);
  CHECK(dx.get(stream) == std::vector<float>{11, 14, 0, 20, 23 + 22, 28, 0, 40, 46});
  REQUIRE(cudnnConvolutionBackwardFilter(handle, &one, xd, x.data, yd, y.data, conv,
                                         CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, nullptr, 0, &zero, wd,
                                         dw.data) == CUDNN_STATUS_SUCCESS);
  CHECK(dw.get(stream) ==
        std::vector<float>{11 + 28 + 80 + 115, 22 + 42 + 100 + 138, 44 + 70 + 140 + 184, 55 + 84 + 160 + 207});
  const float fine = 1 + 1.0f / 4096;
  w.set({fine, 0, 0, 0}, stream);
  REQUIRE(forward(perf[2].memory) == CUDNN_STATUS_SUCCESS);
  CHECK(y.get(stream)[0] == fine);
  cudnnSetConvolutionMathType(conv, CUDNN_DEFAULT_MATH);
  REQUIRE(forward(perf[2].memory) == CUDNN_STATUS_SUCCESS);
  CHECK(y.get(stream)[0] == 1);
  duet_sim::reset(1, "cudnnConvolutionForward:1");
  CHECK(forward(perf[2].memory) == CUDNN_STATUS_EXECUTION_FAILED);
  duet_sim::reset(1);
  cudnnDestroyTensorDescriptor(xd);
  cudnnDestroyTensorDescriptor(yd);
  cudnnDestroyFilterDescriptor(wd);
  cudnnDestroyConvolutionDescriptor(conv);
  cudnnDestroy(handle);
  good(cudaStreamDestroy(stream));
}
