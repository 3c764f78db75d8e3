// results.json and results.csv.
#include <algorithm>
#include <iomanip>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/system/number_text.h"
#include "compare/overhead.h"
#include "compare/results.h"
#include "lib/error.h"
#include "measure/json_fields.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Calls field(name, value) for every field of a run, in the order of results.csv. Other programs read these names:
/// they do not change.
template <class SomeRun, class Field>
void each_field(SomeRun& run, const Field& field) {
  field("mode", run.mode);
  field("device", run.device);
  field("devices", run.devices);
  field("physical_devices", run.physical_devices);
  field("precision", run.precision);
  field("threads_per_device", run.threads_per_device);
  field("ok", run.ok);
  field("error", run.error);
  field("startup_s", run.startup_s);
  field("epoch_s", run.epoch_s);
  field("samples_per_s", run.samples_per_s);
  field("speedup", run.speedup);
  field("efficiency", run.efficiency);
  field("waiting_share", run.waiting_share);
  field("communication_us", run.communication_us);
  field("parameters_sha256", run.parameters_sha256);
  field("first_differing_step", run.first_differing_step);
  field("step_us", run.step_us);
  field("median_step", run.median_step);
  field("train_loss", run.train_loss);
  field("test_accuracy", run.test_accuracy);
  field("peak_memory_mb", run.peak_memory_mb);
  field("device_memory_mb", run.device_memory_mb);
  field("moved_bytes_per_step", run.moved_bytes_per_step);
  field("graph", run.graph);
  field("workers", run.workers);
  field("backend", run.backend);
  field("communication_waiting_us", run.communication_waiting_us);
  field("communication_moving_us", run.communication_moving_us);
  field("waiting_interval_us", run.waiting_interval_us);
  field("moving_interval_us", run.moving_interval_us);
  field("step_waiting_us", run.step_waiting_us);
  field("rank_waiting_us", run.rank_waiting_us);
  field("eager_parts", run.eager_parts);
  field("execution_s", run.execution_s);
  field("rounds_us", run.rounds_us);
  field("rounds_step_us", run.rounds_step_us);
  field("rounds_waiting_us", run.rounds_waiting_us);
  field("rank_step_us", run.rank_step_us);
  field("speedup_low", run.speedup_low);
  field("speedup_high", run.speedup_high);
  field("ceiling_efficiency", run.ceiling_efficiency);
  field("cpu_share", run.cpu_share);
  field("other_programs_share", run.other_programs_share);
  field("rounds_other_programs", run.rounds_other_programs);
  field("synchronisation_us", run.synchronisation_us);
  field("batch", run.batch);
  field("per_device_statistics", run.per_device_statistics);
  field("library_sums", run.library_sums);
  field("added_uses", run.added_uses);
}

template <class T>
Json json_of(const T& value) {
  return value;
}

Json json_of(const StepParts& parts) {
  Json json;
  for (const PartName& part : kStepParts) json[part.name] = parts.*part.member;
  return json;
}

Json json_of(const std::vector<StepParts>& rounds) {
  Json json = Json::array();
  for (const StepParts& parts : rounds) json.push_back(json_of(parts));
  return json;
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : Json(nullptr);
}

Json json_of(const std::vector<StepEvent>& events) {
  Json json = Json::array();
  for (const StepEvent& event : events)
    json.push_back(
        {{"lane", event.lane}, {"name", event.name}, {"begin_us", event.begin_us}, {"end_us", event.end_us}});
  return json;
}

Json json_of(const Run& run) {
  Json json;
  each_field(run, [&](const char* name, const auto& value) { json[name] = json_of(value); });
  return json;
}

/// Null where a run has none.
Json losses_json(const Results& results, const Run& run) {
  Json json;
  if (const std::optional<OverheadInputs> inputs = overhead_inputs(results, run))
    for (const OverheadPart& part : take_apart(*inputs).parts) json[part.name] = json_of(part.us);
  return json;
}

std::string text_of(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

using cli::read;  // and for types of results:

/// Not-a-number and infinities are null in JSON.
void read(const Json& from, const char* field, std::vector<double>& values) {
  values.clear();
  for (const Json& item : list_at(from, field)) {
    require<DataError>(item.is_null() || item.is_number(), "results: field '", field, "' holds ", shown(item),
                       ", expected numbers");
    values.push_back(item.is_null() ? std::numeric_limits<double>::quiet_NaN() : item.get<double>());
  }
}

void read(const Json& from, const char* field, StepParts& parts) {
  for (const PartName& part : kStepParts) read(at(from, field), part.name, parts.*part.member);
}

void read(const Json& from, const char* field, std::vector<StepParts>& rounds) {
  for (const Json& item : list_at(from, field))
    for (StepParts& parts = rounds.emplace_back(); const PartName& part : kStepParts)
      read(item, part.name, parts.*part.member);
}

template <class T>
void read(const Json& from, const char* field, std::optional<T>& value) {
  value.reset();
  if (!at(from, field).is_null()) read(from, field, value.emplace());
}

void read(const Json& from, const char* field, std::vector<StepEvent>& events) {
  for (const Json& item : list_at(from, field)) {
    StepEvent& event = events.emplace_back();
    read(item, "lane", event.lane);
    read(item, "name", event.name);
    read(item, "begin_us", event.begin_us);
    read(item, "end_us", event.end_us);
  }
}

template <class T>
std::string csv_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  if constexpr (std::is_same_v<T, double>) return shortest(value);
  return concat(value);
}

template <class T>
std::string csv_text(const std::optional<T>& value) {
  return value ? csv_text(*value) : "";
}

std::string csv_text(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) out += (out.empty() ? "" : " ") + shortest(value);
  return out;
}

/// The values of a run, or the names of their columns.
std::string csv_line(const Run& run, bool names) {
  std::string line;
  const auto add = [&](const std::string& name, const std::string& value) { line += (names ? name : value) + ","; };
  each_field(run, [&](const std::string& name, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, StepParts>) {
      for (const PartName& part : kStepParts) add(concat(part.name, "_us"), shortest(value.*part.member));
    } else if constexpr (std::is_same_v<Value, std::optional<StepParts>>) {
      for (const PartName& part : kStepParts)
        add(concat(part.name, "_waiting_us"), value ? shortest(*value.*part.member) : "");
    } else if constexpr (!std::is_same_v<Value, std::vector<StepEvent>> &&
                         !std::is_same_v<Value, std::vector<StepParts>>) {
      const std::string text = csv_text(value);
      add(name, name == "error" ? concat(std::quoted(text, '"', '"')) : text);
    }
  });
  line.back() = '\n';
  return line;
}

}  // namespace

std::string to_json(const Run& run) { return text_of(json_of(run), -1); }

Run run_from_json(const std::string& text) {
  Run run;
  const Json json = parsed_json(text);
  require<DataError>(!json.is_discarded(), "results: not JSON, expected an object of a run's fields");
  const auto later = [](const std::string& name) {
    return name == "rounds_other_programs" || name == "synchronisation_us";
  };
  each_field(run, [&](const char* name, auto& value) {
    if (!later(name) || json.contains(name)) read(json, name, value);
  });
  return run;
}

std::string to_json(const Results& results) {
  const Machine& machine = results.machine;
  const Training& settings = results.settings;
  Json runs = Json::array();
  for (const Run& run : results.runs) {
    runs.push_back(json_of(run));
    runs.back()["losses_us"] = losses_json(results, run);
  }
  Json sweep = Json::array();
  for (const BatchTime& time : results.batch_sweep) sweep.push_back({{"batch", time.batch}, {"step_us", time.step_us}});
  const Json out = {{"duet", DUET_VERSION},
                    {"machine",
                     {{"cpu", machine.cpu},
                      {"cores", machine.cores},
                      {"isa", machine.isa},
                      {"gpus", machine.gpus},
                      {"memory_gb", machine.memory_gb},
                      {"kernel", machine.kernel}}},
                    {"settings",
                     {{"network", settings.model},
                      {"parameters", results.parameters},
                      {"batch", settings.batch},
                      {"scaling", results.weak ? "weak" : "strong"},
                      {"epochs", settings.epochs},
                      {"lr", settings.lr},
                      {"optimizer", settings.optimizer},
                      {"momentum", settings.momentum},
                      {"weight_decay", json_of(settings.weight_decay)},
                      {"seed", settings.seed},
                      {"precision", name(settings.precision)},
                      {"data", settings.data},
                      {"train_images", settings.train_images}}},
                    {"partial", results.partial},
                    {"runs", runs},
                    {"batch_sweep", sweep},
                    {"model", results.model ? Json::parse(to_json(*results.model)) : Json(nullptr)},
                    {"model_notes", results.model_notes},
                    {"torch_notes", results.torch_notes}};
  return text_of(out, 1);
}

std::string to_csv(const Results& results) {
  std::string out = csv_line({}, true);
  for (const Run& run : results.runs) out += csv_line(run, false);
  return out;
}

}  // namespace duet::cli
