#include "compare/cost_model/cost_model.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "lib/error.h"
#include "train/measure/json_fields.h"
#include "train/system/machine.h"

namespace duet::cli {

void fields(auto& io, TimePoint& point) {
  io("batch", point.at, {.least = 1, .most = kLargestNumber});
  io("us", point.us, {.least = 1e-6, .most = kLargestNumber});
}

void fields(auto& io, SizeTime& time) {
  io("bytes", time.bytes);
  io("us", time.us);
}

void fields(auto& io, Slowdown& slowdown) {
  io("devices", slowdown.devices, {.least = 2, .most = kMaxDevices});
  io("factor", slowdown.factor, {.least = 1e-3, .most = kLargestNumber});
}

void fields(auto& io, GradientBucket& bucket) {
  io("bytes", bucket.bytes, kAmount);
  io("ready_share", bucket.ready_share, kShare);
}

void fields(auto& io, TransferCost& cost) {
  io("latency_us", cost.latency_us, kAmount);
  io("bytes_per_us", cost.bytes_per_us, {.least = 1e-6, .most = kLargestNumber, .infinite = true});
}

void fields(auto& io, StepOverhead& overhead) {
  io("fixed_us", overhead.fixed_us, kAmount);
  io("per_sample_us", overhead.per_sample_us, kAmount);
}

void fields(auto& io, MeasuredLink& link) {
  constexpr auto kPlain = [](const std::string& name) {
    return std::all_of(name.begin(), name.end(), [](char letter) { return letter >= 'a' && letter <= 'z'; });
  };
  io("backend", link.backend, {.fits = kPlain, .expected = "lower-case letters"});
  io("ranks", link.ranks, {.least = 2, .most = kMaxDevices});
  fields(io, link.cost);
  io("averaging", link.averaging);
}

void fields(auto& io, DpCopies& dp) {
  io("scatter_bytes_per_sample", dp.scatter_bytes_per_sample, kAmount);
  io("gather_bytes_per_sample", dp.gather_bytes_per_sample, kAmount);
  io("replicate_bytes", dp.replicate_bytes, kAmount);
  io("reduce_bytes", dp.reduce_bytes, kAmount);
  io("overhead", dp.overhead);
  fields(io, dp.cost);
}

void fields(auto& io, CostModel& model) {
  io.enter("model");
  io("fixed_us", model.step.fixed_us, kAmount);
  io("per_sample_us", model.step.per_sample_us, kAmount);
  io("communication_us", model.communication_us, kAmount);
  io("break_even_batch", model.break_even_batch, kAmount);
  io("measured", model.step.measured);
  io("worst_error_share", model.step.worst_error_share, kAmount);
  io("input_per_sample_us", model.input_per_sample_us, kAmount);
  io("update_us", model.update_us, kAmount);
  io("backward_share", model.backward_share, kShare);
  io("step_spread_share", model.step_spread_share, kShare);
  io("slowdown", model.slowdown);
  io("buckets", model.buckets);
  io("parameter_bytes", model.parameter_bytes, kAmount);
  io("links", model.links);
  io("dp", model.dp);
  // Both ascend.
  for (std::size_t i = 1; i < model.step.measured.size(); ++i)
    io.check(concat("measured[", i, "].batch"), model.step.measured[i].at,
             {.least = model.step.measured[i - 1].at + 1, .most = kLargestNumber});
  for (std::size_t i = 1; i < model.slowdown.size(); ++i)
    io.check(concat("slowdown[", i, "].devices"), model.slowdown[i].devices,
             {.least = model.slowdown[i - 1].devices + 1.0, .most = kMaxDevices});
}

template void fields(JsonWriter&, CostModel&);
template void fields(JsonReader&, CostModel&);

void fields(auto& io, CollectiveTimes& times) {
  io("buckets", times.buckets);
  io("parameter_bytes", times.parameter_bytes);
  io("all_reduces", times.all_reduces);
  io("averaging", times.averaging);
  io("addition", times.addition);
  io("backward_us", times.backward_us);
  io("pass_us", times.pass_us);
}

std::string to_json(const CollectiveTimes& times) { return line_of(JsonWriter::json_of(times)); }

CollectiveTimes collective_times_from_json(const std::string& text) {
  return read_json<CollectiveTimes>(text, "times of collectives");
}

double StepCost::us(double batch) const {
  const auto above =
      std::find_if(measured.begin(), measured.end(), [batch](const TimePoint& point) { return point.at >= batch; });
  if (above != measured.end() && above->at == batch) return above->us;
  if (above != measured.end() && above != measured.begin()) {
    const TimePoint& below = *std::prev(above);
    return below.us + (above->us - below.us) * (batch - below.at) / (above->at - below.at);
  }
  if (above == measured.end() && !measured.empty())
    return measured.back().us + per_sample_us * (batch - measured.back().at);
  return fixed_us + per_sample_us * batch;
}

double CostModel::compute_us(double batch) const {
  return std::max(0.0, step.us(batch) - input_per_sample_us * batch - update_us);
}

double CostModel::slowdown_of(int devices) const {
  Slowdown below{.devices = 1, .factor = 1};
  for (const Slowdown& measured : slowdown) {
    if (measured.devices >= devices) {
      const double share = static_cast<double>(devices - below.devices) / (measured.devices - below.devices);
      return below.factor + share * (measured.factor - below.factor);
    }
    below = measured;
  }
  return below.factor;
}

}  // namespace duet::cli
