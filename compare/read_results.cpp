// results.json as it was written.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/system/number_text.h"
#include "compare/results.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "measure/json_fields.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Limits of a batch's rows, so that the rows of all devices do not overflow.
constexpr std::int64_t kFewestRows = 1, kMostRows = static_cast<std::int64_t>(kLargestNumber);

Machine machine_from(const Json& json) {
  Machine machine;
  read(json, "cpu", machine.cpu);
  read(json, "cores", machine.cores);
  require_within("cores", machine.cores, 1);
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
  throw DataError(concat("results: field 'precision' is ", shown(text), ", expected fp32, tf32 or bf16"));
}

Training settings_from(const Json& json) {
  Training settings;
  read(json, "network", settings.model);
  read(json, "batch", settings.batch);
  require_within("batch", settings.batch, kFewestRows, kMostRows);
  read(json, "epochs", settings.epochs);
  read(json, "lr", settings.lr);
  read(json, "optimizer", settings.optimizer);
  read(json, "momentum", settings.momentum);
  if (!at(json, "weight_decay").is_null()) read(json, "weight_decay", settings.weight_decay.emplace());
  read(json, "seed", settings.seed);
  settings.precision = precision_from(json);
  read(json, "data", settings.data);
  read(json, "train_images", settings.train_images);
  require_within<std::int64_t>("train_images", settings.train_images, 0);
  return settings;
}

bool weak_from(const Json& settings) {
  std::string text;
  read(settings, "scaling", text);
  require<DataError>(text == "weak" || text == "strong", "results: field 'scaling' is ", shown(text),
                     ", expected strong or weak");
  return text == "weak";
}

/// Reads a run, and checks the range of every field from which numbers of devices and times of steps are computed.
Run run_from(const Json& json) {
  Run run = run_from_json(json.dump());
  const std::vector<std::string> modes = {"single", "averaging", "dp", "ddp", "copies"};
  require<DataError>(run.is_torch() || std::find(modes.begin(), modes.end(), run.mode) != modes.end(),
                     "results: field 'mode' is ", shown(run.mode), ", expected ", listed(modes, "or"));
  require<DataError>(run.on_cpu() || run.device.starts_with("cuda"), "results: field 'device' is ", shown(run.device),
                     ", expected cpu or cuda");
  require_within("devices", run.devices, 1, kMaxDevices);
  require_within("physical_devices", run.physical_devices, 1, kMaxDevices);
  require_within("threads_per_device", run.threads_per_device, 1);
  require_within("samples_per_s", run.samples_per_s, 0.0, kLargestNumber);
  require_within("batch", run.batch, kFewestRows, kMostRows);
  return run;
}

/// Of a file of several batches: refuses it, and names the files of each.
void require_one_batch(const Json& json) {
  if (!json.is_object() || !json.contains("batches")) return;
  std::vector<std::string> files;
  for (const Json& one : list_at(json, "batches"))
    files.push_back(batch_folder(settings_from(at(one, "settings")).batch) + "/results.json");
  throw DataError(concat("results of several batches, expected those of one: ", listed(files, "or"),
                         " in the folder of duet compare --out"));
}

}  // namespace

Results results_from_json(const std::string& text) {
  const Json json = parsed_json(text);
  require<DataError>(!json.is_discarded(), "not JSON, expected the results.json of duet compare");
  require_one_batch(json);
  Results results;
  results.machine = machine_from(at(json, "machine"));
  results.settings = settings_from(at(json, "settings"));
  read(at(json, "settings"), "parameters", results.parameters);
  require_within<std::int64_t>("parameters", results.parameters, 0);
  results.weak = weak_from(at(json, "settings"));
  read(json, "partial", results.partial);
  for (const Json& run : list_at(json, "runs")) results.runs.push_back(run_from(run));
  for (const Json& item : list_at(json, "batch_sweep")) {
    BatchTime& time = results.batch_sweep.emplace_back();
    read(item, "batch", time.batch);
    read(item, "step_us", time.step_us);
    require_within("batch", time.batch, kFewestRows, kMostRows);
    require_within("step_us", time.step_us, 0.0, kLargestNumber);
  }
  read(json, "model_notes", results.model_notes);
  if (json.contains("torch_notes")) read(json, "torch_notes", results.torch_notes);
  if (!at(json, "model").is_null()) results.model = model_from_json(at(json, "model").dump());
  return results;
}

}  // namespace duet::cli
