#include "lib/backend/step_graph.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lib/error.h"

namespace duet {
namespace {

// Each recording keeps the memory of a whole step.
constexpr std::size_t kMostKeys = 8;
constexpr std::uint64_t kPlainRuns = 2;

std::atomic<std::uint64_t> modes_of_process{0};  // all numbers that were switched, by exclusive or

StepRecorder& recorder_of(const std::vector<Device>& devices) {
  require<UsageError>(!devices.empty(), "a graph of steps needs a device");
  for (const Device device : devices) {
    require<UsageError>(backend(device.kind).recorder(device) != nullptr, "steps on ", device,
                        " cannot be recorded as a graph");
    for (const Device other : devices)
      require<UsageError>(other.kind == device.kind && backend(device.kind).copies_directly(device, other), "steps on ",
                          device, " and ", other,
                          ", which cannot access each other's memory, cannot be recorded as a graph");
  }
  return *backend(devices[0].kind).recorder(devices[0]);
}

bool same_shape(const StepKey& a, const StepKey& b) {
  return a.rows == b.rows && a.stamp.first == b.stamp.first && a.stamp.global == b.stamp.global;
}
bool same(const StepKey& a, const StepKey& b) { return same_shape(a, b) && a.lr == b.lr && a.steps == b.steps; }

}  // namespace

void switch_mode(std::uint64_t number) { modes_of_process ^= number; }

StepGraph::StepGraph(std::vector<Device> devices)
    : devices_(std::move(devices)), recorder_(recorder_of(devices_)), loss_sum_(zeros({}, DType::f32, devices_[0])) {}

StepGraph::~StepGraph() { drop_all(); }

void StepGraph::drop_all() {
  for (const Entry& entry : entries_)
    if (entry.recording != 0) recorder_.drop(entry.recording);
  entries_.clear();
}

StepGraph::Entry& StepGraph::entry_of(const StepKey& key) {
  const Precision precision = backend(devices_[0].kind).precision();
  const std::uint64_t modes = modes_of_process;
  auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return same(entry.key, key) && entry.precision == precision && entry.modes == modes;
  });
  if (found == entries_.end() && entries_.size() == kMostKeys) {
    found = std::min_element(entries_.begin(), entries_.end(),
                             [](const Entry& a, const Entry& b) { return a.used < b.used; });
    if (found->recording != 0) recorder_.drop(found->recording);
    *found = {.key = key, .precision = precision, .modes = modes};
  } else if (found == entries_.end()) {
    found = entries_.insert(found, {.key = key, .precision = precision, .modes = modes});
  }
  found->used = ++runs_;
  return *found;
}

/// Whether a step of the shape ran as it is.
bool StepGraph::prepared(const Entry& entry) const {
  return runs_ > kPlainRuns && std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
           return other.ran && same_shape(other.key, entry.key) && other.precision == entry.precision &&
                  other.modes == entry.modes;
         });
}

void StepGraph::run_all(std::int64_t steps, FunctionRef<Tensor(std::int64_t)> step) {
  for (std::int64_t i = 0; i < steps; ++i) {
    const Tensor loss = step(i);
    require<ShapeError>(loss.defined() && loss.count() == 1 && loss.dtype() == DType::f32,
                        "a step must return its loss, one f32");
    backend(loss_sum_).add(loss_sum_, loss.reshape({}), loss_sum_);
  }
}

void StepGraph::run(const StepKey& key, FunctionRef<Tensor()> step) {
  require<UsageError>(key.steps == 1, "run() is for one step, got ", key.steps);
  run_several(key, [&](std::int64_t) { return step(); });
}

void StepGraph::run_several(const StepKey& key, FunctionRef<Tensor(std::int64_t)> step) {
  require<UsageError>(key.stamp.stamped(),
                      "the batch of a recorded step needs a stamp, from which dropout reads its step");
  require<UsageError>(key.steps >= 1, "a recording holds 1 step or more, got ", key.steps);
  if (plain_) return run_all(key.steps, step);
  Entry& entry = entry_of(key);
  if (entry.recording == 0 && !prepared(entry)) {
    run_all(key.steps, step);
    entry.ran = true;
    return;
  }
  if (entry.recording == 0 && !record(entry, key, step)) return run_all(key.steps, step);
  recorder_.replay(entry.recording, static_cast<std::uint64_t>(key.stamp.step));
  replays_ += key.steps;
}

bool StepGraph::record(Entry& entry, const StepKey& key, FunctionRef<Tensor(std::int64_t)> step) {
  try {
    recorder_.begin(static_cast<std::uint64_t>(key.stamp.step), static_cast<std::uint64_t>(key.steps),
                    std::span(devices_).subspan(1));
    try {
      run_all(key.steps, step);
      entry.recording = recorder_.end();
    } catch (...) {
      recorder_.cancel();
      throw;
    }
  } catch (const DeviceError& error) {
    if (!remark_) throw;
    drop_all();
    plain_ = true;
    remark_(error.what());
    return false;
  }
  ++recordings_;
  return true;
}

double StepGraph::take_loss_sum() {
  const Tensor sum = loss_sum_.clone();
  backend(loss_sum_).fill(loss_sum_, 0.0f);  // first: the copy to the host throws the error of a kernel
  const Tensor on_host = sum.to(Device{});
  for (std::size_t i = 1; i < devices_.size(); ++i) backend(loss_sum_).synchronize(devices_[i]);  // throws theirs
  return static_cast<double>(*on_host.data<float>());
}

}  // namespace duet
