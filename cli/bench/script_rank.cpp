// The ranks of rows of duet bench step that train by LibTorch. They park and report as tools/torch_peer.py does.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/system/files.h"
#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/script_steps.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"
#include "lib/shape.h"

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
  ScriptRank(const ScriptBenchOptions& options, ddp::ProcessGroup& group) : options_(options), group_(group) {
    const Json settings = Json::parse(read_file(options.script + ".json"));
    warm_up_ = {settings.at("warm_up"), settings.at("burst_warm_up")};
    ddp::ScriptStepsOptions making = {.file = options.script,
                                      .sync = sync_of(options.sync),
                                      .nll_loss = settings.at("nll_loss"),
                                      .threads = options.threads,
                                      .classes = settings.at("classes"),
                                      .images = settings.at("images"),
                                      .rows = options.batch / group.size()};
    for (const std::int64_t size : settings.at("sample_shape")) making.sample_shape.append(size);
    steps_ = ddp::make_script_steps(making, group);
  }

  /// Ends when nothing has the FIFO of commands open.
  void serve() {
    run(1);
    const std::int64_t now = monotonic_ns();
    const char* const started = std::getenv("DUET_STARTED_NS");
    const std::int64_t begin = started == nullptr ? now : parse_number<std::int64_t>(started).value_or(now);
    startup_s_ = static_cast<double>(now - begin) / 1e9 - steps_->drawing_us() / 1e6;
    run(warm_up_.first);
    measure(0);
    std::ifstream commands(concat(options_.out, ".commands.", group_.rank()));
    for (std::string steps; std::getline(commands, steps);) {
      run(warm_up_.burst);
      measure(parse_number<int>(steps).value_or(0));
    }
  }

 private:
  std::vector<ddp::ScriptStepTimes> run(int count, bool synchronises = true) {
    std::vector<ddp::ScriptStepTimes> times;
    for (int i = 0; i < count; ++i) times.push_back(steps_->run(synchronises));
    return times;
  }

  static std::vector<double> whole(const std::vector<ddp::ScriptStepTimes>& steps) {
    std::vector<double> times;
    for (const ddp::ScriptStepTimes& step : steps) times.push_back(step.whole);
    return times;
  }

  void measure(int count) {
    const std::vector<ddp::ScriptStepTimes> timed = run(count);
    const std::vector<ddp::ScriptStepTimes> alone = run(group_.size() > 1 ? count : 0, false);
    std::array<double, 4> parts{};
    for (const ddp::ScriptStepTimes& step : timed) {
      const std::array<double, 4> own = {step.forward, step.backward, step.exposed, step.communication};
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i] += own[i] / count / group_.size();
    }
    group_.all_reduce(std::span<double>(parts)).wait();
    std::vector<double> least;
    for (const ddp::ScriptStepTimes& step : timed) least.push_back(step.exposed);
    if (count > 0) group_.all_reduce(std::span<double>(least), ddp::ReduceOp::min).wait();
    const Json measured = {
        {"torch", steps_->version()},
        {"startup_s", startup_s_},
        {"steps_us", whole(timed)},
        {"parts_us",
         {{"forward", parts[0]}, {"backward", parts[1]}, {"exposed", parts[2]}, {"communication", parts[3]}}},
        {"alone_us", whole(alone)},
        {"moving_us", std::reduce(least.begin(), least.end()) / std::max(count, 1)}};
    if (group_.rank() == 0) write_atomically(concat(options_.out, ".", reports_), measured.dump());
    ++reports_;
  }

  const ScriptBenchOptions& options_;
  ddp::ProcessGroup& group_;
  WarmUp warm_up_;
  std::unique_ptr<ddp::ScriptSteps> steps_;
  double startup_s_ = 0;
  int reports_ = 0;
};

}  // namespace

int bench(const ScriptBenchOptions& options) {
  if (options.ranks > 1)
    return ddp::spawn(
        [&](int) {
          const auto group = ddp::init_process_group({.backend = options.backend});
          ScriptRank(options, *group).serve();
        },
        options.ranks);
  ddp::SoloGroup alone;
  ScriptRank(options, alone).serve();
  return 0;
}

}  // namespace duet::cli
