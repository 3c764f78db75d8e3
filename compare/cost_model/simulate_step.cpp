#include "compare/cost_model/simulate_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr double kSmallLoss = 0.1;  // share of a step below which its losses are small

// Payload of Ethernet's bytes with TCP and a frame of 1,500: 1,448 behind the headers of IP and TCP with its
// timestamps, of 1,538 on the wire with the frame's header, its check, preamble and gap (IEEE 802.3; RFC 793, 7323).
constexpr double kTcpPayload = 1448.0 / 1538;

constexpr const char* kTcpLatency =
    "10 us one way: Larsen et al., Architectural Breakdown of End-to-End Latency in a TCP/IP Network, IJPP 37 (2009), "
    "for 10GbE and Linux's stack";
constexpr const char* kNcclLatency = "NCCL, src/graph/tuning.cc, hwLat, ring, Simple (commit 01afd20a)";

/// The link that was measured over `backend`: on as many ranks, else on the most below, else on the fewest above.
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
  // Where some ranks own several subtrees of the blocks, gradients are complete at the end of backward only.
  const bool at_end = job.blocks > 0 && job.blocks % job.devices != 0;
  if (job.mode == Mode::averaging)
    for (const double bytes : model.parameter_bytes) events.push_back(all_reduce_of(model, job, backward_us, bytes));
  else
    for (const GradientBucket& bucket : model.buckets)
      events.push_back(all_reduce_of(model, job, (at_end ? 1 : bucket.ready_share) * backward_us, bucket.bytes));
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

const char* name(Algorithm algorithm) {
  constexpr std::array kNames = {"ring", "tree", "recursive_doubling", "one_shot", "direct"};
  return kNames.at(static_cast<std::size_t>(algorithm));
}

Crossings crossings(Algorithm algorithm, int ranks) {
  if (ranks < 2) return {};
  const double n = ranks, levels = std::floor(std::log2(n));
  const bool power = std::exp2(levels) == n;
  const double doublings = levels + (power ? 0 : 2), depth = levels + (power ? 0 : 1);
  switch (algorithm) {
    case Algorithm::ring: return {.latency = 2 * (n - 1), .bytes = 2 * (n - 1) / n};
    case Algorithm::tree: return {.latency = 2 * depth, .bytes = 2 * depth};
    case Algorithm::recursive_doubling: return {.latency = doublings, .bytes = doublings};
    case Algorithm::one_shot: return {.latency = 2 * (n - 1), .bytes = 2};  // a barrier looks at all other ranks
    case Algorithm::direct: return {.latency = 2, .bytes = 2 * (n - 1) / n};
  }
  throw UsageError("unknown algorithm of all_reduce");
}

double all_reduce_us(const Link& link, int ranks, double bytes) {
  if (ranks < 2) return 0;
  const Crossings times = crossings(link.algorithm, ranks);
  return times.latency * link.hop.latency_us + times.bytes * bytes / link.hop.bytes_per_us;
}

Link link_of(const MeasuredLink& measured, bool averaging) {
  const bool memory = measured.backend == "shm", nccl = measured.backend == "nccl";
  const Algorithm algorithm = memory ? Algorithm::one_shot : nccl ? Algorithm::ring : Algorithm::direct;
  const Crossings times = crossings(algorithm, measured.ranks);
  const TransferCost& cost = averaging && measured.averaging ? *measured.averaging : measured.cost;
  return {.hop = {.latency_us = cost.latency_us / times.latency, .bytes_per_us = cost.bytes_per_us * times.bytes},
          .algorithm = algorithm,
          .overlap_share = 0};  // it needs the core that computes
}

const std::vector<NamedLink>& named_links() {
  // Rates are of one direction, in bytes a microsecond (MB/s).
  static const std::vector<NamedLink> links = {
      {"pcie4",
       "PCI Express 4.0, 16 lanes",
       {.hop = {.latency_us = 5.7, .bytes_per_us = 16e3 * 16 / 8 * 128 / 130}, .algorithm = Algorithm::ring},
       concat("16 GT/s a lane, 128b/130b: PCI Express Base Specification 4.0; 5.7 us: ", kNcclLatency, ", PCI"),
       true},
      {"nvlink4",
       "NVLink 4, 18 links (H100)",
       {.hop = {.latency_us = 3.4, .bytes_per_us = 450e3}, .algorithm = Algorithm::ring},
       concat("900 GB/s in both directions: NVIDIA H100 datasheet; 3.4 us: ", kNcclLatency, ", NVLINK"),
       true},
      {"10gbe",
       "Ethernet, 10 Gbit/s",
       {.hop = {.latency_us = 10, .bytes_per_us = 1250 * kTcpPayload}},
       concat("10 Gbit/s: IEEE 802.3ae, 94.1 % of it TCP's payload; ", kTcpLatency)},
      {"100gbe",
       "Ethernet, 100 Gbit/s",
       {.hop = {.latency_us = 10, .bytes_per_us = 12500 * kTcpPayload}},
       concat("100 Gbit/s: IEEE 802.3ba, 94.1 % of it TCP's payload; ", kTcpLatency)},
      {"ndr",
       "InfiniBand NDR, 4 lanes",
       {.hop = {.latency_us = 9.6, .bytes_per_us = 50e3}, .algorithm = Algorithm::ring},
       concat("400 Gbit/s: NVIDIA ConnectX-7 user manual; 9.6 us: ", kNcclLatency, ", NET")}};
  return links;
}

std::vector<std::string> link_names() { return of_each(named_links(), &NamedLink::name); }

const NamedLink& named_link(const std::string& name) {
  for (const NamedLink& link : named_links())
    if (link.name == name) return link;
  throw UsageError(concat("--link: unknown '", name, "', expected ", listed(link_names(), "or")));
}

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

std::vector<GradientBucket> usual_buckets(double bytes) {
  std::vector<GradientBucket> buckets;
  for (double sent = 0, size = 1 << 20; sent < bytes; size = 25 << 20) {
    size = std::min(size, bytes - sent);
    sent += size;
    buckets.push_back({.bytes = size, .ready_share = sent / bytes});
  }
  return buckets;
}

SimulatedStep simulate_step(const CostModel& model, const SimulatedJob& job) {
  check(job);
  const int parts = std::max(job.blocks, job.devices);  // of which the largest shard has most
  const double rows = std::ceil(job.batch * ((parts + job.devices - 1) / job.devices) / parts);
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
