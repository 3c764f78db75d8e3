#include "compare/cells.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "lib/error.h"

namespace duet::cli {
namespace {

std::string backend_of(const Training& options, const Cell& cell) {
  return cell.backend.empty() ? options.backend : cell.backend;
}

/// Whether duet's ranks exchange something.
bool communicates(const Cell& cell) {
  return has_ranks(cell.mode) && cell.mode != Mode::copies && cell.use != Cell::Use::torch;
}

std::int64_t batch_of(const Training& options, const Cell& cell) { return cell.batch > 0 ? cell.batch : options.batch; }

bool has_mode(const CompareOptions& options, Mode mode) {
  return std::find(options.modes.begin(), options.modes.end(), mode) != options.modes.end();
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
  std::set<int> fair;  // numbers of devices above 1 that have cores of their own
  const int threads = options.threads_per_device;
  for (const int devices : options.devices) {
    batches.insert(largest_shard(options.batch, devices, options.blocks));
    if (has_mode(options, Mode::averaging)) batches.insert(largest_shard(options.batch, devices, 0));
    if (devices > 1 && devices * threads <= cores && options.device == DeviceKind::cpu) fair.insert(devices);
  }
  std::vector<Cell> cells;
  const auto add = [&](Mode mode, int devices, const std::string& backend, std::int64_t batch, Cell::Use use) {
    cells.push_back({mode, devices, threads, backend, batch, use});
  };
  for (const std::int64_t batch : batches)
    if (batch > 0 && batch != options.batch) add(Mode::single, 1, "", batch, Cell::Use::batch_sweep);
  for (const int devices : fair)
    for (std::size_t i = 0; i < options.backends.size() && options.workers != "thread"; ++i)
      add(Mode::ddp, devices, i == 0 ? "" : options.backends[i], 0, Cell::Use::collectives);
  for (const std::int64_t batch : {options.batch / 4, options.batch / 2})
    if (has_mode(options, Mode::dp) && !fair.empty() && batch >= *fair.begin())
      add(Mode::dp, *fair.begin(), "", batch, Cell::Use::overhead);
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
  const std::string over = cell.backend.empty() ? "" : ", " + cell.backend;
  const std::string plain = concat(name(cell.mode), " ", cell.devices, over);
  const bool all_cores = cell.mode == Mode::single && cell.threads_per_device > options.threads_per_device;
  switch (cell.use) {
    case Cell::Use::row: return all_cores ? "single, all cores" : plain;
    case Cell::Use::parts: return (all_cores ? "single, all cores" : plain) + ", parts";
    case Cell::Use::batch_sweep: return concat("single, batch ", cell.batch);
    case Cell::Use::overhead: return concat(plain, ", batch ", cell.batch);
    case Cell::Use::collectives: return concat("all-reduces, ", cell.devices, over);
    case Cell::Use::torch: break;
  }
  const std::string threads = cell.threads_per_device > 1 ? concat(", ", cell.threads_per_device, " threads") : "";
  return concat(cell.torch, threads, " ", cell.devices);
}

std::vector<std::string> cell_arguments(const Training& options, const Cell& cell) {
  const bool parts = cell.use == Cell::Use::parts;
  Training own = options;
  own.quiet = true;
  own.download = false;
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

Run empty_run(const Training& options, const Cell& cell) {
  Run run;
  run.mode = cell.use == Cell::Use::torch ? cell.torch : name(cell.mode);
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

std::optional<std::int64_t> first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto differing = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const bool same = a.size() == b.size() && differing == std::ssize(a);
  return a.empty() || b.empty() || same ? std::nullopt : std::optional<std::int64_t>(differing);
}

}  // namespace duet::cli
