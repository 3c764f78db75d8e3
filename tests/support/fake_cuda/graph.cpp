#include <algorithm>
#include <thread>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  cudaStream_t origin;
  std::vector<Node> nodes;
  std::set<cudaStream_t> members;
  bool valid = true;
};

namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

void add(std::vector<std::size_t>& all, const std::vector<std::size_t>& more) {
  for (std::size_t node : more)
    if (std::find(all.begin(), all.end(), node) == all.end()) all.push_back(node);
}

}  // namespace

cudaError_t invalidate(const std::shared_ptr<Capture>& capture, cudaError_t error) {
  capture->valid = false;
  return error;
}

bool forbidden_by_capture() {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return false;
  bool forbidden = false;
  for (const auto& capture : state().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool hit =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : capture->mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal;
    if (hit) invalidate(capture, cudaSuccess);
    forbidden |= hit;
  }
  return forbidden;
}

cudaError_t record_node(cudaStream_t stream, const Maker& make) {
  if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
  stream->capture->nodes.push_back({make, stream->last});
  stream->last = {stream->capture->nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t join_capture(cudaStream_t stream, cudaEvent_t event) {
  if (event->capture == nullptr)  // work outside of the graph
    return event->record == nullptr ? cudaSuccess : invalidate(stream->capture, cudaErrorStreamCaptureIsolation);
  if (!state().captures.count(event->capture)) {
    if (stream->capture != nullptr) invalidate(stream->capture, cudaSuccess);
    return cudaErrorCapturedEvent;
  }
  if (stream->capture != nullptr && stream->capture != event->capture) {
    invalidate(event->capture, cudaSuccess);
    return invalidate(stream->capture, cudaErrorStreamCaptureMerge);
  }
  if (stream->capture == nullptr) {
    stream->capture = event->capture;
    stream->capture->members.insert(stream);
    stream->last.clear();
  }
  add(stream->last, event->nodes);
  return cudaSuccess;
}

}  // namespace duet_sim

struct CUgraph_st {
  std::vector<duet_sim::Node> nodes;
};
struct CUgraphExec_st {
  std::vector<duet_sim::Node> nodes;
  duet_sim::OpPtr last;  // launches of one graph run one after the other
};

using namespace duet_sim;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (cudaError_t error = enter("cudaStreamBeginCapture")) return error;
  std::lock_guard lock(state().mutex);
  if (stream == nullptr) return set_last(cudaErrorStreamCaptureUnsupported);
  if (!state().streams.count(stream)) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return set_last(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->origin = stream;
  stream->capture->members.insert(stream);
  stream->last.clear();
  state().captures.insert(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (cudaError_t error = enter("cudaStreamEndCapture")) return error;
  std::lock_guard lock(state().mutex);
  *graph = nullptr;
  if (!state().streams.count(stream) || stream->capture == nullptr) return set_last(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) return set_last(invalidate(capture, cudaErrorStreamCaptureUnmatched));
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return set_last(invalidate(capture, cudaErrorStreamCaptureWrongThread));
  // Whatever was asked of another stream must come before the end of the first one.
  std::vector<bool> joined(capture->nodes.size());
  std::vector<std::size_t> open = stream->last;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (joined[node]) continue;
    joined[node] = true;
    for (std::size_t before : capture->nodes[node].before) open.push_back(before);
  }
  for (cudaStream_t member : capture->members)
    if (state().streams.count(member)) member->capture = nullptr;
  state().captures.erase(capture);
  const std::vector<Node> nodes = std::move(capture->nodes);  // events may still name the capture
  if (!capture->valid) return set_last(cudaErrorStreamCaptureInvalidated);
  if (std::count(joined.begin(), joined.end(), false) != 0) return set_last(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{nodes};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  std::lock_guard lock(state().mutex);
  cudaStream_t known = resolve(stream);
  if (known == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  *status = known->capture == nullptr ? cudaStreamCaptureStatusNone
            : known->capture->valid   ? cudaStreamCaptureStatusActive
                                      : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (cudaError_t error = enter("cudaGraphInstantiate")) return error;
  *exec = new CUgraphExec_st{graph->nodes, nullptr};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t given) {
  if (cudaError_t error = enter("cudaGraphLaunch")) return error;
  std::lock_guard lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  if (stream->capture) return set_last(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  Ops made, leaves{stream->tail};
  for (const Node& node : exec->nodes) {
    Ops before{stream->tail, exec->last};
    for (std::size_t i : node.before) before.push_back(made[i]);
    made.push_back(node.make(before));
    leaves.push_back(made.back());
  }
  Op end{"cudaGraphLaunch"};
  end.device = stream->device;
  stream->tail = exec->last = schedule(end, leaves);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  std::lock_guard lock(state().mutex);
  delete exec;
  state().changed.notify_all();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  std::lock_guard lock(state().mutex);
  delete graph;
  state().changed.notify_all();
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return set_last(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}

}  // extern "C"
