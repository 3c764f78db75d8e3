// A rank of ddp that times the all-reduces of its network alone.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "cli/train/bursts.h"
#include "cli/train/training_loop.h"
#include "ddp/group/gather_text.h"
#include "lib/base/trace.h"
#include "lib/device.h"
#include "lib/monotonic.h"
#include "lib/tensor.h"
#include "measure/events.h"
#include "measure/statistics.h"
#include "model/cost_model.h"
#include "model/fit.h"

namespace duet::cli {
namespace {

constexpr std::int64_t kTracedSteps = 12;
constexpr std::size_t kTraceEvents = 1 << 14;
constexpr double kLongestPauseUs = 1000;
constexpr double kShortestUs = 0.1;  // of a call

/// The all-reduces of a step, from backward's begin on. Backward ends when its last bucket is ready.
struct TracedStep {
  std::vector<double> bytes{};
  BackwardTimes times{};
};

TracedStep traced(const RankStep& step) {
  TracedStep found;
  const auto backward = std::find_if(step.events.begin(), step.events.end(),
                                     [](const RankEvent& event) { return event.name == "backward"; });
  if (backward == step.events.end()) return found;
  for (const RankEvent& event : step.events) {
    if (!event.is_communication() || event.begin_ns < backward->begin_ns || event.begin_ns > backward->end_ns) continue;
    found.bytes.push_back(static_cast<double>(event.amount));
    found.times.ready_us.push_back(static_cast<double>(event.begin_ns - backward->begin_ns) / 1e3);
  }
  if (!found.bytes.empty()) found.times.backward_us = found.times.ready_us.back();
  return found;
}

/// When calls began on the last rank, which others wait for, and when they ended.
struct Calls {
  std::vector<double> begins_us{}, ends_us{};

  /// Of every `stride`-th call from `first` on: what they took without the wait.
  double median_us(std::size_t first, std::size_t stride) const {
    std::vector<double> us;
    for (std::size_t i = first; i < ends_us.size(); i += stride) us.push_back(ends_us[i] - begins_us[i]);
    return std::max(kShortestUs, median(us));
  }
};

class CollectiveBursts {
 public:
  CollectiveBursts(Setup& setup, ddp::ProcessGroup& group)
      : setup_(setup), group_(group), gradients_(setup.model().parameters().gradients()) {
    trace_steps();
    for (const Device device : setup.devices) allocator(device).empty_cache();  // no more steps
    for (const auto& slot : setup.model().parameters().slots())
      times_.parameter_bytes.push_back(static_cast<double>(slot.shape.count()) * sizeof(float));
    std::set<std::int64_t> counts = {1, gradients_.count() / 16 + 1, gradients_.count()};
    for (const GradientBucket& bucket : times_.buckets)
      counts.insert(static_cast<std::int64_t>(bucket.bytes / sizeof(float)));
    counts_.assign(counts.begin(), counts.end());
    const std::span<float> values = gradients_.span<float>();
    std::fill(values.begin(), values.end(), 0.0F);  // sums of zeros stay in range
    other_.assign(values.size(), 0.0F);
  }

  /// The answer to a command.
  std::string burst(int passes) {
    calibrate();
    measure(1);  // not counted
    const Clock::time_point begin = Clock::now();
    const Passes all = measure(passes);
    times_.pass_us = microseconds_since(begin) / passes;
    times_.all_reduces.clear();
    for (std::size_t size = 0; size < counts_.size(); ++size)
      times_.all_reduces.push_back(
          {.at = static_cast<double>(counts_[size]) * sizeof(float), .us = all.calls.median_us(size, counts_.size())});
    const auto bytes = static_cast<double>(gradients_.bytes());
    times_.averaging = {.at = bytes, .us = all.averages.median_us(0, 1)};
    times_.addition = {.at = bytes, .us = median(all.additions)};
    return to_json(times_);
  }

 private:
  void trace_steps() {
    Trace::start(kTraceEvents);
    StepClock clock(monotonic_ns(), setup_.times, setup_.devices.at(0));
    clock.begin_epoch(setup_.loader->steps(), 0);
    train_epoch(setup_, 1, clock, [&] { return clock.epoch_step() < kTracedSteps; });
    const RankSteps steps = steps_of(events_of(trace_text(Trace::take())));
    std::vector<double> bytes;
    std::vector<BackwardTimes> times;
    for (const auto& [number, step] : steps) {
      TracedStep found = traced(step);
      if (bytes.empty()) bytes = found.bytes;
      if (found.bytes == bytes) times.push_back(std::move(found.times));
    }
    times_.buckets = fit_buckets(bytes, times);
    std::vector<double> backwards;
    for (const BackwardTimes& each : times) backwards.push_back(each.backward_us);
    times_.backward_us = median(backwards);
    times_ = collective_times_from_json(ddp::all_gather_texts(group_, to_json(times_)).at(0));  // the same on all ranks
    pause_us_ = std::min(times_.backward_us, kLongestPauseUs);
  }

  /// Computes for about so long, in the innermost cache: what calls leave in the others makes no difference.
  void compute(double us) {
    for (double left = us; left > 0; left -= chunk_us_)
      for (float& value : work_) value = value * 0.5F + 1;
  }

  void calibrate() {
    constexpr double kChunks = 200;
    std::vector<double> times;
    chunk_us_ = 1;
    for (int i = 0; i < 9; ++i) {
      const Clock::time_point begin = Clock::now();
      compute(kChunks);
      times.push_back(microseconds_since(begin) / kChunks);
    }
    chunk_us_ = std::max(1e-3, median(times));
  }

  /// `call` after a pause in which this rank computes. As in training, nothing but the calls themselves keeps the ranks
  /// together: a rank that ends one late begins the next late.
  template <class Call>
  void after_pause(Calls& calls, const Call& call) {
    compute(pause_us_);
    calls.begins_us.push_back(static_cast<double>(monotonic_ns()) / 1e3);
    call();
    calls.ends_us.push_back(static_cast<double>(monotonic_ns()) / 1e3);
  }

  void pass(Calls& calls) {
    for (const std::int64_t count : counts_)
      after_pause(calls, [&] { group_.all_reduce(ddp::Buffer(gradients_.raw(), count, DType::f32)).wait(); });
  }

  /// As ddp::average_gradients(), of memory that the ranks do not share.
  void average(Calls& calls) {
    after_pause(calls, [&] {
      std::span<float> rest = other_;
      for (const double bytes : times_.parameter_bytes) {
        const std::span<float> parameter = rest.first(static_cast<std::size_t>(bytes) / sizeof(float));
        rest = rest.subspan(parameter.size());
        group_.all_reduce(parameter).wait();
        for (float& value : parameter) value /= static_cast<float>(group_.size());
      }
    });
  }

  double add() {
    const std::span<float> sums = gradients_.span<float>();
    const Clock::time_point begin = Clock::now();
    std::transform(sums.begin(), sums.end(), other_.begin(), sums.begin(), [](float a, float b) { return a + b; });
    return microseconds_since(begin);
  }

  struct Passes {
    Calls calls, averages;
    std::vector<double> additions;
  };

  Passes measure(int passes) {
    Passes all;
    for (int i = 0; i < passes; ++i) {
      pass(all.calls);
      average(all.averages);
      all.additions.push_back(add());
    }
    for (std::vector<double>* const us : {&all.calls.begins_us, &all.averages.begins_us})
      group_.all_reduce(std::span(*us), ddp::ReduceOp::max).wait();  // of the last rank, which the others wait for
    for (std::vector<double>* const us : {&all.calls.ends_us, &all.averages.ends_us})
      group_.all_reduce(std::span(*us), ddp::ReduceOp::avg).wait();
    return all;
  }

  Setup& setup_;
  ddp::ProcessGroup& group_;
  Tensor gradients_;
  std::vector<float> other_;
  std::vector<std::int64_t> counts_;  // floats
  double pause_us_ = 0;
  double chunk_us_ = 1;
  std::array<float, 1024> work_{};
  CollectiveTimes times_;
};

}  // namespace

void serve_collectives(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group) {
  end_by_signals();
  CollectiveBursts bursts(setup, group);
  BurstPort(options.bursts, group.rank()).serve("{}", [&](int passes) { return bursts.burst(passes); });
}

}  // namespace duet::cli
