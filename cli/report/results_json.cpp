// results.json in and out. Field names are read by other programs: they do not change.
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/results.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
void read(const Json& from, const char* field, T& value) {
  require<DataError>(from.contains(field), "results: field '", field, "' is missing");
  try {
    value = from.at(field).get<T>();
  } catch (const Json::exception& error) {
    throw DataError(concat("results: field '", field, "' is ", from.at(field).dump(), ": ", error.what()));
  }
}

/// Not-a-number and infinities are null in JSON.
void read(const Json& from, const char* field, std::vector<double>& values) {
  std::vector<Json> items;
  read(from, field, items);
  values.clear();
  for (const Json& item : items) {
    require<DataError>(item.is_null() || item.is_number(), "results: field '", field, "' holds ", item.dump());
    values.push_back(item.is_null() ? std::numeric_limits<double>::quiet_NaN() : item.get<double>());
  }
}

template <class T>
void read(const Json& from, const char* field, std::optional<T>& value) {
  require<DataError>(from.contains(field), "results: field '", field, "' is missing");
  value.reset();
  if (from.at(field).is_null()) return;
  T given{};
  read(from, field, given);
  value = given;
}

Json run_json(const Run& run) {
  Json parts, events = Json::array();
  for (const PartName& part : step_part_names()) parts[part.name] = run.step_us.*part.member;
  for (const StepEvent& event : run.median_step)
    events.push_back(
        {{"lane", event.lane}, {"name", event.name}, {"begin_us", event.begin_us}, {"end_us", event.end_us}});
  return {{"mode", run.mode},
          {"device", run.device},
          {"devices", run.devices},
          {"physical_devices", run.physical_devices},
          {"precision", run.precision},
          {"graph", run.graph},
          {"threads_per_device", run.threads_per_device},
          {"workers", run.workers},
          {"backend", run.backend},
          {"ok", run.ok},
          {"error", run.error},
          {"startup_s", run.startup_s},
          {"epoch_s", run.epoch_s},
          {"samples_per_s", run.samples_per_s},
          {"speedup", or_null(run.speedup)},
          {"efficiency", or_null(run.efficiency)},
          {"waiting_share", run.waiting_share},
          {"communication_us", run.communication_us},
          {"parameters_sha256", run.parameters_sha256},
          {"first_differing_step", or_null(run.first_differing_step)},
          {"step_us", parts},
          {"median_step", events},
          {"train_loss", run.train_loss},
          {"test_accuracy", run.test_accuracy},
          {"peak_memory_mb", run.peak_memory_mb},
          {"device_memory_mb", run.device_memory_mb},
          {"moved_bytes_per_step", run.moved_bytes_per_step}};
}

Run read_run(const Json& from) {
  Run run;
  read(from, "mode", run.mode);
  read(from, "device", run.device);
  read(from, "devices", run.devices);
  read(from, "physical_devices", run.physical_devices);
  read(from, "precision", run.precision);
  read(from, "graph", run.graph);
  read(from, "threads_per_device", run.threads_per_device);
  read(from, "workers", run.workers);
  read(from, "backend", run.backend);
  read(from, "ok", run.ok);
  read(from, "error", run.error);
  read(from, "startup_s", run.startup_s);
  read(from, "epoch_s", run.epoch_s);
  read(from, "samples_per_s", run.samples_per_s);
  read(from, "speedup", run.speedup);
  read(from, "efficiency", run.efficiency);
  read(from, "waiting_share", run.waiting_share);
  read(from, "communication_us", run.communication_us);
  read(from, "parameters_sha256", run.parameters_sha256);
  read(from, "first_differing_step", run.first_differing_step);
  Json parts;
  read(from, "step_us", parts);
  for (const PartName& part : step_part_names()) read(parts, part.name, run.step_us.*part.member);
  std::vector<Json> events;
  read(from, "median_step", events);
  for (const Json& item : events) {
    StepEvent& event = run.median_step.emplace_back();
    read(item, "lane", event.lane);
    read(item, "name", event.name);
    read(item, "begin_us", event.begin_us);
    read(item, "end_us", event.end_us);
  }
  read(from, "train_loss", run.train_loss);
  read(from, "test_accuracy", run.test_accuracy);
  read(from, "peak_memory_mb", run.peak_memory_mb);
  read(from, "device_memory_mb", run.device_memory_mb);
  read(from, "moved_bytes_per_step", run.moved_bytes_per_step);
  return run;
}

Json parse_json(const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw DataError(concat("results: not JSON: ", error.what()));
  }
}

std::string text_of(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string to_json(const Run& run) { return text_of(run_json(run), -1); }
Run run_from_json(const std::string& text) { return read_run(parse_json(text)); }

std::string to_json(const Results& results) {
  const Machine& machine = results.machine;
  const Settings& settings = results.settings;
  Json runs = Json::array();
  for (const Run& run : results.runs) runs.push_back(run_json(run));
  Json model = nullptr;
  if (results.model)
    model = {{"fixed_us", results.model->fixed_us},
             {"per_sample_us", results.model->per_sample_us},
             {"communication_us", results.model->communication_us},
             {"break_even_batch", results.model->break_even_batch}};
  const Json out = {{"duet", results.duet},
                    {"machine",
                     {{"cpu", machine.cpu},
                      {"cores", machine.cores},
                      {"isa", machine.isa},
                      {"gpus", machine.gpus},
                      {"memory_gb", machine.memory_gb},
                      {"kernel", machine.kernel}}},
                    {"settings",
                     {{"batch", settings.batch},
                      {"epochs", settings.epochs},
                      {"lr", settings.lr},
                      {"optimizer", settings.optimizer},
                      {"momentum", settings.momentum},
                      {"weight_decay", settings.weight_decay ? Json(*settings.weight_decay) : Json(nullptr)},
                      {"seed", settings.seed},
                      {"precision", settings.precision},
                      {"data", settings.data},
                      {"train_images", settings.train_images}}},
                    {"partial", results.partial},
                    {"runs", runs},
                    {"model", model}};
  return text_of(out, 1);
}

Results results_from_json(const std::string& text) {
  const Json from = parse_json(text);
  Results results;
  read(from, "duet", results.duet);
  Json machine, settings, runs;
  read(from, "machine", machine);
  read(from, "settings", settings);
  read(from, "partial", results.partial);
  read(from, "runs", runs);
  read(machine, "cpu", results.machine.cpu);
  read(machine, "cores", results.machine.cores);
  read(machine, "isa", results.machine.isa);
  read(machine, "gpus", results.machine.gpus);
  read(machine, "memory_gb", results.machine.memory_gb);
  read(machine, "kernel", results.machine.kernel);
  read(settings, "batch", results.settings.batch);
  read(settings, "epochs", results.settings.epochs);
  read(settings, "lr", results.settings.lr);
  read(settings, "optimizer", results.settings.optimizer);
  read(settings, "momentum", results.settings.momentum);
  if (settings.contains("weight_decay") && !settings.at("weight_decay").is_null())
    read(settings, "weight_decay", results.settings.weight_decay.emplace());
  read(settings, "seed", results.settings.seed);
  read(settings, "precision", results.settings.precision);
  read(settings, "data", results.settings.data);
  read(settings, "train_images", results.settings.train_images);
  for (const Json& run : runs) results.runs.push_back(read_run(run));
  require<DataError>(from.contains("model"), "results: field 'model' is missing");
  if (!from.at("model").is_null()) {
    CostModel model;
    read(from.at("model"), "fixed_us", model.fixed_us);
    read(from.at("model"), "per_sample_us", model.per_sample_us);
    read(from.at("model"), "communication_us", model.communication_us);
    read(from.at("model"), "break_even_batch", model.break_even_batch);
    results.model = model;
  }
  return results;
}

}  // namespace duet::cli
