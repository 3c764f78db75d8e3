#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

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

// CUDA's own default is stricter: captures in the global mode forbid other threads' calls too. Duet has none of those.
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeThreadLocal;

void add(std::vector<std::size_t>& all, const std::vector<std::size_t>& more) {
  for (std::size_t node : more)
    if (std::find(all.begin(), all.end(), node) == all.end()) all.push_back(node);
}

/// Whether what `last` names comes after all that the capture holds.
bool all_come_before(const Capture& capture, std::vector<std::size_t> last) {
  std::set<std::size_t> seen;
  while (!last.empty()) {
    const std::size_t node = last.back();
    last.pop_back();
    if (!seen.insert(node).second) continue;
    for (std::size_t before : capture.nodes[node].before) last.push_back(before);
  }
  return seen.size() == capture.nodes.size();
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
    if (capture->thread != std::this_thread::get_id() || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    invalidate(capture, cudaSuccess);
    forbidden = true;
  }
  return forbidden;
}

cudaError_t record_node(cudaStream_t stream, const Maker& make) {
  if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
  stream->capture->nodes.push_back({make, stream->last, stream->priority});
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

namespace {

template <class Graph>
cudaError_t destroy(Graph* graph) {
  const std::lock_guard lock(state().mutex);
  delete graph;
  state().changed.notify_all();
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t given, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", given, [&](Lock&, cudaStream_t stream) {
    if (given == nullptr) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>(Capture{mode, std::this_thread::get_id(), stream, {}, {stream}});
    stream->last.clear();
    state().captures.insert(stream->capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t given, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", given, [&](Lock&, cudaStream_t stream) {
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (capture == nullptr) return cudaErrorIllegalState;
    if (capture->origin != stream) return invalidate(capture, cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
      return invalidate(capture, cudaErrorStreamCaptureWrongThread);
    const bool joined = all_come_before(*capture, stream->last);
    for (cudaStream_t member : capture->members)
      if (state().streams.count(member)) member->capture = nullptr;
    state().captures.erase(capture);
    const std::vector<Node> nodes = std::move(capture->nodes);  // events may still name the capture
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t given, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(state().mutex);
  cudaStream_t stream = resolve(given);
  if (stream == nullptr) return set_last(cudaErrorInvalidResourceHandle);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->valid   ? cudaStreamCaptureStatusActive
                                       : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return call("cudaGraphInstantiate", [&](Lock&) {
    const bool keeps = flags & cudaGraphInstantiateFlagUseNodePriority;
    for (const Node& node : graph->nodes) {
      if (keeps || node.priority == graph->nodes[0].priority) continue;
      report("a graph of streams with priorities is made without cudaGraphInstantiateFlagUseNodePriority");
      return cudaErrorInvalidValue;
    }
    *exec = new CUgraphExec_st{graph->nodes, nullptr};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t given) {
  return call("cudaGraphLaunch", given, [&](Lock&, cudaStream_t stream) {
    if (stream->capture) return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported);
    Ops made, leaves{stream->tail};
    for (const Node& node : exec->nodes) {
      Ops before{stream->tail, exec->last};
      for (std::size_t i : node.before) before.push_back(made[i]);
      made.push_back(node.make(before));
      leaves.push_back(made.back());
    }
    stream->add(exec->last = schedule(Op("cudaGraphLaunch", stream->device), leaves));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return destroy(exec); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy(graph); }
