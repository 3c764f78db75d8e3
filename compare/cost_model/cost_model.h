// The cost model of a training step: what results.json's `model` holds, and from which every other number of devices is
// predicted.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace duet::cli {

/// A measured time; in a fit at any size, in the model's JSON at a batch in rows.
struct TimePoint {
  double at = 0, us = 0;
};

/// A whole step of single on one device over the rows of its batch: between measured batches the line from one to the
/// next, below them the fitted line, above them what it rises.
struct StepCost {
  double fixed_us = 0, per_sample_us = 0;
  std::vector<TimePoint> measured{};  // by batch, ascending
  double worst_error_share = 0;       // largest relative error of the fit at a measured batch

  double us(double batch) const;
};

/// How much longer a step takes when `devices` of one host compute next to each other and never communicate.
struct Slowdown {
  int devices = 2;
  double factor = 1;
};

/// One of the reducer's buckets, in the order in which they are sent.
struct GradientBucket {
  double bytes = 0;
  double ready_share = 1;  // share of backward's time after which its last gradient is there
};

/// One call moves so many bytes in latency + bytes / rate. An infinite rate: time did not grow with bytes.
struct TransferCost {
  double latency_us = 0, bytes_per_us = 0;

  double us(double bytes) const { return latency_us + bytes / bytes_per_us; }
};

/// What a step takes beyond the other terms, by the rows of its batch on all devices.
struct StepOverhead {
  double fixed_us = 0, per_sample_us = 0;

  double us(double batch) const { return fixed_us + per_sample_us * batch; }
};

/// A whole all-reduce as it was measured among `ranks` ranks of one host.
struct MeasuredLink {
  std::string backend;  // "shm", "gloo", ...
  int ranks = 2;
  TransferCost cost{};
  std::optional<TransferCost> averaging{};  // where mode averaging sums and divides a parameter; null: as `cost`
};

/// What DataParallel copies between its first device and each of the others.
struct DpCopies {
  double scatter_bytes_per_sample = 0, gather_bytes_per_sample = 0;  // 0 where devices share memory
  double replicate_bytes = 0;                                        // 0 with persistent replicas
  double reduce_bytes = 0;                                           // gradients of one device
  StepOverhead overhead{};                                           // replicas start, join, and read other cores' rows
  TransferCost cost{};                                               // cost of one copy
};

struct CostModel {
  StepCost step{};
  double input_per_sample_us = 0, update_us = 0;  // parts of it that DataParallel does not divide
  double backward_share = 0.6;                    // backward's share of forward, loss and backward
  double step_spread_share = 0;                   // standard deviation of a device's steps, as a share of their mean
  std::vector<Slowdown> slowdown{};               // by devices, ascending
  std::vector<GradientBucket> buckets{};
  std::vector<double> parameter_bytes{};  // averaging sums them one by one
  std::vector<MeasuredLink> links{};
  std::optional<DpCopies> dp{};
  // Derived from the above by fill_derived() of simulate_step.h.
  double communication_us = 0;               // all buckets among the fewest ranks measured, not overlapped
  std::optional<double> break_even_batch{};  // from which on a second device saves time; null: from none

  double compute_us(double batch) const;  // forward, loss and backward
  /// The slow-down factor on so many devices of one host: interpolated; beyond the most that were measured, theirs.
  double slowdown_of(int devices) const;
};

/// The value of "model" in results.json: see json_fields.h.
void fields(auto& io, CostModel& model);

struct SizeTime {
  double bytes = 0, us = 0;
};

/// What the ranks of a process group measured of the collectives of a network, alone: means over the ranks, each the
/// median of calls after pauses in which the ranks compute, as in training.
struct CollectiveTimes {
  std::vector<GradientBucket> buckets{};  // as ddp sends them
  std::vector<double> parameter_bytes{};  // as averaging sends them
  std::vector<SizeTime> all_reduces{};
  SizeTime averaging{};  // averaging all parameters: each summed in memory of its rank, and divided
  SizeTime addition{};   // adding so many bytes to as many in memory, by one device
  double backward_us = 0;
  double pass_us = 0;  // all of this once
};

/// JSON, and back. Reading throws DataError.
std::string to_json(const CollectiveTimes& times);
CollectiveTimes collective_times_from_json(const std::string& text);

}  // namespace duet::cli
