#include "lib/backend/step_graph.h"

#include <algorithm>

#include "lib/error.h"

namespace duet {
namespace {

// Each recording keeps the memory of a whole step.
constexpr std::size_t kMostKeys = 8;
constexpr std::uint64_t kPlainRuns = 2;

StepRecorder& recorder_of(Device device) {
  StepRecorder* const recorder = backend(device.kind).recorder(device);
  require<UsageError>(recorder != nullptr, "steps on ", device, " cannot be recorded as a graph");
  return *recorder;
}

bool same(const StepKey& a, const StepKey& b) {
  return a.rows == b.rows && a.stamp.first == b.stamp.first && a.stamp.global == b.stamp.global && a.lr == b.lr;
}

}  // namespace

StepGraph::StepGraph(Device device)
    : device_(device), recorder_(recorder_of(device)), loss_sum_(zeros({}, DType::f32, device)) {}

StepGraph::~StepGraph() {
  for (const Entry& entry : entries_)
    if (entry.recording != 0) recorder_.drop(entry.recording);
}

StepGraph::Entry& StepGraph::entry_of(const StepKey& key) {
  const Precision precision = backend(device_.kind).precision();
  auto found = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& entry) { return same(entry.key, key) && entry.precision == precision; });
  if (found == entries_.end() && entries_.size() == kMostKeys) {
    found = std::min_element(entries_.begin(), entries_.end(),
                             [](const Entry& a, const Entry& b) { return a.used < b.used; });
    if (found->recording != 0) recorder_.drop(found->recording);
    *found = {.key = key, .precision = precision};
  } else if (found == entries_.end()) {
    found = entries_.insert(found, {.key = key, .precision = precision});
  }
  found->used = ++runs_;
  return *found;
}

void StepGraph::run_once(FunctionRef<Tensor()> step) {
  const Tensor loss = step();
  require<ShapeError>(loss.defined() && loss.count() == 1 && loss.dtype() == DType::f32,
                      "a step must return its loss, one f32");
  backend(loss_sum_).add(loss_sum_, loss.reshape({}), loss_sum_);
}

void StepGraph::run(const StepKey& key, FunctionRef<Tensor()> step) {
  require<UsageError>(key.stamp.stamped(), "the batch of a recorded step needs a stamp, which tells dropout its step");
  Entry& entry = entry_of(key);
  if (!entry.ran || runs_ <= kPlainRuns) {
    run_once(step);
    entry.ran = true;
    return;
  }
  const auto number = static_cast<std::uint64_t>(key.stamp.step);
  if (entry.recording == 0) {
    recorder_.begin(number);
    try {
      run_once(step);
      entry.recording = recorder_.end();
    } catch (...) {
      recorder_.cancel();
      throw;
    }
    ++recordings_;
  }
  recorder_.replay(entry.recording, number);
  ++replays_;
}

double StepGraph::take_loss_sum() {
  const Tensor sum = loss_sum_.clone();
  backend(loss_sum_).fill(loss_sum_, 0.0f);  // first: the copy to the host throws what a kernel complained of
  return static_cast<double>(*sum.to(Device{}).data<float>());
}

}  // namespace duet
