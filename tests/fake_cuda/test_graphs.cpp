#include <functional>
#include <thread>
#include <vector>

#include "tests/fake_cuda/gpu.h"

using namespace duet_test;

namespace {

cudaGraphExec_t record(cudaStream_t stream, const std::function<void()>& work) {
  good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  cudaGraph_t graph;
  good(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  good(cudaGraphInstantiate(&exec, graph));
  good(cudaGraphDestroy(graph));
  return exec;
}

/// y = x * 2 + x + 1 by two branches, `joined` or not.
bool forked(bool wait) {
  cudaStream_t one = make_stream(), two = make_stream();
  cudaEvent_t fork = make_event(), join = make_event();
  Buffer x(1), y(1);
  cudaGraphExec_t exec = record(one, [&] {
    good(cudaEventRecord(fork, one));
    good(cudaStreamWaitEvent(two, fork));
    good(launch(multiply, 1, 1, two, x.data, 1, 2.0f));
    good(cudaEventRecord(join, two));
    if (wait) good(cudaStreamWaitEvent(one, join));
    good(cudaMemcpyAsync(y.data, x.data, 4, cudaMemcpyDeviceToDevice, one));
    if (!wait) good(cudaStreamWaitEvent(one, join));
  });
  x.set({3}, one);
  for (int i = 0; i < 3; ++i) good(cudaGraphLaunch(exec, one));
  const bool right = y.get(one)[0] == 24;
  good(cudaGraphExecDestroy(exec));
  good(cudaStreamDestroy(one));
  good(cudaStreamDestroy(two));
  good(cudaEventDestroy(fork));
  good(cudaEventDestroy(join));
  return right;
}

}  // namespace

TEST_CASE("a graph runs on memory as it is at each launch") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream();
  Buffer x(2);
  x.set({1, 2}, stream);
  cudaGraphExec_t exec = record(stream, [&] {
    good(launch(multiply, 1, 2, stream, x.data, 2, 2.0f));
    good(launch(add_number, 1, 2, stream, x.data, 2, 1.0f));
  });
  CHECK(x.get(stream) == std::vector<float>{1, 2});  // recording runs nothing
  for (int i = 0; i < 3; ++i) good(cudaGraphLaunch(exec, stream));
  CHECK(x.get(stream) == std::vector<float>{15, 23});
  x.set({0, 0}, stream);
  good(cudaGraphLaunch(exec, stream));
  CHECK(x.get(stream) == std::vector<float>{1, 1});
  good(cudaGraphExecDestroy(exec));
  good(cudaStreamDestroy(stream));
}

TEST_CASE("branches of a graph run in any order that its events allow") {
  CHECK(wrong_seeds([] { return forked(true); }) == 0);
  CHECK(wrong_seeds([] { return forked(false); }) >= 5);
}

TEST_CASE("what CUDA refuses inside a capture") {
  duet_sim::reset(1);
  cudaStream_t stream = make_stream(), other = make_stream();
  cudaEvent_t event = make_event(), before = make_event();
  Buffer x(2), y(2, 1);
  good(cudaSetDevice(0));
  good(cudaEventRecord(before, other));
  cudaGraph_t graph;
  void* p;
  const auto begin = [&](cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    good(cudaStreamBeginCapture(stream, mode));
    good(launch(add_number, 1, 2, stream, x.data, 2, 1.0f));
  };
  const auto spoilt = [&] {
    cudaStreamCaptureStatus status;
    good(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(launch(add_number, 1, 2, stream, x.data, 2, 1.0f) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    good(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
  };
  begin();
  CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
  spoilt();
  begin();
  CHECK(cudaMalloc(&p, 4) == cudaErrorStreamCaptureUnsupported);
  spoilt();
  begin();
  CHECK(cudaStreamSynchronize(other) == cudaErrorStreamCaptureUnsupported);
  spoilt();
  begin();
  CHECK(cudaEventQuery(before) == cudaErrorStreamCaptureUnsupported);
  spoilt();
  begin();
  float pageable[2];
  CHECK(cudaMemcpyAsync(pageable, x.data, 8, cudaMemcpyDeviceToHost, stream) == cudaErrorStreamCaptureUnsupported);
  spoilt();
  begin();
  CHECK(cudaMemcpyPeerAsync(y.data, 1, x.data, 0, 8, stream) == cudaErrorStreamCaptureUnsupported);
  spoilt();
  begin();
  CHECK(cudaStreamWaitEvent(stream, before) == cudaErrorStreamCaptureIsolation);
  spoilt();
  begin();
  good(cudaEventRecord(event, stream));
  CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  spoilt();

  begin();  // a branch that is not joined
  good(cudaEventRecord(event, stream));
  good(cudaStreamWaitEvent(other, event));
  good(launch(add_number, 1, 2, other, x.data, 2, 1.0f));
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined);

  begin(cudaStreamCaptureModeRelaxed);  // allows allocation
  good(cudaMalloc(&p, 4));
  good(cudaStreamEndCapture(stream, &graph));
  good(cudaGraphDestroy(graph));
  good(cudaFree(p));

  begin();  // other threads may enqueue and allocate
  std::thread([&] {
    while (cudaEventQuery(before) == cudaErrorNotReady) {
    }
    cudaMalloc(&p, 4);
  }).join();
  good(cudaStreamEndCapture(stream, &graph));
  good(cudaGraphDestroy(graph));
  good(cudaFree(p));

  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  begin();
  good(cudaThreadExchangeStreamCaptureMode(&mode));
  good(cudaMalloc(&p, 4));
  good(cudaThreadExchangeStreamCaptureMode(&mode));
  good(cudaStreamEndCapture(stream, &graph));
  good(cudaGraphDestroy(graph));
  good(cudaFree(p));
  good(cudaEventDestroy(event));
  good(cudaEventDestroy(before));
  good(cudaStreamDestroy(stream));
  good(cudaStreamDestroy(other));
}

TEST_CASE("a graph of streams with different priorities is made with the flag that keeps them") {
  duet_sim::reset(1);
  cudaStream_t low = make_stream(), high;
  good(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, -5));
  cudaEvent_t event = make_event();
  Buffer x(1);
  const auto instantiate = [&](cudaStream_t branch, unsigned flags) {
    good(cudaStreamBeginCapture(low, cudaStreamCaptureModeThreadLocal));
    good(launch(add_number, 1, 1, low, x.data, 1, 1.0f));
    good(cudaEventRecord(event, low));
    good(cudaStreamWaitEvent(branch, event));
    good(launch(add_number, 1, 1, branch, x.data, 1, 1.0f));
    good(cudaEventRecord(event, branch));
    good(cudaStreamWaitEvent(low, event));
    cudaGraph_t graph;
    good(cudaStreamEndCapture(low, &graph));
    cudaGraphExec_t exec;
    const cudaError_t error = cudaGraphInstantiate(&exec, graph, flags);
    if (error == cudaSuccess) good(cudaGraphExecDestroy(exec));
    good(cudaGraphDestroy(graph));
    return error;
  };
  cudaStream_t other = make_stream();
  good(instantiate(other, 0));
  good(instantiate(high, cudaGraphInstantiateFlagUseNodePriority));
  CHECK(duet_sim::take_report().empty());
  CHECK(instantiate(high, 0) == cudaErrorInvalidValue);
  CHECK_THAT(duet_sim::take_report(), ContainsSubstring("without cudaGraphInstantiateFlagUseNodePriority"));
  duet_sim::reset(1);
  good(cudaEventDestroy(event));
  for (cudaStream_t stream : {low, high, other}) good(cudaStreamDestroy(stream));
}
