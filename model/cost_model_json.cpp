// The cost model as JSON and back.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/options/options.h"
#include "lib/error.h"
#include "measure/json_fields.h"
#include "model/cost_model.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastUs = 1e-6;  // of a measured step

Json or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json json_of(const StepOverhead& overhead) {
  return {{"fixed_us", overhead.fixed_us}, {"per_sample_us", overhead.per_sample_us}};
}

Json json_of(const CostModel& model) {
  Json slowdown = Json::array(), buckets = Json::array(), links = Json::array();
  for (const Slowdown& one : model.slowdown) slowdown.push_back({{"devices", one.devices}, {"factor", one.factor}});
  for (const GradientBucket& one : model.buckets)
    buckets.push_back({{"bytes", one.bytes}, {"ready_share", one.ready_share}});
  for (const MeasuredLink& one : model.links) {
    Json averaging;
    if (const auto& cost = one.averaging)
      averaging = {{"latency_us", cost->latency_us}, {"bytes_per_us", or_null(cost->bytes_per_us)}};
    links.push_back({{"backend", one.backend},
                     {"ranks", one.ranks},
                     {"latency_us", one.cost.latency_us},
                     {"bytes_per_us", or_null(one.cost.bytes_per_us)},
                     {"averaging", averaging},
                     {"overlap_share", one.overlap_share},
                     {"overhead", json_of(one.overhead)}});
  }
  Json knee, dp, measured = Json::array();
  for (const TimePoint& point : model.step.measured) measured.push_back({{"batch", point.at}, {"us", point.us}});
  if (const auto& one = model.step.knee) knee = {{"batch", one->batch}, {"per_sample_us", one->per_sample_us}};
  if (const auto& one = model.dp)
    dp = {{"scatter_bytes_per_sample", one->scatter_bytes_per_sample},
          {"gather_bytes_per_sample", one->gather_bytes_per_sample},
          {"replicate_bytes", one->replicate_bytes},
          {"reduce_bytes", one->reduce_bytes},
          {"overhead", json_of(one->overhead)},
          {"latency_us", one->cost.latency_us},
          {"bytes_per_us", or_null(one->cost.bytes_per_us)}};
  return {{"fixed_us", model.step.fixed_us},
          {"per_sample_us", model.step.per_sample_us},
          {"communication_us", model.communication_us},
          {"break_even_batch", model.break_even_batch ? Json(*model.break_even_batch) : Json(nullptr)},
          {"knee", knee},
          {"measured", measured},
          {"worst_error_share", model.step.worst_error_share},
          {"input_per_sample_us", model.input_per_sample_us},
          {"update_us", model.update_us},
          {"backward_share", model.backward_share},
          {"step_spread_share", model.step_spread_share},
          {"slowdown", slowdown},
          {"buckets", buckets},
          {"parameter_bytes", model.parameter_bytes},
          {"links", links},
          {"dp", dp}};
}

/// An object of the file, with its place in errors: "model.links[0]".
class Fields {
 public:
  Fields(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    require<DataError>(json.is_object(), "results: ", place_, " is ", shown(json), ", expected an object");
  }

  const Json& at(const char* name) const {
    require<DataError>(json_.contains(name), "results: field '", path(name), "' is missing");
    return json_.at(name);
  }
  bool null(const char* name) const { return at(name).is_null(); }
  Fields object(const char* name) const { return {at(name), path(name)}; }

  std::vector<Fields> list(const char* name) const {
    std::vector<Fields> items;
    for (const Json& item : array(name)) items.emplace_back(item, concat(path(name), "[", items.size(), "]"));
    return items;
  }
  std::vector<double> numbers(const char* name) const {
    std::vector<double> values;
    for (const Json& item : array(name))
      values.push_back(checked(item, concat(path(name), "[", values.size(), "]"), 0, kLargestNumber));
    return values;
  }
  double number(const char* name, double least = 0, double most = kLargestNumber) const {
    return checked(at(name), path(name), least, most);
  }
  double share(const char* name) const { return number(name, 0, 1); }
  int devices(const char* name, int least) const {
    const double value = number(name, least, kMaxDevices);
    require<DataError>(value == std::floor(value), "results: ", path(name), " is ", value, ", expected a whole number");
    return static_cast<int>(value);
  }
  std::string text(const char* name) const {
    require<DataError>(at(name).is_string(), "results: ", path(name), " is ", shown(at(name)), ", expected a text");
    return at(name).get<std::string>();
  }
  std::string backend() const {
    const std::string value = text("backend");
    const bool plain = std::all_of(value.begin(), value.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    require<DataError>(plain, "results: ", path("backend"), " is ", shown(at("backend")),
                       ", expected lower-case letters");
    return value;
  }
  TransferCost transfer() const {
    const double rate =
        null("bytes_per_us") ? std::numeric_limits<double>::infinity() : number("bytes_per_us", 1e-6, kLargestNumber);
    return {.latency_us = number("latency_us"), .bytes_per_us = rate};
  }

 private:
  std::string path(const char* name) const { return place_ + "." + name; }
  const Json& array(const char* name) const {
    require<DataError>(at(name).is_array(), "results: ", path(name), " is ", shown(at(name)), ", expected a list");
    return at(name);
  }
  static double checked(const Json& json, const std::string& path, double least, double most) {
    require<DataError>(json.is_number(), "results: ", path, " is ", shown(json), ", expected a number");
    const auto value = json.get<double>();
    const std::string range = most < kLargestNumber ? concat(least, " to ", most)
                              : value < least       ? concat(least, " or more")
                                                    : concat("at most ", most);
    require<DataError>(value >= least && value <= most, "results: ", path, " is ", value, ", expected ", range);
    return value;
  }

  const Json& json_;
  std::string place_;
};

StepCost step_from(const Fields& model) {
  StepCost step{.fixed_us = model.number("fixed_us"),
                .per_sample_us = model.number("per_sample_us"),
                .worst_error_share = model.number("worst_error_share")};
  if (!model.null("knee")) {
    const Fields knee = model.object("knee");
    step.knee = {.batch = knee.number("batch", 1), .per_sample_us = knee.number("per_sample_us")};
  }
  double least = 1;
  for (const Fields& point : model.list("measured")) {
    step.measured.push_back({.at = point.number("batch", least), .us = point.number("us", kLeastUs)});
    least = step.measured.back().at + 1;  // ascending
  }
  return step;
}

StepOverhead overhead_from(const Fields& of) {
  const Fields overhead = of.object("overhead");
  return {.fixed_us = overhead.number("fixed_us"), .per_sample_us = overhead.number("per_sample_us")};
}

DpCopies copies_from(const Fields& dp) {
  return {.scatter_bytes_per_sample = dp.number("scatter_bytes_per_sample"),
          .gather_bytes_per_sample = dp.number("gather_bytes_per_sample"),
          .replicate_bytes = dp.number("replicate_bytes"),
          .reduce_bytes = dp.number("reduce_bytes"),
          .overhead = overhead_from(dp),
          .cost = dp.transfer()};
}

CostModel model_from(const Fields& fields) {
  CostModel model{.step = step_from(fields),
                  .input_per_sample_us = fields.number("input_per_sample_us"),
                  .update_us = fields.number("update_us"),
                  .backward_share = fields.share("backward_share"),
                  .step_spread_share = fields.share("step_spread_share"),
                  .parameter_bytes = fields.numbers("parameter_bytes"),
                  .communication_us = fields.number("communication_us")};
  int devices = 2;
  for (const Fields& one : fields.list("slowdown")) {
    model.slowdown.push_back({.devices = one.devices("devices", devices), .factor = one.number("factor", 1e-3)});
    devices = model.slowdown.back().devices + 1;  // ascending
  }
  for (const Fields& one : fields.list("buckets"))
    model.buckets.push_back({.bytes = one.number("bytes"), .ready_share = one.share("ready_share")});
  for (const Fields& one : fields.list("links")) {
    model.links.push_back({.backend = one.backend(),
                           .ranks = one.devices("ranks", 2),
                           .cost = one.transfer(),
                           .overlap_share = one.number("overlap_share", kLeastOverlap, 1),
                           .overhead = overhead_from(one)});
    if (!one.null("averaging")) model.links.back().averaging = one.object("averaging").transfer();
  }
  if (!fields.null("dp")) model.dp = copies_from(fields.object("dp"));
  if (!fields.null("break_even_batch")) model.break_even_batch = fields.number("break_even_batch");
  return model;
}

}  // namespace

std::string to_json(const CostModel& model) { return json_of(model).dump(); }

CostModel model_from_json(const std::string& text) {
  const Json json = parsed_json(text);
  require<DataError>(!json.is_discarded(), "results: model is not JSON");
  return model_from({json, "model"});
}

}  // namespace duet::cli
