// The ranks of rows of a comparison that train by LibTorch.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/system/files.h"
#include "cli/train/bursts.h"
#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/script_steps.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"
#include "lib/shape.h"
#include "measure/statistics.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

ddp::ScriptSync sync_of(const std::string& name) {
  if (name == "wrapper") return ddp::ScriptSync::wrapper;
  return name == "averaged" ? ddp::ScriptSync::averaged : ddp::ScriptSync::none;
}

/// How many steps come before those that are timed.
struct WarmUp {
  int first = 0, burst = 0;
};

class ScriptRank {
 public:
  ScriptRank(const TrainOptions& options, ddp::ProcessGroup& group) : options_(options), group_(group) {
    const Json settings = Json::parse(read_file(options.model + ".json"));
    warm_up_ = {settings.at("warm_up"), settings.at("burst_warm_up")};
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
    const std::int64_t now = monotonic_ns();
    const char* const started = std::getenv("DUET_STARTED_NS");
    const std::int64_t begin = started == nullptr ? now : parse_number<std::int64_t>(started).value_or(now);
    const double startup_s = static_cast<double>(now - begin) / 1e9 - steps_->drawing_us() / 1e6;
    run(warm_up_.first);
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
    std::vector<double> times;
    for (const ddp::ScriptStepTimes& step : steps) times.push_back(step.whole);
    return median(times);
  }

  /// The same numbers as in tools/torch_peer.py.
  std::string burst(int count) {
    run(warm_up_.burst);
    const std::vector<ddp::ScriptStepTimes> timed = run(count);
    std::array<double, 5> means{};
    std::vector<double> least;
    for (const ddp::ScriptStepTimes& step : timed) {
      const std::array<double, 5> own = {step.whole, step.forward, step.backward, step.exposed, step.communication};
      for (std::size_t i = 0; i < means.size(); ++i) means[i] += own[i] / count / group_.size();
      least.push_back(step.exposed);
    }
    std::array<double, 2> medians = {median_us(timed), 0};  // of the slowest rank, as duet's own
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
  WarmUp warm_up_;
  std::unique_ptr<ddp::ScriptSteps> steps_;
};

}  // namespace

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
