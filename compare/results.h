// What a comparison found: the data behind the table, results.json, results.csv and index.html.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compare/cost_model/cost_model.h"
#include "train/measure/run.h"
#include "train/options/options.h"
#include "train/system/machine.h"

namespace duet::cli {

/// What a step of single takes on a batch of so many rows.
struct BatchTime {
  std::int64_t batch = 0;
  double step_us = 0;
};

struct Results {
  std::string version = DUET_VERSION;  // of the program that measured them
  Machine machine{};
  std::int64_t parameters = 0;  // number of the network's parameters
  Training settings;            // as asked for, but with the name of the data and the number of images that were found
  std::vector<Run> runs;
  bool partial = false;                  // interrupted: runs of cells that had not ended are missing
  std::vector<BatchTime> batch_sweep{};  // step times of single, from the rounds; by batch
  bool weak = false;                     // settings.batch is of each device, else of all
  std::optional<CostModel> model{};
  std::vector<std::string> model_notes{};  // why it, or a term of it, is missing, and what was clamped
  std::vector<std::string> torch_notes{};  // on PyTorch's rows: versions, and why rows are missing
};

/// results.json. Reading throws DataError that names the field.
std::string to_json(const Results& results);
Results results_from_json(const std::string& text);

/// Puts every text that is free in results.json, so that a person or the system may have named it, through `change`.
void change_texts(Results& results, const std::function<std::string(const std::string&)>& change);

/// results.csv: one line per run; lists joined by spaces.
std::string to_csv(const Results& results);

/// Shares of a row's cores that other programs had in the rounds that they disturbed: the least and the most.
struct Load {
  double least = 1, most = 0;
};
/// Returns the load if other programs disturbed most rounds of a comparison, of its base or of all its rows of dp and
/// ddp on several devices, so that it concludes nothing; else null.
std::optional<Load> load_of(const Results& results);

/// Fills speedup and efficiency of every run from base_of(), and ceiling_efficiency from `copies`. Runs that were
/// mostly_busy() have no interval, and none has one if load_of() tells why nothing is concluded. A run's times become
/// the base's by its speed-up, so that the ratio of two steps is that of the same rounds.
void compare_with_single(Results& results);
/// Returns the time of a step of a timed run, in microseconds.
double step_us(const Run& run);
/// What speed-ups are over: `single` on one device with the usual threads, else averaging, ddp or dp on one, which run
/// single's code there; null where none was timed.
const Run* base_of(const Results& results);
/// Its name in sentences: "single", or "averaging on 1 device".
std::string base_text(const Results& results);
/// "Speed-ups are over averaging on 1 device, as single was not compared."; empty where they are over single.
std::string base_note(const Results& results);

/// The run of a mode on a number of devices with the usual number of threads; null when absent or failed.
const Run* find_run(const Results& results, const std::string& mode, int devices);
/// "batch 128", of weak scaling "batch 128 of each device".
std::string batch_text(const Results& results);
/// True for the extra row "single, all cores".
bool all_cores_row(const Results& results, const Run& run);
/// True where devices (times threads) outnumber the cores, or share GPUs: what is measured then is overhead.
bool oversubscribed(const Results& results, const Run& run);

}  // namespace duet::cli
