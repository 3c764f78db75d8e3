#include "lib/backend/cuda/conv_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {
namespace {

constexpr std::size_t kMostWorkspace = std::size_t{512} << 20;
constexpr int kMostResults = 16;
constexpr float kOne = 1, kZero = 0;
constexpr int kTimedRuns = 3;
constexpr float kClearlyFaster = 0.95f;

// Algorithms that add up transformed numbers, whose rounding errors are several times those of plain sums: no precision
// promises those. Fused Winograd is offered on GPUs before Hopper only.
bool transforms(cudnnConvolutionFwdAlgo_t algorithm) {
  return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_FFT || algorithm == CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING ||
         algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD || algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
}
bool transforms(cudnnConvolutionBwdDataAlgo_t algorithm) {
  return algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT || algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING ||
         algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD ||
         algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED;
}
bool transforms(cudnnConvolutionBwdFilterAlgo_t algorithm) {
  return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT ||
         algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING ||
         algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
}

struct TimedEvent {
  TimedEvent() { check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags"); }
  ~TimedEvent() { cudaEventDestroy(event); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t event = nullptr;
};

/// Whether a status lies in the range of cuDNN's codes for what it does not support.
bool is_unsupported(cudnnStatus_t status) { return status / 1000 * 1000 == CUDNN_STATUS_NOT_SUPPORTED; }

}  // namespace

ConvPlan::ConvPlan(cudnnHandle_t handle, const ConvKey& key) : key_(key) {
  const char* const op = current_operator();
  const auto set = [&](const TensorDescriptor& tensor, std::int64_t channels, std::int64_t h, std::int64_t w) {
    check(cudnnSetTensor4dDescriptor(tensor.get(), CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, to_int(key.batch, "batch"),
                                     to_int(channels, "channels"), to_int(h, "height"), to_int(w, "width")),
          op);
  };
  const Window2d& window = key.window;
  set(x_, key.in_channels, key.height, key.width);
  set(y_, key.out_channels, window.out_h(key.height), window.out_w(key.width));
  check(cudnnSetFilter4dDescriptor(w_.get(), CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW,
                                   to_int(key.out_channels, "output channels"),
                                   to_int(key.in_channels / key.groups, "channels"),
                                   to_int(window.kernel_h, "kernel height"), to_int(window.kernel_w, "kernel width")),
        op);
  check(cudnnSetConvolution2dDescriptor(conv_.get(), to_int(window.pad_h, "padding"), to_int(window.pad_w, "padding"),
                                        to_int(window.stride_h, "stride"), to_int(window.stride_w, "stride"), 1, 1,
                                        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
        op);
  check(cudnnSetConvolutionGroupCount(conv_.get(), to_int(key.groups, "groups")), op);
  // CUDNN_DEFAULT_MATH lets floats pass through TF32. Numbers rounded to bfloat16 pass through TF32 unchanged.
  check(
      cudnnSetConvolutionMathType(conv_.get(), key.precision == Precision::fp32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH),
      op);
  switch (key.pass) {
    case ConvPass::forward:
      keep_suitable<cudnnConvolutionFwdAlgoPerf_t>(cudnnGetConvolutionForwardAlgorithm_v7,
                                                   cudnnGetConvolutionForwardWorkspaceSize, handle, x_, w_, y_);
      break;
    case ConvPass::backward_data:
      keep_suitable<cudnnConvolutionBwdDataAlgoPerf_t>(cudnnGetConvolutionBackwardDataAlgorithm_v7,
                                                       cudnnGetConvolutionBackwardDataWorkspaceSize, handle, w_, y_,
                                                       x_);
      break;
    case ConvPass::backward_weights:
      keep_suitable<cudnnConvolutionBwdFilterAlgoPerf_t>(cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                                                         cudnnGetConvolutionBackwardFilterWorkspaceSize, handle, x_, y_,
                                                         w_);
      break;
  }
}

template <class Result>
void ConvPlan::keep_suitable(auto list, auto workspace_of, cudnnHandle_t handle, const auto& a, const auto& b,
                             const auto& to) {
  std::array<Result, kMostResults> results{};
  int count = 0;
  check(list(handle, a.get(), b.get(), conv_.get(), to.get(), kMostResults, &count, results.data()),
        current_operator());
  for (const Result& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.status != CUDNN_STATUS_SUCCESS || result.determinism != CUDNN_DETERMINISTIC) continue;
    if (result.memory > kMostWorkspace) continue;
    const bool fma = result.mathType == CUDNN_FMA_MATH || result.mathType == CUDNN_DEFAULT_MATH;
    const bool strict = key_.precision == Precision::fp32;
    if (transforms(result.algo) || (strict && !fma)) continue;
    const cudnnMathType_t math = strict ? CUDNN_FMA_MATH : result.mathType;
    check(cudnnSetConvolutionMathType(conv_.get(), math), current_operator());
    // The list is heuristic: an algorithm in it may not be supported, or may need more workspace than listed.
    std::size_t bytes = 0;
    const cudnnStatus_t status = workspace_of(handle, a.get(), b.get(), conv_.get(), to.get(), result.algo, &bytes);
    if (is_unsupported(status)) continue;
    check(status, current_operator());
    const Choice choice{result.algo, math, bytes};
    const bool listed = std::find(choices_.begin(), choices_.end(), choice) != choices_.end();
    if (bytes <= kMostWorkspace && !listed) choices_.push_back(choice);
  }
  require<DeviceError>(!choices_.empty(), "cuda: ", current_operator(),
                       ": cuDNN offers no repeatable algorithm for this shape");
}

cudnnStatus_t ConvPlan::try_choice(CudaDevice& device, const Choice& choice, const float* a, const float* b,
                                   float* result) {
  const cudnnHandle_t handle = device.cudnn();
  check(cudnnSetConvolutionMathType(conv_.get(), choice.math), current_operator());
  const std::size_t bytes = choice.workspace_bytes;
  // From the pool each time: a recorded step keeps its blocks.
  Tensor scratch;
  if (bytes > 0) scratch = empty({static_cast<std::int64_t>(bytes)}, DType::u8, device.device());
  void* const workspace = scratch.defined() ? scratch.raw() : nullptr;
  switch (key_.pass) {
    case ConvPass::forward:
      return cudnnConvolutionForward(handle, &kOne, x_.get(), a, w_.get(), b, conv_.get(),
                                     static_cast<cudnnConvolutionFwdAlgo_t>(choice.algorithm), workspace, bytes, &kZero,
                                     y_.get(), result);
    case ConvPass::backward_data:
      return cudnnConvolutionBackwardData(handle, &kOne, w_.get(), b, y_.get(), a, conv_.get(),
                                          static_cast<cudnnConvolutionBwdDataAlgo_t>(choice.algorithm), workspace,
                                          bytes, &kZero, x_.get(), result);
    case ConvPass::backward_weights: break;
  }
  return cudnnConvolutionBackwardFilter(handle, &kOne, x_.get(), a, y_.get(), b, conv_.get(),
                                        static_cast<cudnnConvolutionBwdFilterAlgo_t>(choice.algorithm), workspace,
                                        bytes, &kZero, w_.get(), result);
}

float ConvPlan::milliseconds_of(CudaDevice& device, const Choice& choice, const float* a, const float* b,
                                float* result) {
  const TimedEvent begin, end;
  float best = std::numeric_limits<float>::infinity();
  for (int round = 0; round <= kTimedRuns; ++round) {
    check(cudaEventRecord(begin.event, device.stream()), "cudaEventRecord");
    if (!runs(device, choice, a, b, result)) {
      check(cudaStreamSynchronize(device.stream()), current_operator());  // the device itself has not failed
      return std::numeric_limits<float>::infinity();
    }
    check(cudaEventRecord(end.event, device.stream()), "cudaEventRecord");
    check(cudaEventSynchronize(end.event), current_operator());
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "cudaEventElapsedTime");
    if (round > 0) best = std::min(best, milliseconds);  // the first loads the kernels
  }
  return best;
}

bool ConvPlan::runs(CudaDevice& device, const Choice& choice, const float* a, const float* b, float* result) {
  try {
    return try_choice(device, choice, a, b, result) == CUDNN_STATUS_SUCCESS;
  } catch (const DeviceError&) {  // no memory for its workspace
    return false;
  }
}

void ConvPlan::put_fastest_first(CudaDevice& device, const float* a, const float* b, float* result) {
  static std::mutex mutex;
  static auto& fastest = *new std::unordered_map<ConvKey, Choice, ConvKeyHash>;  // shared by all devices
  // Before the lock: what the stream waits for may be enqueued by a thread that waits for the lock.
  check(cudaStreamSynchronize(device.stream()), current_operator());
  const std::lock_guard lock(mutex);
  auto known = fastest.find(key_);
  if (known == fastest.end()) {
    const auto time = [&](const Choice& choice) { return milliseconds_of(device, choice, a, b, result); };
    std::vector<float> times(choices_.size());
    std::transform(choices_.begin(), choices_.end(), times.begin(), time);
    const auto best = std::min_element(times.begin(), times.end());
    // cuDNN's own estimate stands unless another is clearly faster.
    const auto place = *best < kClearlyFaster * times.front() ? best - times.begin() : 0;
    known = fastest.emplace(key_, choices_[static_cast<std::size_t>(place)]).first;
  }
  const auto at = std::find(choices_.begin(), choices_.end(), known->second);
  if (at != choices_.end()) std::rotate(choices_.begin(), at, at + 1);
}

void ConvPlan::run(CudaDevice& device, const float* a, const float* b, float* result) {
  if (!final_ && !is_capturing(device.stream())) {
    if (!key_.deterministic && choices_.size() > 1) put_fastest_first(device, a, b, result);
    final_ = true;
  }
  for (;;) {
    const cudnnStatus_t status = try_choice(device, choices_.front(), a, b, result);
    if (!is_unsupported(status) || choices_.size() == 1) return check(status, current_operator());
    choices_.pop_front();
  }
}

std::size_t ConvKeyHash::operator()(const ConvKey& key) const {
  std::size_t hash = static_cast<std::size_t>(key.pass) * 4 + static_cast<std::size_t>(key.precision);
  for (const std::int64_t part : {key.batch, key.in_channels, key.height, key.width, key.out_channels, key.groups,
                                  key.window.kernel_h, key.window.stride_h, key.window.pad_h})
    hash = hash * 1000003 + static_cast<std::size_t>(part);
  return hash;
}

ConvPlan& ConvPlans::plan(cudnnHandle_t handle, const ConvKey& key) {
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(std::piecewise_construct, std::forward_as_tuple(key), std::forward_as_tuple(handle, key))
      .first->second;
}

ConvPlans& CudaDevice::conv_plans() {
  if (!conv_plans_) conv_plans_ = std::make_shared<ConvPlans>();
  return *conv_plans_;
}

}  // namespace duet::cuda
