#include "model/collective_times.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/error.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const TimePoint& point) { return {point.at, point.us}; }

TimePoint point_from(const Json& json) { return {.at = json.at(0), .us = json.at(1)}; }

}  // namespace

double CollectiveTimes::ready_us(const GradientBucket& bucket) const {
  return std::max(0.0, bucket.ready_share * (backward_us + skipped_us) - skipped_us);
}

std::string to_json(const CollectiveTimes& times) {
  Json buckets = Json::array(), all_reduces = Json::array();
  for (const GradientBucket& bucket : times.buckets) buckets.push_back({bucket.bytes, bucket.ready_share});
  for (const TimePoint& point : times.all_reduces) all_reduces.push_back(json_of(point));
  return Json{{"buckets", buckets},
              {"parameter_bytes", times.parameter_bytes},
              {"all_reduces", all_reduces},
              {"averaging", json_of(times.averaging)},
              {"addition", json_of(times.addition)},
              {"backward_us", times.backward_us},
              {"skipped_us", times.skipped_us},
              {"exposed_us", times.exposed_us},
              {"pass_us", times.pass_us}}
      .dump();
}

CollectiveTimes collective_times_from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    CollectiveTimes times{.parameter_bytes = json.at("parameter_bytes").get<std::vector<double>>(),
                          .averaging = point_from(json.at("averaging")),
                          .addition = point_from(json.at("addition")),
                          .backward_us = json.at("backward_us"),
                          .skipped_us = json.at("skipped_us"),
                          .exposed_us = json.at("exposed_us"),
                          .pass_us = json.at("pass_us")};
    for (const Json& bucket : json.at("buckets"))
      times.buckets.push_back({.bytes = bucket.at(0), .ready_share = bucket.at(1)});
    for (const Json& point : json.at("all_reduces")) times.all_reduces.push_back(point_from(point));
    return times;
  } catch (const Json::exception& error) {
    throw DataError(concat("times of collectives: ", error.what()));
  }
}

}  // namespace duet::cli
