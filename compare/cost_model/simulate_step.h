// An event simulation of one training step on any number of devices, from the cost model alone; and what an all-reduce
// costs among any number of ranks: algorithms, and links with their published figures.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compare/cost_model/cost_model.h"
#include "train/options/options.h"

namespace duet::cli {

enum class Algorithm {
  ring,                // NCCL's: 2 (n - 1) steps, each of bytes / n
  tree,                // up and down a binary tree, not pipelined
  recursive_doubling,  // everything exchanged in every step, and once more before and after where n is no power of 2
  one_shot,  // ddp/shm: 2 barriers, between them every rank reads its share of all buffers and writes it to all
  direct     // ddp/transport: 2 steps, a rank exchanges its share with all others at once
};
inline constexpr std::array kAlgorithms = {Algorithm::ring, Algorithm::tree, Algorithm::recursive_doubling,
                                           Algorithm::one_shot, Algorithm::direct};
const char* name(Algorithm algorithm);

/// How often an all-reduce among n ranks pays a link's latency, and how often its bytes cross a rank's link.
struct Crossings {
  double latency = 0, bytes = 0;
};
Crossings crossings(Algorithm algorithm, int ranks);

/// A link of every rank (or host) to all others, full duplex and without congestion. `hop` is one message's cost.
struct Link {
  TransferCost hop{};
  Algorithm algorithm = Algorithm::direct;
  double overlap_share = 1;  // share of communication in which compute goes on
};

/// 0 for one rank.
double all_reduce_us(const Link& link, int ranks, double bytes);

/// The hop of a measured all-reduce, with the algorithm that duet uses over this backend; `averaging`: as mode
/// averaging calls it.
Link link_of(const MeasuredLink& measured, bool averaging = false);

struct NamedLink {
  std::string name, title;
  Link link{};
  std::string source;       // where its figures were published
  bool joins_gpus = false;  // within a host
};
const std::vector<NamedLink>& named_links();
/// Throws UsageError that lists the names.
const NamedLink& named_link(const std::string& name);

struct SimulatedJob {
  Mode mode = Mode::ddp;
  int devices = 1, hosts = 1;  // all devices; as many on every host
  double batch = 128;          // rows of all devices
  int blocks = 0;              // of these, of which each device has whole ones; 0: devices share out rows
  std::string backend{};       // backend of the measured link; empty: the first that the model has
  std::optional<Link> link{};  // in its place; between hosts, where there are several
};

/// A step in microseconds, taken apart: what an ideal division gives, and what is lost.
struct SimulatedStep {
  double ideal_us = 0;          // single's step / devices
  double smaller_batch_us = 0;  // single's step at a device's batch, beyond that
  double slowdown_us = 0;       // devices that share caches, memory and clock
  double uneven_us = 0;         // wait for the slowest device
  double communication_us = 0;  // all-reduces, beyond what backward hides
  double scatter_us = 0, replicate_us = 0, gather_us = 0, reduce_us = 0;  // dp's transfers, through its first device
  double overhead_us = 0;                                                 // what the wrapper takes besides
  double undivided_us = 0;                                                // dp's input of the whole batch

  double total_us() const;
  /// The largest loss: "communication", "slow-down", ...; "compute" where all losses together are under 10 %.
  const char* bounded_by() const;
};

struct SimulatedPart {
  const char *field, *name;  // in JSON; in tables
  double SimulatedStep::*us;
};
/// The ideal, then the losses.
inline constexpr SimulatedPart kSimulatedParts[] = {
    {"ideal_us", "divided", &SimulatedStep::ideal_us},
    {"smaller_batch_us", "smaller batch", &SimulatedStep::smaller_batch_us},
    {"slowdown_us", "slow-down", &SimulatedStep::slowdown_us},
    {"uneven_us", "uneven devices", &SimulatedStep::uneven_us},
    {"communication_us", "communication", &SimulatedStep::communication_us},
    {"scatter_us", "scatter", &SimulatedStep::scatter_us},
    {"replicate_us", "replicate", &SimulatedStep::replicate_us},
    {"gather_us", "gather", &SimulatedStep::gather_us},
    {"reduce_us", "reduce", &SimulatedStep::reduce_us},
    {"overhead_us", "wrapper", &SimulatedStep::overhead_us},
    {"undivided_us", "input", &SimulatedStep::undivided_us}};

/// Expected largest of n numbers from the standard normal distribution, by numeric integration; 0 for one.
double expected_largest(int n);

/// One bucket of a backward pass.
struct BucketEvent {
  double ready_us = 0;       // backward's own time before its last gradient is there
  double us = 0;             // time of its all-reduce
  double compute_share = 1;  // share of that time in which backward goes on
};
/// What a step takes beyond backward: all-reduces run one after the other on one channel, each from
/// max(end of the last, ready) on, and backward pauses for the share of them that needs its core.
double exposed_us(double backward_us, std::span<const BucketEvent> buckets);

/// Buckets of so many bytes of gradients as DistributedDataParallel makes them by default, of 1 MiB and then of 25 MiB,
/// if gradients come evenly over backward.
std::vector<GradientBucket> usual_buckets(double bytes);

/// Throws UsageError for a job that cannot be (a batch smaller than the devices, dp on several hosts), DataError for a
/// term that the model lacks.
SimulatedStep simulate_step(const CostModel& model, const SimulatedJob& job);

/// Fills communication_us and break_even_batch from the other fields: the smallest even batch (up to 2^20) from
/// which ddp or dp on 2 devices is not slower than single. Leaves them 0 and null where links and dp are missing.
void fill_derived(CostModel& model);

}  // namespace duet::cli
