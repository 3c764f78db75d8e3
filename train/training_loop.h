// The one training loop of all modes, with per-step timing and the loss curve.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/base/recovery.h"
#include "lib/base/trace.h"
#include "lib/data/dataset.h"
#include "lib/device.h"
#include "lib/monotonic.h"
#include "lib/nn/module.h"
#include "train/measure/run.h"
#include "train/setup.h"

namespace duet::cli {

/// What of the trace is of one rank.
struct RankLane {
  Device device{};        // of the parts of its steps
  int rank = 0;           // of its collectives
  bool replayed = false;  // as CUDA graphs: a step has no parts but those of its launch
};

RankLane lane_of(const Setup& setup, const ddp::ProcessGroup& group);

/// Follows the steps of one rank: traces them and their parts, and adds up what is traced of each step. Not thread
/// safe.
class StepClock {
 public:
  static constexpr int kLossPoints = 20;  // per epoch

  /// `started_ns`: when the program was started.
  explicit StepClock(std::int64_t started_ns, const RankLane& lane = {});

  /// An epoch of `steps` steps of which the first `done` are done. Losses must be read where `stops` holds for the
  /// steps of the epoch that are done then.
  void begin_epoch(std::int64_t steps, std::int64_t done, std::function<bool(std::int64_t done)> stops = {});
  /// Goes on with the epoch that stream() has given.
  void continue_epoch(std::int64_t steps, std::function<bool(std::int64_t done)> stops);
  /// What was done since the last step is of none.
  void skip();
  /// Traces the time since the last lap as this part of the step, or of `steps` steps that are reported together.
  /// Between epochs nothing is traced.
  void lap(double StepParts::*part, std::int64_t steps = 1);
  /// The step is over. `loss` is the mean over this process's `rows` of `global` rows.
  void end_step(double loss, std::int64_t rows, std::int64_t global) { end_steps(1, loss, rows, global); }
  /// `steps` alike are over, of which only all together were timed: each counts as their mean. `losses` is the sum of
  /// their losses. They belong to one point of the loss curve: see needs_loss().
  void end_steps(std::int64_t steps, double losses, std::int64_t rows, std::int64_t global);
  /// Keeps ops::block_sums() of the loss of the step that runs.
  void note_blocks(std::span<const float> sums);
  /// These sums, for adding up over ranks: then block_sums() are those of the whole batch on each.
  std::vector<float>& noted_blocks() { return noted_blocks_; }
  /// Whether they are known of all steps of this epoch so far.
  bool knows_blocks() const { return knows_blocks_ && blocks_ > 0; }
  /// These sums, step by step; for adding up over ranks. Then use_blocks() makes loss_sums() those of the losses of
  /// whole batches, with the bits of one device.
  std::vector<double>& block_sums() { return block_sums_; }
  void use_blocks();
  /// Whether losses must be read when `pending` unreported steps are over.
  bool needs_loss(std::int64_t pending) const;

  std::int64_t epoch_step() const { return step_; }
  std::int64_t epoch_steps() const { return steps_; }
  /// Sums of loss times rows at the points of this epoch, and the global rows; for adding up over ranks.
  std::vector<double>& loss_sums() { return loss_sums_; }
  const std::vector<double>& loss_rows() const { return loss_rows_; }
  /// Mean loss over this process's rows of this epoch so far.
  double epoch_loss() const;
  /// Times of every step but the first of the run.
  const std::vector<float>& steps_us() const { return step_us_; }
  double epoch_seconds() const { return epoch_us_ / 1e6; }
  /// Global images per second over this epoch so far, first step of the run excluded.
  double samples_per_s() const { return epoch_us_ > 0 ? epoch_images_ / epoch_us_ * 1e6 : 0; }

  /// Where the epoch stands, its losses so far, and the times of the run.
  void stream(StateStream& state);

  /// Fills startup_s, waiting_share, communication_us and step_us, as this rank measured them.
  void fill(Run& run) const;

 private:
  std::int64_t point_of(std::int64_t step) const;
  void trace_steps(std::int64_t steps);
  void keep_blocks(std::int64_t steps, std::int64_t global);

  std::int64_t started_ns_;
  RankLane lane_;
  Clock::time_point last_{}, step_begin_{};
  bool first_ = true;               // the step that runs is the first of the run
  double first_end_s_ = 0;          // from the start of the program to the end of the first step
  std::uint64_t position_ = 0;      // in the trace, behind the last step
  std::vector<TraceEvent> events_;  // of the last step
  StepParts total_;                 // sums over all steps but the first
  double communicated_us_ = 0;      // likewise, of collectives
  std::vector<float> step_us_;      // times of each step but the first
  double epoch_us_ = 0, epoch_images_ = 0, epoch_loss_sum_ = 0, epoch_rows_ = 0;
  std::int64_t step_ = 0, steps_ = 1;  // steps of the epoch: done, and in all
  std::function<bool(std::int64_t)> stops_;
  std::int64_t run_step_ = 0;
  std::vector<double> loss_sums_, loss_rows_;
  std::int64_t first_step_ = 0;  // of this process in the epoch
  std::size_t blocks_ = 0;       // of a batch; 0: not known yet
  bool knows_blocks_ = true;
  std::vector<float> noted_blocks_;        // of the step that runs
  std::vector<double> block_sums_;         // by step and block
  std::vector<std::int64_t> global_rows_;  // by step
};

/// Trains over what is left of an epoch. `after_step` is called after every step, or the several of one launch, and may
/// end the pass by returning false.
void train_epoch(Setup& setup, StepClock& clock, const std::function<bool()>& after_step);

/// Rows of `data` that this process classifies rightly on the net's device; rank and world_size divide every batch, of
/// up to 1,000 rows. `workers` make batches ahead.
std::int64_t count_correct(nn::Module& net, const data::Dataset& data, int rank, int world_size, int workers);

}  // namespace duet::cli
