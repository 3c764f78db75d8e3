#include "cli/train/collective_bursts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cli/model/collective_times.h"
#include "cli/model/fit.h"
#include "cli/system/burst_block.h"
#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "cli/train/rank_events.h"
#include "cli/train/training_loop.h"
#include "lib/base/trace.h"
#include "lib/monotonic.h"
#include "lib/tensor.h"

namespace duet::cli {
namespace {

constexpr std::int64_t kTracedSteps = 12;
constexpr std::size_t kTraceEvents = 1 << 14;

double us_since(std::int64_t begin_ns) { return static_cast<double>(monotonic_ns() - begin_ns) / 1e3; }

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

class CollectiveBursts {
 public:
  CollectiveBursts(Setup& setup, ddp::ProcessGroup& group)
      : setup_(setup), group_(group), gradients_(setup.model().parameters().gradients()) {
    trace_steps();
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

  void serve(BurstPort& port) {
    while (const int passes = port.next()) burst(passes, port);
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
    times_.buckets = fit_buckets(bytes, times).value.value_or(std::vector<GradientBucket>());
  }

  /// One call of each size, begun by all ranks together; in us.
  void pass(std::vector<double>& us) {
    for (const std::int64_t count : counts_) {
      const ddp::Buffer buffer(gradients_.raw(), count, DType::f32);
      group_.barrier().wait();
      const std::int64_t begin_ns = monotonic_ns();
      group_.all_reduce(buffer).wait();
      us.push_back(us_since(begin_ns));
    }
  }

  /// As ddp::average_gradients(), of memory that the ranks do not share.
  double average() {
    group_.barrier().wait();
    const std::int64_t begin_ns = monotonic_ns();
    std::span<float> rest = other_;
    for (const double bytes : times_.parameter_bytes) {
      const std::span<float> parameter = rest.first(static_cast<std::size_t>(bytes) / sizeof(float));
      rest = rest.subspan(parameter.size());
      group_.all_reduce(parameter).wait();
      for (float& value : parameter) value /= static_cast<float>(group_.size());
    }
    return us_since(begin_ns);
  }

  TimePoint add() {
    const std::span<float> sums = gradients_.span<float>();
    const std::int64_t begin_ns = monotonic_ns();
    std::transform(sums.begin(), sums.end(), other_.begin(), sums.begin(), [](float a, float b) { return a + b; });
    return {.at = static_cast<double>(sums.size_bytes()), .us = us_since(begin_ns)};
  }

  void burst(int passes, BurstPort& port) {
    std::vector<double> us, averages, additions;
    pass(us);  // not counted
    us.clear();
    const std::int64_t begin_ns = monotonic_ns();
    for (int i = 0; i < passes; ++i) {
      pass(us);
      averages.push_back(average());
      additions.push_back(add().us);
    }
    const double wall_us = us_since(begin_ns);
    // The rank that came last out of a barrier waited for none.
    group_.all_reduce(std::span(averages), ddp::ReduceOp::min).wait();
    group_.all_reduce(std::span(us), ddp::ReduceOp::min).wait();
    times_.all_reduces.clear();
    for (std::size_t size = 0; size < counts_.size(); ++size) {
      std::vector<double> calls;
      for (std::size_t i = size; i < us.size(); i += counts_.size()) calls.push_back(us[i]);
      times_.all_reduces.push_back({.at = static_cast<double>(counts_[size]) * sizeof(float), .us = median(calls)});
    }
    times_.averaging = {.at = static_cast<double>(gradients_.bytes()), .us = median(averages)};
    times_.addition = {.at = static_cast<double>(gradients_.bytes()), .us = median(additions)};
    if (group_.rank() == 0) port.report(to_json(times_));
    port.report(RankBurst{.wall_s = wall_us / 1e6, .median_us = wall_us / passes});
  }

  Setup& setup_;
  ddp::ProcessGroup& group_;
  Tensor gradients_;
  std::vector<float> other_;
  std::vector<std::int64_t> counts_;  // floats
  CollectiveTimes times_;
};

}  // namespace

void serve_collectives(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group) {
  end_by_signals();
  CollectiveBursts bursts(setup, group);
  BurstPort port(options.bursts, group.rank());
  bursts.serve(port);
}

}  // namespace duet::cli
