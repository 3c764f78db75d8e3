#include "compare/cells.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <sstream>

#include "cli/system/child_process.h"
#include "cli/system/files.h"
#include "cli/system/signals.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

std::string backend_of(const Training& options, const Cell& cell) {
  return cell.backend.empty() ? options.backend : cell.backend;
}

bool communicates(const Cell& cell) { return has_ranks(cell.mode) && cell.mode != Mode::copies; }

std::int64_t batch_of(const Training& options, const Cell& cell) { return cell.batch > 0 ? cell.batch : options.batch; }

Run empty_run(const Training& options, const Cell& cell) {
  Run run;
  run.mode = name(cell.mode);
  run.device = duet::name(options.device);
  run.devices = cell.devices;
  if (options.device == DeviceKind::cpu) run.physical_devices = cell.devices;
  run.batch = batch_of(options, cell);
  run.precision = duet::name(options.precision);
  run.threads_per_device = cell.threads_per_device;
  if (has_ranks(cell.mode) && cell.learns()) run.workers = options.workers;
  if (communicates(cell) && cell.devices > 1) run.backend = backend_of(options, cell);
  return run;
}

void show_progress(ProgressLine& line, const std::string& file, const std::string& what) {
  if (::access(file.c_str(), R_OK) != 0) return;
  Progress progress;
  if (from_line(read_file(file), progress)) line.show(what, progress);
}

bool has_mode(const CompareOptions& options, Mode mode) {
  return std::find(options.modes.begin(), options.modes.end(), mode) != options.modes.end();
}

/// Devices above 1 that have cores of their own; 0: none.
int fewest_fair(const CompareOptions& options, int cores) {
  int fewest = 0;
  for (const int devices : options.devices)
    if (devices > 1 && devices * options.threads_per_device <= cores && options.device == DeviceKind::cpu)
      fewest = fewest == 0 ? devices : std::min(fewest, devices);
  return fewest;
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
  if (has_mode(options, Mode::single) && options.modes.size() > 1 && options.time_budget_s > 0)
    for (const int devices : options.devices)
      if (devices > 1) cells.push_back({Mode::copies, devices, threads});
  if (options.scaling == "weak")
    for (Cell& cell : cells) cell.batch = options.batch * cell.devices;
  return cells;
}

std::vector<Cell> model_cells_of(const CompareOptions& options, int cores) {
  if (!has_mode(options, Mode::single) || options.time_budget_s <= 0) return {};
  std::set<std::int64_t> batches = {options.batch / 8, options.batch / 4, options.batch / 2, 2 * options.batch};
  std::vector<Cell> cells, collectives;
  const int threads = options.threads_per_device;
  for (const int devices : options.devices) {
    batches.insert(largest_shard(options.batch, devices));
    if (devices == 1 || devices * threads > cores) continue;
    if (options.device != DeviceKind::cpu || options.workers == "thread") continue;
    for (std::size_t i = 0; i < options.backends.size(); ++i)
      collectives.push_back({.mode = Mode::ddp,
                             .devices = devices,
                             .threads_per_device = threads,
                             .backend = i == 0 ? "" : options.backends[i],
                             .use = Cell::Use::collectives});
  }
  for (const std::int64_t batch : batches)
    if (batch > 0 && batch != options.batch)
      cells.push_back(
          {.mode = Mode::single, .threads_per_device = threads, .batch = batch, .use = Cell::Use::batch_sweep});
  cells.insert(cells.end(), collectives.begin(), collectives.end());
  if (const int fewest = fewest_fair(options, cores); has_mode(options, Mode::dp))
    for (const std::int64_t batch : {options.batch / 4, options.batch / 2})
      if (fewest > 0 && batch >= fewest)
        cells.push_back({.mode = Mode::dp,
                         .devices = fewest,
                         .threads_per_device = threads,
                         .batch = batch,
                         .use = Cell::Use::overhead});
  return cells;
}

std::vector<Cell> part_cells_of(const CompareOptions& options, const std::vector<Cell>& rows) {
  std::vector<Cell> cells;
  if (options.device == DeviceKind::cpu || options.time_budget_s <= 0) return cells;
  for (Cell cell : rows) {
    cell.use = Cell::Use::parts;
    cells.push_back(cell);
  }
  return cells;
}

std::string title(const Training& options, const Cell& cell) {
  if (cell.use == Cell::Use::parts) {
    Cell row = cell;
    row.use = Cell::Use::row;
    return title(options, row) + ", parts";
  }
  if (cell.use == Cell::Use::batch_sweep) return concat("single, batch ", cell.batch);
  if (cell.use == Cell::Use::torch)
    return concat(cell.torch, cell.threads_per_device > 1 ? concat(", ", cell.threads_per_device, " threads") : "", " ",
                  cell.devices);
  const std::string over = cell.backend.empty() ? "" : ", " + cell.backend;
  if (cell.use == Cell::Use::overhead) return concat(name(cell.mode), " ", cell.devices, over, ", batch ", cell.batch);
  if (cell.use == Cell::Use::collectives) return concat("all-reduces, ", cell.devices, over);
  if (cell.mode == Mode::single && cell.threads_per_device > options.threads_per_device) return "single, all cores";
  return concat(name(cell.mode), " ", cell.devices, over);
}

std::vector<std::string> cell_arguments(const Training& options, const Cell& cell) {
  const bool parts = cell.use == Cell::Use::parts;
  Training own = options;
  own.quiet = true;
  own.verbose = own.download = false;
  own.threads_per_device = cell.threads_per_device;
  if (parts) own.graph = "off";
  if (cell.mode == Mode::averaging) own.sync_bn = false;
  if (!has_ranks(cell.mode) || !cell.learns()) own.workers = "process";
  std::vector<std::string> arguments = {"train",
                                        cell.mode == Mode::copies ? "--copies" : concat("--mode=", name(cell.mode)),
                                        concat("--devices=", cell.devices), concat("--batch=", batch_of(options, cell)),
                                        concat("--backend=", communicates(cell) ? backend_of(options, cell) : "auto")};
  for (const std::string& argument : arguments_of(own)) arguments.push_back(argument);
  if (!cell.learns()) arguments.emplace_back("--untrained");
  if (cell.use == Cell::Use::collectives) arguments.emplace_back("--collectives");
  if (parts) arguments.emplace_back("--timed-parts");
  return arguments;
}

const std::string& CellRunner::next_title(const Cell& cell) {
  return last_title_ = concat("[", std::min(++done_, cells_.size()), "/", cells_.size(), "] ", title(options_, cell));
}

Learnt CellRunner::run(const Cell& cell, const std::vector<std::string>& more, bool park) {
  if (noted_signal() != 0) throw Interrupted{noted_signal()};
  const std::string progress = folder_ + "/progress", files = concat(folder_, "/", done_), result = files + ".result";
  ::unlink(progress.c_str());
  std::vector<std::string> arguments = cell_arguments(options_, cell);
  arguments.insert(arguments.end(), {"--result", result, "--progress", progress});
  arguments.insert(arguments.end(), more.begin(), more.end());
  next_title(cell);
  const auto show = [&] { show_progress(line_, progress, last_title_); };
  Learnt learnt{.run = empty_run(options_, cell), .parked = nullptr};
  try {
    std::string error;
    if (park) {
      learnt.parked = std::make_unique<ParkedCell>(kThisProgram, arguments, files, cell.ranks());
      if (!learnt.parked->answers(show)) error = learnt.parked->error();
    } else {
      const ChildEnd end = run_program(kThisProgram, arguments, files + ".log", show);
      if (!end.ok && end.signal != 0) throw Interrupted{end.signal};
      error = end.reason;
    }
    require<DataError>(error.empty(), error);
    learnt.run = run_from_json(read_file(result));
  } catch (const Error& failure) {
    learnt.run.ok = false;
    learnt.run.error = failure.what();
    learnt.parked.reset();
  }
  line_.clear();
  return learnt;
}

std::vector<std::string> CellRunner::fingerprints(const Cell& cell) {
  const std::string file = folder_ + "/fingerprints";
  ::unlink(file.c_str());
  if (!run(cell, {"--fingerprints", file}, false).run.ok) return {};
  std::istringstream in(read_file(file));
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

std::optional<std::int64_t> first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto differing = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const bool same = a.size() == b.size() && differing == std::ssize(a);
  return a.empty() || b.empty() || same ? std::nullopt : std::optional<std::int64_t>(differing);
}

}  // namespace duet::cli
