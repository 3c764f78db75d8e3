// One run of a training, as a comparison has it: the data behind a row of its table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace duet::cli {

/// Time of each part of a step along the critical path, in microseconds; 0 where a part does not occur. The parts
/// add up to the step. Of ranks the means over them.
struct StepParts {
  double input = 0, scatter = 0, replicate = 0, forward = 0, gather = 0, loss = 0, backward = 0, communication = 0,
         update = 0;
  double sum() const {
    return input + scatter + replicate + forward + gather + loss + backward + communication + update;
  }
  StepParts scaled(double factor) const;
  /// Scales the parts so that they add up to `us`; unchanged where their sum is 0.
  StepParts scaled_to(double us) const;
};
struct PartName {
  const char* name;
  double StepParts::*member;
};
/// The nine parts in the order in which they occur.
inline constexpr PartName kStepParts[] = {
    {"input", &StepParts::input},         {"scatter", &StepParts::scatter},
    {"replicate", &StepParts::replicate}, {"forward", &StepParts::forward},
    {"gather", &StepParts::gather},       {"loss", &StepParts::loss},
    {"backward", &StepParts::backward},   {"communication", &StepParts::communication},
    {"update", &StepParts::update}};

inline constexpr const char* kWaiting = "waiting";  // name of a StepEvent: waiting for the last rank or replica

/// A stretch of one step as it ran, in microseconds from the step's begin. Lanes: "cpu:0", "rank 1", "rank 1,
/// communication". An event that lies within another of its lane comes after it.
struct StepEvent {
  std::string lane, name;
  double begin_us = 0, end_us = 0;
};

/// A rank of an elastic run that was lost, and replaced.
struct LostRank {
  std::int64_t rank = 0, step = 0;  // the step after which the run went on
  double recovery_s = 0;            // from the loss, as the launcher saw it, until the rank's new process had the state
};

/// One row: a mode on a number of devices. Where it was timed in rounds, all times but `startup_s` are those of the
/// rounds that were not disturbed: `epoch_s` has an entry for each, the others are medians. Else they are the
/// learning's.
struct Run {
  std::string mode = "single";
  std::string device = "cpu";  // "cuda", "cuda (simulated)"
  int devices = 1;
  int physical_devices = 1;  // that they occupy; fewer where logical devices or ranks share GPUs
  std::string precision = "fp32";
  bool graph = false;  // steps were replayed as CUDA graphs
  int threads_per_device = 1;
  std::string workers = "process";  // what a rank is, or "thread"
  std::string backend;              // what carried the ranks' collectives: "shm", "gloo", ...; empty: one rank
  bool ok = true;
  std::string error;            // why not
  double startup_s = 0;         // exec to the end of the first step, less a median step
  std::vector<double> epoch_s;  // training only: of each round, or of each epoch learnt, without the first step of the
                                // run; none of an epoch of that step alone
  double samples_per_s = 0;
  std::optional<double> speedup;  // against single on one device with as many threads; null also where GPUs are shared
  std::optional<double> efficiency;  // speedup / devices; null also where oversubscribed
  double waiting_share = 0;          // share of a step that compute waits for communication; not measured with graphs
  double communication_us = 0;       // time in a step, overlapped or not; not measured with graphs
  std::string parameters_sha256;
  std::optional<std::int64_t> first_differing_step;  // from single; null also where none differs
  StepParts step_us;
  std::vector<StepEvent> median_step;  // while it learnt
  std::vector<double> train_loss;      // means over twentieths of epochs (over steps where an epoch has fewer)
  std::vector<double> test_accuracy;   // 0..1, after each epoch
  std::vector<double> peak_memory_mb;  // per process
  // CUDA, per device; empty on CPU.
  std::vector<double> device_memory_mb;      // the most that tensors and workspaces took
  std::vector<double> moved_bytes_per_step;  // copied to and from it in a training step
  // Waiting for the last rank or replica, apart from moving and adding: means over steps and over ranks or replicas.
  // Null where collectives are not timed one by one on one clock: on GPUs, in recorded steps, on several hosts.
  // Waiting of ranks lies within communication_us, waiting of replicas within forward and backward.
  std::optional<double> communication_waiting_us, communication_moving_us;  // in a step, overlapped or not
  std::vector<double> waiting_interval_us, moving_interval_us;              // 95 %; empty where steps are too few
  std::optional<StepParts> step_waiting_us;                                 // the waiting in each part of step_us
  std::vector<double> rank_waiting_us;                                      // each rank's or replica's, in a step
  bool eager_parts = false;  // on GPUs: step_us has the shares of steps without graphs that waited after each part
  double execution_s = 0;    // seconds for all epochs, with their evaluation

  // What the rounds measured; empty or null without rounds.
  std::vector<double> rounds_us;             // the median step of each; of copies that of the slowest
  std::vector<StepParts> rounds_step_us;     // its parts
  std::vector<StepParts> rounds_waiting_us;  // the waiting in each part; empty where step_waiting_us is null
  std::vector<double> rank_step_us;          // each rank's median over rounds
  std::optional<double> speedup_low;   // 95 % interval of `speedup`, the median over rounds of the ratio to single
  std::optional<double> speedup_high;  // in the same round; null for single itself, and of too few rounds
  std::optional<double> ceiling_efficiency;    // speed-up as a share of that of copies on as many devices
  std::optional<double> cpu_share;             // share of its cores' time that it used
  std::optional<double> other_programs_share;  // share of its cores' time; null also where oversubscribed, and on GPUs
  std::vector<double> rounds_other_programs;   // other_programs_share of each round; empty where it is null
  // How much longer a step of PyTorch's ranks takes than one whose gradients stay where they are, in each round.
  std::vector<double> synchronisation_us;
  double spread_share = 0;  // spread of a rank's steps in a burst, see fit_spread(); not in JSON

  std::int64_t batch = 1;              // rows a step, of all devices
  int blocks = 0;                      // of these, of which each device has whole ones; 0: devices share out rows
  bool added_uses = false;             // a parameter had several uses a step, which each device adds up by itself
  bool library_sums = false;           // LibTorch adds up over rows: bits depend on devices and threads
  std::vector<LostRank> lost_ranks;    // oldest first, 63 at most; not those before the first step
  bool per_device_statistics = false;  // batch norm of each device's own images: results depend on their number

  /// Whether its parameters need not be single's: see the three fields above.
  bool differs_by_design() const { return per_device_statistics || library_sums || added_uses; }
  bool timed() const { return samples_per_s > 0; }  // else its only step was the first
  /// Returns whether other programs had more than a tenth of its cores in this round.
  bool busy(std::size_t round) const;
  /// Returns whether the times of a busy round are left out; never if that leaves fewer than three rounds.
  bool disturbed(std::size_t round) const;
  std::int64_t disturbed_rounds() const;
  /// Returns whether most of its rounds were busy, so that nothing can be concluded from them.
  bool mostly_busy() const;
  /// Multiplies all times of a step and of an epoch, but those of single rounds.
  void scale_times(double factor);

  /// Whether it is PyTorch's, which `mode` names: see TorchPeers; and run by Python, over its own backend.
  bool is_torch() const { return mode.starts_with("torch") || mode.starts_with("LibTorch"); }
  bool is_plain_torch() const { return mode.starts_with("torch") && !mode.ends_with("duet"); }
  bool on_cpu() const { return device == "cpu"; }
  double threads() const { return static_cast<double>(devices) * threads_per_device; }
};

/// A run with the times of its bursts, each with one entry in rounds_us; as it is without any. `images` are those of an
/// epoch.
Run with_rounds(Run run, const std::vector<Run>& bursts, std::int64_t images);

/// A run with the parts of a step as `bursts`, which took it apart, have them; as it is without any.
Run with_parts(Run run, const std::vector<Run>& bursts);

/// The rounds that both have, without those in which one of them was disturbed where three others remain.
std::vector<std::size_t> common_rounds(const Run& a, const Run& b);

/// How many times as many rows a second `run` trains as `base`, in each of common_rounds().
std::vector<double> speed_ratios(const Run& run, const Run& base);
/// The share of a step of `base` that a step of `run` takes if its time is that of its rows, divided among its devices.
double ideal_share(const Run& run, const Run& base);

/// Rows of the largest of the shards that so many devices have of a batch of so many blocks, each of whole ones; 0
/// blocks: they share out rows.
std::int64_t largest_shard(std::int64_t batch, int devices, int blocks);

/// What of each part of a step is waiting, at most the part itself; none where that was not measured.
StepParts waiting_of(const Run& run);

/// "2 logical devices on 1 GPU", "4 ranks on 1 GPU"; empty unless GPUs are shared.
std::string sharing(const Run& run);

/// The tutorials' line: "Total execution time for 2 CPU devices: 12.3 seconds".
std::string execution_line(int devices, bool on_gpus, double execution_s);

/// One run as JSON, on one line. Reading throws DataError that names the field.
std::string to_json(const Run& run);
Run run_from_json(const std::string& text);
/// See json_fields.h.
void fields(auto& io, Run& run);

}  // namespace duet::cli
