#include "cli/compare/cells.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "cli/system/child_process.h"
#include "cli/system/files.h"
#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

std::string backend_of(const Training& options, const Cell& cell) {
  return cell.backend.empty() ? options.backend : cell.backend;
}

Run empty_run(const Training& options, const Cell& cell) {
  Run run;
  run.mode = name(cell.mode);
  run.device = duet::name(options.device);
  run.devices = cell.devices;
  run.precision = duet::name(options.precision);
  run.threads_per_device = cell.threads_per_device;
  if (has_ranks(cell.mode)) run.workers = options.workers;
  if (has_ranks(cell.mode) && cell.devices > 1) run.backend = backend_of(options, cell);
  return run;
}

void show_progress(ProgressLine& line, const std::string& file, const std::string& what) {
  if (::access(file.c_str(), R_OK) != 0) return;
  Progress progress;
  if (from_line(read_file(file), progress)) line.show(what, progress);
}

}  // namespace

std::vector<Cell> cells_of(const CompareOptions& options, int cores) {
  std::vector<Cell> cells;
  const int threads = options.threads_per_device;
  for (const Mode mode : options.modes) {
    if (mode == Mode::single) {
      cells.push_back({mode, 1, threads});
      if (options.device == DeviceKind::cpu && cores > threads) cells.push_back({mode, 1, cores});
      continue;
    }
    for (const int devices : options.devices) {
      cells.push_back({mode, devices, threads});
      if (mode != Mode::ddp || devices == 1) continue;
      for (std::size_t i = 1; i < options.backends.size(); ++i)
        cells.push_back({mode, devices, threads, options.backends[i]});
    }
  }
  return cells;
}

std::string title(const Training& options, const Cell& cell) {
  if (cell.mode == Mode::single && cell.threads_per_device > options.threads_per_device) return "single, all cores";
  return concat(name(cell.mode), " ", cell.devices, cell.backend.empty() ? "" : ", ", cell.backend);
}

std::vector<std::string> cell_arguments(const Training& options, const Cell& cell) {
  std::vector<std::string> arguments = {"train", "--quiet"};
  const auto add = [&](const char* option, const auto& value) {
    arguments.push_back(concat("--", option, "=", value));
  };
  add("mode", name(cell.mode));
  add("devices", cell.devices);
  add("device", duet::name(options.device));
  add("precision", duet::name(options.precision));
  add("graph", options.graph);
  add("graph-steps", options.graph_steps);
  add("backend", backend_of(options, cell));
  add("threads-per-device", cell.threads_per_device);
  add("model", options.model);
  add("epochs", options.epochs);
  add("batch", options.batch);
  add("lr", shortest(options.lr));
  add("optimizer", options.optimizer);
  if (options.optimizer == "sgd") add("momentum", shortest(options.momentum));
  if (options.weight_decay) add("weight-decay", shortest(*options.weight_decay));
  add("seed", options.seed);
  add("train-images", options.train_images);
  add("test-images", options.test_images);
  if (!options.data.empty()) add("data", options.data);
  if (has_ranks(cell.mode)) add("workers", options.workers);
  if (options.compat_torch) add("compat", "torch");
  if (options.deterministic) arguments.push_back("--deterministic");
  if (options.check_finite) arguments.push_back("--check-finite");
  return arguments;
}

Run CellRunner::run(const Cell& cell, const std::string& title, std::vector<std::string> more) {
  if (noted_signal() != 0) throw Interrupted{noted_signal()};
  const std::string progress = folder_ + "/progress", result = folder_ + "/result";
  ::unlink(progress.c_str());
  ::unlink(result.c_str());
  std::vector<std::string> arguments = cell_arguments(options_, cell);
  arguments.insert(arguments.end(), {"--result", result, "--progress", progress});
  arguments.insert(arguments.end(), more.begin(), more.end());
  last_title_ = concat("[", std::min(++done_, cells_), "/", cells_, "] ", title);
  const ChildEnd end =
      run_program(kThisProgram, arguments, folder_ + "/log", [&] { show_progress(line_, progress, last_title_); });
  line_.clear();
  if (!end.ok && end.signal != 0) throw Interrupted{end.signal};
  Run failed = empty_run(options_, cell);
  failed.ok = false;
  failed.error = end.reason;
  if (!end.ok) return failed;
  try {
    return run_from_json(read_file(result));
  } catch (const DataError& error) {
    failed.error = error.what();
    return failed;
  }
}

std::vector<std::string> CellRunner::fingerprints(const Cell& cell) {
  const std::string file = folder_ + "/fingerprints";
  ::unlink(file.c_str());
  if (!run(cell, title(options_, cell), {"--fingerprints", file}).ok) return {};
  std::istringstream in(read_file(file));
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

Run combined(const std::vector<Run>& repeats) {
  Run row = repeats.at(0);
  for (const Run& run : repeats)
    if (!run.ok) return run;
  const auto median_of = [&](auto field) {
    std::vector<double> values;
    for (const Run& run : repeats) values.push_back(field(run));
    return median(values);
  };
  row.epoch_s.clear();
  for (const Run& run : repeats) {
    row.epoch_s.insert(row.epoch_s.end(), run.epoch_s.begin(), run.epoch_s.end());
    if (run.parameters_sha256 == row.parameters_sha256) continue;
    row.ok = false;
    row.error = "repeats ended with different parameters";
  }
  for (const auto number : {&Run::startup_s, &Run::samples_per_s, &Run::waiting_share, &Run::communication_us})
    row.*number = median_of([&](const Run& run) { return run.*number; });
  for (const PartName& part : kStepParts)
    row.step_us.*part.member = median_of([&](const Run& run) { return run.step_us.*part.member; });
  for (const auto list : {&Run::peak_memory_mb, &Run::device_memory_mb, &Run::moved_bytes_per_step})
    for (std::size_t i = 0; i < (row.*list).size(); ++i)
      (row.*list)[i] = median_of([&](const Run& run) { return (run.*list).at(i); });
  return row;
}

std::optional<std::int64_t> first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto differing = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const bool same = a.size() == b.size() && differing == std::ssize(a);
  return a.empty() || b.empty() || same ? std::nullopt : std::optional<std::int64_t>(differing);
}

}  // namespace duet::cli
