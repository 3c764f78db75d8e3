#include "compare/results.h"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <optional>

#include "compare/overhead.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "train/measure/json_fields.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

/// Threads per device of the usual rows: the fewest that any run of duet has.
int usual_threads(const Results& results) {
  int threads = 0;
  for (const Run& run : results.runs)
    if (!run.is_torch()) threads = threads == 0 ? run.threads_per_device : std::min(threads, run.threads_per_device);
  return threads;
}

/// The median over rounds of how many times as fast `run` is as `base`; without rounds, from all of their steps.
double times_as_fast(const Run& run, const Run& base) {
  const std::vector<double> ratios = speed_ratios(run, base);
  return ratios.empty() ? run.samples_per_s / base.samples_per_s : median(ratios);
}

/// The settings of a comparison, and what stands between them in results.json.
struct Settings {
  Results& results;
};

}  // namespace

void fields(auto& io, Machine& machine) {
  io("cpu", machine.cpu);
  io("cores", machine.cores, {.least = 1});
  io("isa", machine.isa);
  io("gpus", machine.gpus);
  io("memory_gb", machine.memory_gb);
  io("kernel", machine.kernel);
  io("sockets", machine.sockets, {.least = 0, .later = true});
  io("caches", machine.caches, {.later = true});
}

void fields(auto& io, Settings& of) {
  Training& settings = of.results.settings;
  constexpr auto kIsPrecision = [](const std::string& text) {
    return text == "fp32" || text == "tf32" || text == "bf16";
  };
  constexpr auto kIsScaling = [](const std::string& text) { return text == "weak" || text == "strong"; };
  std::string scaling = of.results.weak ? "weak" : "strong", precision = name(settings.precision);
  io("network", settings.model);
  io("parameters", of.results.parameters, {.least = 0});
  io("batch", settings.batch, kRows);
  io("scaling", scaling, {.fits = kIsScaling, .expected = "strong or weak"});
  io("epochs", settings.epochs);
  io("lr", settings.lr);
  io("optimizer", settings.optimizer);
  io("momentum", settings.momentum);
  io("weight_decay", settings.weight_decay);
  io("seed", settings.seed);
  io("precision", precision, {.fits = kIsPrecision, .expected = "fp32, tf32 or bf16"});
  io("data", settings.data);
  io("train_images", settings.train_images, {.least = 0});
  io("blocks", settings.blocks, {.least = 0, .later = true});
  of.results.weak = scaling == "weak";
  for (const Precision one : {Precision::fp32, Precision::tf32, Precision::bf16})
    if (precision == name(one)) settings.precision = one;
}

void fields(auto& io, BatchTime& time) {
  io("batch", time.batch, kRows);
  io("step_us", time.step_us, kAmount);
}

void fields(auto& io, Results& results) {
  Settings settings{results};
  io("duet", results.version);
  io("machine", results.machine);
  io("settings", settings);
  io("partial", results.partial);
  io("runs", results.runs);
  io("batch_sweep", results.batch_sweep);
  io("model", results.model);
  io("model_notes", results.model_notes);
  io("torch_notes", results.torch_notes, {.later = true});
}

std::string to_json(const Results& results) {
  Json out = JsonWriter::json_of(results);
  for (std::size_t i = 0; i < results.runs.size(); ++i) {
    Json& losses = out["runs"][i]["losses_us"];  // null where a run has none
    if (const std::optional<Overhead> overhead = overhead_of(results, results.runs[i]))
      for (const OverheadPart& part : overhead->parts) losses[part.name] = JsonWriter::json_of(part.us);
  }
  return text_of(out);
}

namespace {

/// Returns `value` as a field of CSV; blanks separate the items of a list.
std::string csv_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return shortest(value.get<double>());
  if (!value.is_array()) return value.is_null() ? "" : value.dump();
  std::string list;
  for (const Json& item : value) list += (list.empty() ? "" : " ") + csv_text(item);
  return list;
}

/// The values of a run, or the names of their columns.
std::string csv_line(const Run& run, bool names) {
  std::string line;
  const auto add = [&](const std::string& name, const std::string& value) { line += (names ? name : value) + ","; };
  const Json fields_of_run = JsonWriter::json_of(run);
  for (const auto& [name, value] : fields_of_run.items()) {
    if (name == "median_step" || name == "rounds_step_us" || name == "rounds_waiting_us" || name == "lost_ranks")
      continue;
    if (name == "step_us" || name == "step_waiting_us")
      for (const PartName& part : kStepParts)
        add(concat(part.name, name == "step_us" ? "_us" : "_waiting_us"),
            value.is_null() ? "" : csv_text(value.at(part.name)));
    else
      add(name, name == "error" ? concat(std::quoted(run.error, '"', '"')) : csv_text(value));
  }
  line.back() = '\n';
  return line;
}

}  // namespace

Results results_from_json(const std::string& text) {
  const Json json = parsed_json(text);
  require<DataError>(!json.is_discarded(), "not JSON, expected the results.json of duet compare");
  Results results;
  JsonReader io(json);
  fields(io, results);
  return results;
}

void change_texts(Results& results, const std::function<std::string(const std::string&)>& change) {
  Machine& machine = results.machine;
  Training& settings = results.settings;
  std::vector<std::string*> texts = {&results.version, &machine.cpu,        &machine.isa,  &machine.kernel,
                                     &settings.model,  &settings.optimizer, &settings.data};
  for (auto* const list : {&machine.gpus, &machine.caches, &results.model_notes, &results.torch_notes})
    for (std::string& text : *list) texts.push_back(&text);
  for (Run& run : results.runs) {
    for (std::string* const text :
         {&run.device, &run.precision, &run.workers, &run.backend, &run.error, &run.parameters_sha256})
      texts.push_back(text);
    for (StepEvent& event : run.median_step) texts.insert(texts.end(), {&event.lane, &event.name});
  }
  for (std::string* const text : texts) *text = change(*text);
}

std::string to_csv(const Results& results) {
  std::string text = csv_line({}, true);
  for (const Run& run : results.runs) text += csv_line(run, false);
  return text;
}

std::string batch_text(const Results& results) {
  return concat("batch ", results.settings.batch, results.weak ? " of each device" : "");
}

bool all_cores_row(const Results& results, const Run& run) {
  return run.mode == "single" && run.threads_per_device > usual_threads(results);
}

bool oversubscribed(const Results& results, const Run& run) {
  return run.on_cpu() ? run.threads() > results.machine.cores : run.devices > run.physical_devices;
}

const Run* find_run(const Results& results, const std::string& mode, int devices) {
  for (const Run& run : results.runs)
    if (run.ok && run.mode == mode && run.devices == devices && run.threads_per_device == usual_threads(results))
      return &run;
  return nullptr;
}

const Run* base_of(const Results& results) {
  for (const char* const mode : {"single", "averaging", "ddp", "dp"})
    if (const Run* const run = find_run(results, mode, 1); run && run->timed()) return run;
  return nullptr;
}

std::string base_text(const Results& results) {
  const Run* const base = base_of(results);
  return base == nullptr || base->mode == "single" ? "single" : base->mode + " on 1 device";
}

std::string base_note(const Results& results) {
  const Run* const base = base_of(results);
  const bool others = base && std::any_of(results.runs.begin(), results.runs.end(),
                                          [&](const Run& run) { return &run != base && run.speedup; });
  return !others || base->mode == "single"
             ? ""
             : concat("Speed-ups are over ", base_text(results), ", as single was not compared.");
}

std::optional<Load> load_of(const Results& results) {
  Load load;
  std::size_t rounds = 0, busy = 0, wrapped = 0, busy_wrapped = 0;
  for (const Run& run : results.runs) {
    if (!run.ok || run.rounds_other_programs.empty()) continue;
    for (std::size_t i = 0; i < run.rounds_other_programs.size(); ++i) {
      ++rounds;
      if (!run.busy(i)) continue;
      ++busy;
      load.least = std::min(load.least, run.rounds_other_programs[i]);
      load.most = std::max(load.most, run.rounds_other_programs[i]);
    }
    const bool wraps = run.devices > 1 && (run.mode == "dp" || run.mode == "ddp");
    wrapped += wraps;
    busy_wrapped += wraps && run.mostly_busy();
  }
  const Run* const base = base_of(results);
  const bool concludes =
      2 * busy <= rounds && !(base && base->mostly_busy()) && (wrapped == 0 || busy_wrapped < wrapped);
  return concludes ? std::nullopt : std::optional(load);
}

double step_us(const Run& run) { return static_cast<double>(run.batch) / run.samples_per_s * 1e6; }

void compare_with_single(Results& results) {
  const Run* const single = base_of(results);
  const bool concludes = !load_of(results);
  for (Run& run : results.runs) {
    run.speedup = run.efficiency = run.speedup_low = run.speedup_high = run.ceiling_efficiency = std::nullopt;
    if (!single || !run.ok || !run.timed() || !sharing(run).empty()) continue;
    run.speedup = times_as_fast(run, *single);
    if (!oversubscribed(results, run) && !run.is_torch())
      run.efficiency = *run.speedup / run.threads() * single->threads_per_device;
    const std::vector<double> ratios = speed_ratios(run, *single);
    if (!ratios.empty()) run.scale_times(run.samples_per_s / (single->samples_per_s * *run.speedup));
    const std::optional<Interval> interval = ratio_interval(ratios);
    if (interval && &run != single && concludes && !run.mostly_busy()) {
      run.speedup_low = interval->low;
      run.speedup_high = interval->high;
    }
    const Run* const copies = find_run(results, "copies", run.devices);
    if (copies && run.devices > 1 && run.mode != "copies" && !run.is_torch())
      run.ceiling_efficiency = times_as_fast(run, *copies);
  }
}

}  // namespace duet::cli
