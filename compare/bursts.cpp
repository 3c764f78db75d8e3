#include "compare/bursts.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "compare/cost_model/cost_model.h"
#include "compare/cost_model/fit.h"
#include "ddp/group/compare_ranks.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "ddp/script_steps.h"
#include "lib/autograd/check_finite.h"
#include "lib/backend/backend.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"
#include "lib/tensor.h"
#include "train/measure/events.h"
#include "train/measure/json_fields.h"
#include "train/measure/statistics.h"
#include "train/system/child_process.h"
#include "train/system/files.h"
#include "train/system/machine.h"
#include "train/system/signals.h"
#include "train/trainer.h"
#include "train/training_loop.h"

namespace duet::cli {
namespace {

// Caches and clock rates are those of another cell when a burst begins. The first step after these is not timed,
// either, and is enough where steps are so long that a burst has few of them.
constexpr std::int64_t kWarmUp = 1, kFewSteps = 5;

constexpr std::int64_t kTracedSteps = 12;
constexpr double kLongestPauseUs = 1000;
constexpr double kShortestUs = 0.1;  // lower bound of a call's median time

Descriptor opened(const std::string& fifo, int access) {
  Descriptor file(::open(fifo.c_str(), access | O_CLOEXEC));
  require<DataError>(file.open(), "cannot open ", fifo, ": ", last_errno);
  return file;
}

/// A parked rank has no memory for activations: the processes of all cells are there at the same time.
void empty_caches(const Setup& setup) {
  for (const Device device : setup.devices) allocator(device).empty_cache();
}

/// Bursts of a training's steps.
class Bursts {
 public:
  Bursts(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group)
      : options_(options), setup_(setup), group_(group), port_(options.bursts, group.rank()) {}

  void serve() {
    empty_caches(setup_);
    port_.serve(
        "{}", [this](int steps) { return burst(steps); }, [this] { linger(); });
  }

 private:
  bool reports_process() const { return options_.workers == "process" || group_.rank() == 0; }

  /// Copies train until the last has ended its steps: the others would leave it the machine.
  void linger() {
    if (options_.mode == Mode::copies) {
      StepClock more = clock();
      train_until(more, [&](std::int64_t) { return port_.commanded(); });
    }
    empty_caches(setup_);
  }

  bool communicates() const { return options_.mode != Mode::copies; }

  /// Trains until `enough()` holds after a step, over as many epochs as that takes.
  template <class Enough>
  void train_until(StepClock& clock, const Enough& enough) {
    const std::int64_t steps = setup_.loader->steps();
    std::int64_t before = 0;
    bool ended = false;
    while (!ended) {
      clock.begin_epoch(steps, 0);
      train_epoch(setup_, clock, [&] {
        ended = enough(before + clock.epoch_step());
        return !ended;
      });
      before += clock.epoch_step();
    }
  }

  std::string burst(std::int64_t steps) {
    const std::uint64_t trace_begin = Trace::position();
    std::array<double, 1> begin{};
    sum_over_ranks(group_, begin);  // copies have nothing else that lets them begin together
    if (steps >= kFewSteps) {
      StepClock warm = clock();
      train_until(warm, [](std::int64_t done) { return done >= kWarmUp; });
    }
    StepClock timed = clock();
    CpuUse use;
    std::int64_t begin_ns = 0;
    train_until(timed, [&](std::int64_t done) {
      if (begin_ns == 0 && done > 0) {
        if (reports_process()) use = cpu_use();
        begin_ns = monotonic_ns();
      }
      return done > steps;
    });
    const double wall_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    if (reports_process()) use = cpu_use() - use;
    return report(timed, trace_begin, wall_s, use);
  }

  std::string report(const StepClock& clock, std::uint64_t trace_begin, double wall_s, const CpuUse& use) {
    const std::vector<double> steps(clock.steps_us().begin(), clock.steps_us().end());
    Run run;
    run.devices = options_.devices;
    clock.fill(run);
    if (communicates()) average_over_ranks(run, group_);
    if (communicates() && traces(options_)) gather_trace(run, trace_begin, options_, group_);
    run.median_step.clear();  // that of the training is shown
    return to_json(RankBurst{.wall_s = wall_s,
                             .used_s = use.used_s,
                             .delayed_s = use.delayed_s,
                             .median_us = median(steps),
                             .spread_share = fit_spread(steps),
                             .run = group_.rank() == 0 || !communicates() ? std::optional(run) : std::nullopt});
  }

  StepClock clock() const { return StepClock(monotonic_ns(), lane_of(setup_, group_)); }

  const TrainOptions& options_;
  Setup& setup_;
  ddp::ProcessGroup& group_;
  BurstPort port_;
};

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

  /// The median time, without the wait, of every `stride`-th call from `first` on.
  double median_us(std::size_t first, std::size_t stride) const {
    std::vector<double> us;
    for (std::size_t i = first; i < ends_us.size(); i += stride) us.push_back(ends_us[i] - begins_us[i]);
    return std::max(kShortestUs, median(us));
  }
};

/// Bursts of passes over all sizes of all-reduces alone.
class CollectiveBursts {
 public:
  CollectiveBursts(Setup& setup, ddp::ProcessGroup& group)
      : setup_(setup), group_(group), gradients_(setup.model().parameters().gradients()) {
    trace_steps();
    empty_caches(setup);  // no more steps
    for (const auto& slot : setup.model().parameters().slots())
      times_.parameter_bytes.push_back(static_cast<double>(slot.shape.count()) * sizeof(float));
    std::set<std::int64_t> counts = {1, gradients_.count() / 16 + 1, gradients_.count()};
    for (const GradientBucket& bucket : times_.buckets)
      counts.insert(static_cast<std::int64_t>(bucket.bytes / sizeof(float)));
    counts_.assign(counts.begin(), counts.end());
    const std::span<float> values = gradients_.span<float>();
    std::fill(values.begin(), values.end(), 0.0F);  // sums of zeros stay in range
    other_ = zeros(gradients_.shape());
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
      times_.all_reduces.push_back({.bytes = static_cast<double>(counts_[size]) * sizeof(float),
                                    .us = all.calls.median_us(size, counts_.size())});
    const auto bytes = static_cast<double>(gradients_.bytes());
    times_.averaging = {.bytes = bytes, .us = all.averages.median_us(0, 1)};
    times_.addition = {.bytes = bytes, .us = median(all.additions)};
    return to_json(times_);
  }

 private:
  void trace_steps() {
    const std::uint64_t trace_begin = Trace::position();
    StepClock clock(monotonic_ns(), lane_of(setup_, group_));
    clock.begin_epoch(setup_.loader->steps(), 0);
    train_epoch(setup_, clock, [&] { return clock.epoch_step() < kTracedSteps; });
    std::vector<TraceEvent> events;
    Trace::read(trace_begin, events);
    const RankSteps steps = steps_of(events_of(trace_text(events)));
    std::vector<double> bytes;
    std::vector<BackwardTimes> times;
    for (const auto& [number, step] : steps) {
      TracedStep found = traced(step);
      if (bytes.empty()) bytes = found.bytes;
      if (found.bytes == bytes) times.push_back(std::move(found.times));
    }
    times_.buckets = fit_buckets(bytes, times);
    times_.backward_us = median(of_each(times, &BackwardTimes::backward_us));
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

  /// Averages buffers of the parameters' sizes as ddp::average_gradients() does, in memory that ranks do not share.
  void average(Calls& calls) {
    after_pause(calls, [&] {
      std::span<float> rest = other_.span<float>();
      for (const double bytes : times_.parameter_bytes) {
        const std::span<float> parameter = rest.first(static_cast<std::size_t>(bytes) / sizeof(float));
        rest = rest.subspan(parameter.size());
        group_.all_reduce(parameter).wait();
        for (float& value : parameter) value /= static_cast<float>(group_.size());
      }
    });
  }

  /// As DataParallel adds gradients up.
  double add() {
    const std::array parts = {gradients_, other_};
    const Clock::time_point begin = Clock::now();
    backend(DeviceKind::cpu).sum_devices(parts, gradients_, false, 0, 1);
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
      group_.all_reduce(std::span(*us), ddp::ReduceOp::max).wait();  // begins on the last rank, which others wait for
    for (std::vector<double>* const us : {&all.calls.ends_us, &all.averages.ends_us})
      group_.all_reduce(std::span(*us), ddp::ReduceOp::avg).wait();
    return all;
  }

  Setup& setup_;
  ddp::ProcessGroup& group_;
  Tensor gradients_;
  Tensor other_;
  std::vector<std::int64_t> counts_;  // floats
  double pause_us_ = 0;
  double chunk_us_ = 1;
  std::array<float, 1024> work_{};
  CollectiveTimes times_;
};

ddp::ScriptSync sync_of(const std::string& name) {
  if (name == "wrapper") return ddp::ScriptSync::wrapper;
  return name == "averaged" ? ddp::ScriptSync::averaged : ddp::ScriptSync::none;
}

/// Bursts of LibTorch's steps, with the numbers of tools/torch_peer.py.
class ScriptRank {
 public:
  ScriptRank(const TrainOptions& options, ddp::ProcessGroup& group) : options_(options), group_(group) {
    const Json settings = Json::parse(read_file(options.model + ".json"));
    warm_up_ = settings.at("warm_up");
    burst_warm_up_ = settings.at("burst_warm_up");
    ddp::ScriptStepsOptions making = {.file = options.model,
                                      .sync = sync_of(options.libtorch),
                                      .nll_loss = settings.at("nll_loss"),
                                      .threads = options.threads_per_device,
                                      .classes = settings.at("classes"),
                                      .images = settings.at("images"),
                                      .rows = options.batch / group.size()};
    for (const std::int64_t size : settings.at("sample_shape")) making.sample_shape.append(size);
    steps_ = ddp::make_script_steps(making, group);
  }

  void serve() {
    run(1);
    const double startup_s = static_cast<double>(monotonic_ns() - started_ns()) / 1e9 - steps_->drawing_us() / 1e6;
    run(warm_up_);
    const Json ready = {{"torch", steps_->version()}, {"startup_s", startup_s}};
    BurstPort(options_.bursts, group_.rank()).serve(ready.dump(), [this](int steps) { return burst(steps); });
  }

 private:
  std::vector<ddp::ScriptStepTimes> run(int count, bool synchronises = true) {
    std::vector<ddp::ScriptStepTimes> times;
    for (int i = 0; i < count; ++i) times.push_back(steps_->run(synchronises));
    return times;
  }

  static double median_us(const std::vector<ddp::ScriptStepTimes>& steps) {
    return median(of_each(steps, &ddp::ScriptStepTimes::whole));
  }

  std::string burst(int count) {
    run(burst_warm_up_);
    const std::vector<ddp::ScriptStepTimes> timed = run(count);
    std::array<double, 5> means{};
    std::vector<double> least;
    for (const ddp::ScriptStepTimes& step : timed) {
      const std::array<double, 5> own = {step.whole, step.forward, step.backward, step.exposed, step.communication};
      for (std::size_t i = 0; i < means.size(); ++i) means[i] += own[i] / count / group_.size();
      least.push_back(step.exposed);
    }
    std::array<double, 2> medians = {median_us(timed), 0};  // become the slowest rank's below, as in duet's own bursts
    if (group_.size() > 1) medians[1] = median_us(run(count, false));
    group_.all_reduce(std::span<double>(medians), ddp::ReduceOp::max).wait();
    Json measured = {{"median_us", medians[0]}, {"alone_us", nullptr}};
    if (group_.size() > 1) measured["alone_us"] = medians[1];
    group_.all_reduce(std::span<double>(means)).wait();
    group_.all_reduce(std::span<double>(least), ddp::ReduceOp::min).wait();
    for (std::size_t i = 0; i < means.size(); ++i)
      measured[std::array{"mean_us", "forward", "backward", "exposed", "communication"}[i]] = means[i];
    measured["moving"] = std::reduce(least.begin(), least.end()) / count;
    return measured.dump();
  }

  const TrainOptions& options_;
  ddp::ProcessGroup& group_;
  int warm_up_ = 0, burst_warm_up_ = 0;  // steps before those that are timed
  std::unique_ptr<ddp::ScriptSteps> steps_;
};

}  // namespace

std::string command_fifo(const std::string& files, int rank) { return concat(files, ".", rank, ".commands"); }
std::string answer_fifo(const std::string& files, int rank) { return concat(files, ".", rank, ".answers"); }

BurstPort::BurstPort(const std::string& files, int rank)
    : commands_(opened(command_fifo(files, rank), O_RDONLY)), answers_(opened(answer_fifo(files, rank), O_WRONLY)) {}

void BurstPort::serve(const std::string& ready, const std::function<std::string(int)>& burst,
                      const std::function<void()>& linger) {
  answer(ready);
  while (const std::optional<int> steps = next()) {
    answer(*steps > 0 ? burst(*steps) : "{}");
    if (*steps > 0) linger();
  }
}

bool BurstPort::commanded() const {
  pollfd waits{.fd = commands_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waits, 1, 0) > 0;
}

/// Commands come one at a time: one is read whole.
std::optional<int> BurstPort::next() {
  std::array<char, 16> line{};
  const ssize_t size = uninterrupted([&] { return ::read(commands_.get(), line.data(), line.size()); });
  require<CommError>(size >= 0, "cannot read from --bursts: ", last_errno);
  if (size == 0) return std::nullopt;
  const std::string_view text(line.data(), static_cast<std::size_t>(size - 1));
  const std::optional<int> steps = parse_number<int>(text);
  require<DataError>(steps && *steps >= 0, "--bursts: '", text, "', expected a number of steps");
  return steps;
}

void BurstPort::answer(const std::string& line) {
  require<CommError>(ddp::write_all(answers_.get(), line + "\n"), "cannot write to --bursts: ", last_errno);
}

void fields(auto& io, RankBurst& burst) {
  io("wall_s", burst.wall_s);
  io("used_s", burst.used_s);
  io("delayed_s", burst.delayed_s);
  io("median_us", burst.median_us);
  io("spread_share", burst.spread_share);
  io("run", burst.run);
}

std::string to_json(const RankBurst& burst) { return line_of(JsonWriter::json_of(burst)); }

RankBurst rank_burst_from_json(const std::string& line) { return read_json<RankBurst>(line, "a burst of steps"); }

void serve_bursts(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group) {
  end_by_signals();
  if (options.collectives) {
    CollectiveBursts bursts(setup, group);
    BurstPort(options.bursts, group.rank()).serve("{}", [&](int passes) { return bursts.burst(passes); });
  } else {
    const CheckFinite check_finite(options.check_finite);
    Bursts(options, setup, group).serve();
  }
}

int serve_script_bursts(const TrainOptions& options) {
  if (options.devices > 1)
    return ddp::spawn(
        [&](int) {
          const auto group = ddp::init_process_group({.backend = options.backend});
          ScriptRank(options, *group).serve();
        },
        options.devices);
  ddp::SoloGroup alone;
  ScriptRank(options, alone).serve();
  return 0;
}

}  // namespace duet::cli
