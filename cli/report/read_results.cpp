// results.json as it was written.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/batches.h"
#include "cli/report/json_fields.h"
#include "cli/report/results.h"
#include "cli/system/number_text.h"
#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

Machine machine_from(const Json& json) {
  Machine machine;
  read(json, "cpu", machine.cpu);
  read(json, "cores", machine.cores);
  read(json, "isa", machine.isa);
  read(json, "gpus", machine.gpus);
  read(json, "memory_gb", machine.memory_gb);
  read(json, "kernel", machine.kernel);
  return machine;
}

Precision precision_from(const Json& json) {
  std::string text;
  read(json, "precision", text);
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16})
    if (text == name(precision)) return precision;
  throw DataError(concat("results: field 'precision' is ", text, ", expected fp32, tf32 or bf16"));
}

Training settings_from(const Json& json) {
  Training settings;
  read(json, "network", settings.model);
  read(json, "batch", settings.batch);
  require<DataError>(settings.batch >= 1, "results: field 'batch' is ", settings.batch, ", expected 1 or more");
  read(json, "epochs", settings.epochs);
  read(json, "lr", settings.lr);
  read(json, "optimizer", settings.optimizer);
  read(json, "momentum", settings.momentum);
  if (!at(json, "weight_decay").is_null()) read(json, "weight_decay", settings.weight_decay.emplace());
  read(json, "seed", settings.seed);
  settings.precision = precision_from(json);
  read(json, "data", settings.data);
  read(json, "train_images", settings.train_images);
  return settings;
}

bool weak_from(const Json& settings) {
  std::string text;
  read(settings, "scaling", text);
  require<DataError>(text == "weak" || text == "strong", "results: field 'scaling' is ", text,
                     ", expected strong or weak");
  return text == "weak";
}

Run run_from(const Json& json) {
  Run run = run_from_json(json.dump());
  require<DataError>(run.batch >= 1, "results: field 'batch' is ", run.batch, ", expected 1 or more");
  return run;
}

/// Of a file of several batches: refuses it, and names the files of each.
void require_one_batch(const Json& json) {
  if (!json.is_object() || !json.contains("batches")) return;
  std::vector<std::string> files;
  require<DataError>(json.at("batches").is_array(), "results: field 'batches' is no list");
  for (const Json& one : json.at("batches"))
    files.push_back(batch_folder(settings_from(at(one, "settings")).batch) + "/results.json");
  throw DataError(concat("results of several batches, expected those of one: ", listed(files, "or"),
                         " in the folder of duet compare --out"));
}

}  // namespace

Results results_from_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  require<DataError>(!json.is_discarded(), "not JSON, expected the results.json of duet compare");
  require_one_batch(json);
  Results results;
  results.machine = machine_from(at(json, "machine"));
  results.settings = settings_from(at(json, "settings"));
  read(at(json, "settings"), "parameters", results.parameters);
  results.weak = weak_from(at(json, "settings"));
  read(json, "partial", results.partial);
  require<DataError>(at(json, "runs").is_array(), "results: field 'runs' is no list");
  for (const Json& run : at(json, "runs")) results.runs.push_back(run_from(run));
  for (const Json& item : at(json, "batch_sweep")) {
    BatchTime& time = results.batch_sweep.emplace_back();
    read(item, "batch", time.batch);
    read(item, "step_us", time.step_us);
  }
  read(json, "model_notes", results.model_notes);
  if (!at(json, "model").is_null()) results.model = model_from_json(at(json, "model").dump());
  return results;
}

}  // namespace duet::cli
