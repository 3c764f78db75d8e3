#include "model/simulate_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr double kSmallLoss = 0.1;  // of a step

/// Of those measured over `backend`: on as many ranks, else on the most below, else on the fewest above.
const MeasuredLink& measured_link(const CostModel& model, const std::string& backend, int ranks) {
  const std::string wanted = backend.empty() && !model.links.empty() ? model.links.front().backend : backend;
  const auto distance = [ranks](const MeasuredLink& link) {
    return link.ranks <= ranks ? ranks - link.ranks : link.ranks + ranks;
  };
  const MeasuredLink* best = nullptr;
  for (const MeasuredLink& link : model.links)
    if (link.backend == wanted && (!best || distance(link) < distance(*best))) best = &link;
  require<DataError>(best, "results: model.links has no all-reduce", wanted.empty() ? "" : " over " + wanted,
                     ", expected one measured on 2 or more ranks");
  return *best;
}

/// An all-reduce: within each host, then between hosts, each of which sends and receives all bytes once.
BucketEvent all_reduce_of(const CostModel& model, const SimulatedJob& job, double ready_us, double bytes) {
  const int here = job.devices / job.hosts;
  const Link network = job.link.value_or(Link{});
  const bool measured = here > 1 && (job.hosts > 1 || !job.link);
  const Link device =
      measured ? link_of(measured_link(model, job.backend, here), job.mode == Mode::averaging) : network;
  const double near = all_reduce_us(device, here, bytes), far = all_reduce_us(network, job.hosts, bytes);
  const double share = near + far > 0 ? (near * device.overlap_share + far * network.overlap_share) / (near + far) : 1;
  return {.ready_us = ready_us, .us = near + far, .compute_share = share};
}

void check(const SimulatedJob& job) {
  require<UsageError>(job.devices >= 1 && job.hosts >= 1 && job.devices % job.hosts == 0, "a job of ", job.devices,
                      " devices on ", job.hosts, " hosts, expected as many on each");
  require<UsageError>(job.batch >= job.devices, "a batch of ", job.batch, ", smaller than the ", job.devices,
                      " devices that share it");
  require<UsageError>(job.mode != Mode::single || job.devices == 1, "mode single uses 1 device, not ", job.devices);
  require<UsageError>(job.mode != Mode::dp || job.hosts == 1, "mode dp uses the devices of 1 host, not of ", job.hosts);
  require<UsageError>(job.hosts == 1 || job.link, "several hosts, but no link between them");
}

/// What all-reduces take beyond a backward of this time.
double communication_us(const CostModel& model, const SimulatedJob& job, double backward_us) {
  std::vector<BucketEvent> events;
  if (job.mode == Mode::averaging)
    for (const double bytes : model.parameter_bytes) events.push_back(all_reduce_of(model, job, backward_us, bytes));
  else
    for (const GradientBucket& bucket : model.buckets)
      events.push_back(all_reduce_of(model, job, bucket.ready_share * backward_us, bucket.bytes));
  require<DataError>(!events.empty(), "results: model.", job.mode == Mode::averaging ? "parameter_bytes" : "buckets",
                     " is empty, expected what mode ", name(job.mode), " sends");
  return exposed_us(backward_us, events);
}

void add_copies(const CostModel& model, const SimulatedJob& job, SimulatedStep& step) {
  require<DataError>(model.dp.has_value(), "results: model.dp is null, expected what mode dp copies");
  const DpCopies& copies = *model.dp;
  const TransferCost cost = job.link ? job.link->hop : copies.cost;
  const double others = job.devices - 1, rows = job.batch / job.devices;
  const auto to_all = [&](double bytes) { return bytes > 0 ? others * cost.us(bytes) : 0; };
  step.scatter_us = to_all(copies.scatter_bytes_per_sample * rows);
  step.replicate_us = to_all(copies.replicate_bytes);
  step.gather_us = to_all(copies.gather_bytes_per_sample * rows);
  step.reduce_us = to_all(copies.reduce_bytes);
  step.overhead_us = copies.overhead.us(job.batch);
}

}  // namespace

double SimulatedStep::total_us() const {
  double sum = 0;
  for (const SimulatedPart& part : kSimulatedParts) sum += this->*part.us;
  return sum;
}

const char* SimulatedStep::bounded_by() const {
  if (total_us() - ideal_us < kSmallLoss * total_us()) return "compute";
  return std::max_element(std::begin(kSimulatedParts) + 1, std::end(kSimulatedParts),
                          [this](const auto& a, const auto& b) { return this->*a.us < this->*b.us; })
      ->name;
}

double expected_largest(int n) {
  if (n < 2) return 0;
  // Simpson's rule over x * density of the largest, which is n phi(x) Phi(x)^(n-1).
  constexpr int kSteps = 2000;
  constexpr double kEnd = 10, kStep = 2 * kEnd / kSteps, kPi = 3.14159265358979323846;
  double sum = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = -kEnd + i * kStep;
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * kPi), below = std::erfc(-x / std::sqrt(2.0)) / 2;
    const double weight = i == 0 || i == kSteps ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * x * n * density * std::pow(below, n - 1);
  }
  return sum * kStep / 3;
}

double exposed_us(double backward_us, std::span<const BucketEvent> buckets) {
  double now = 0, done = 0;  // backward's own time that has passed
  for (const BucketEvent& bucket : buckets) {
    const double wait = std::max(0.0, bucket.ready_us - done);  // the channel stands still
    now += wait + bucket.us;
    done = std::min(backward_us, done + wait);
    if (done < backward_us) done = std::min(backward_us, done + bucket.us * bucket.compute_share);
  }
  return now + (backward_us - done) - backward_us;
}

SimulatedStep simulate_step(const CostModel& model, const SimulatedJob& job) {
  check(job);
  const double rows = std::ceil(job.batch / job.devices);  // of the largest shard
  const double single = model.step.us(job.batch), own = model.step.us(rows);
  SimulatedStep step{.ideal_us = single / job.devices, .smaller_batch_us = own - single / job.devices};
  if (job.devices == 1) return step;
  const double factor = model.slowdown_of(job.devices / job.hosts);
  const double slowest = factor * (1 + model.step_spread_share * expected_largest(job.devices));
  // In dp only forward, loss and backward run on all devices.
  const double divided = job.mode == Mode::dp ? model.compute_us(rows) : own;
  step.slowdown_us = (factor - 1) * divided;
  step.uneven_us = (slowest - factor) * divided;
  if (job.mode == Mode::dp) {
    step.undivided_us = model.input_per_sample_us * (job.batch - rows);
    add_copies(model, job, step);
  } else {
    step.communication_us = communication_us(model, job, slowest * model.backward_share * model.compute_us(rows));
    if (job.mode == Mode::ddp && !job.link)
      step.overhead_us = measured_link(model, job.backend, job.devices).overhead.us(job.batch);
  }
  return step;
}

void fill_derived(CostModel& model) {
  model.communication_us = 0;
  model.break_even_batch.reset();
  const auto fewest = std::min_element(model.links.begin(), model.links.end(),
                                       [](const MeasuredLink& a, const MeasuredLink& b) { return a.ranks < b.ranks; });
  if (fewest != model.links.end())
    for (const GradientBucket& bucket : model.buckets) model.communication_us += fewest->cost.us(bucket.bytes);
  const auto saves = [&](double batch) {
    const double single = model.step.us(batch);
    const auto total = [&](Mode mode) {
      return simulate_step(model, {.mode = mode, .devices = 2, .batch = batch}).total_us();
    };
    const bool ddp = fewest != model.links.end() && !model.buckets.empty();
    return (ddp && total(Mode::ddp) <= single) || (model.dp && total(Mode::dp) <= single);
  };
  constexpr double kLargestBatch = 1 << 20;
  if (!saves(kLargestBatch)) return;
  double low = 0, high = kLargestBatch;  // does not save, saves
  while (high - low > 2) {
    const double middle = 2 * std::floor((low + high) / 4);
    (saves(middle) ? high : low) = middle;
  }
  model.break_even_batch = high;
}

}  // namespace duet::cli
