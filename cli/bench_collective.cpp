// duet bench all_reduce, all_gather, broadcast, reduce_scatter, all_to_all: times collectives among ranks of its own.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/collective_rows.h"
#include "cli/commands.h"
#include "cli/devices.h"
#include "cli/machine.h"
#include "cli/text.h"
#include "ddp/init.h"
#include "ddp/launch.h"
#include "ddp/nccl_group.h"
#include "ddp/rank_threads.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/thread_pool.h"

namespace duet::cli {
namespace {

constexpr const char* kOwnRank = "DUET_BENCH_RANK";

/// The backend for init_process_group() and run_rank_threads().
std::string chosen(const CollectiveOptions& options, const std::string& backend) {
  return backend == "auto" && can_use_nccl(options.device, options.devices) ? "nccl" : backend;
}

/// Why a backend cannot be measured here; empty: it can.
std::string why_skipped(const CollectiveOptions& options, const std::string& backend) {
  std::string why;
  if (!kind_available(options.device, why)) return concat("--device ", duet::name(options.device), ": ", why);
  return backend == "nccl" ? ddp::why_no_nccl() : "";
}

/// This process's part: one rank of the group.
void run_rank(const CollectiveOptions& options, const std::string& name) {
  const ddp::RankInfo place = ddp::rank_info();
  const Device device = device_of_rank(options.device, place.local_rank, place.local_world_size);
  const auto group = ddp::init_process_group({.backend = chosen(options, name), .device = device});
  if (options.device == DeviceKind::cuda)
    backend(options.device).bind_thread(device);
  else if (place.local_world_size <= usable_cores())
    take_cores(place.local_rank, 1);
  for (const std::string& algorithm : options.algorithms)
    measure_collective(options, algorithm, *group, device,
                       [](const CollectiveRow& row) { std::puts(row_json(row).c_str()); });
}

/// All ranks, as threads of this process.
void run_threads(const CollectiveOptions& options, const std::string& name,
                 const std::function<void(const CollectiveRow&)>& take) {
  std::vector<Device> devices;
  for (int rank = 0; rank < options.devices; ++rank)
    devices.push_back(device_of_rank(options.device, rank, options.devices));
  const auto run = [&](ddp::ProcessGroup& group) {
    const Device device = devices[static_cast<std::size_t>(group.rank())];
    backend(options.device).bind_thread(options.device == DeviceKind::cpu ? Device{.index = group.rank()} : device);
    for (const std::string& algorithm : options.algorithms) measure_collective(options, algorithm, group, device, take);
  };
  ddp::run_rank_threads(options.devices, run, {.backend = chosen(options, name), .devices = devices});
}

void print_head(const CollectiveOptions& options, const CollectiveRow& row) {
  const std::string place = options.device == DeviceKind::cpu ? "" : " on " + kind_title(options.device);
  std::printf("# %s among %d ranks over %s%s, algorithm %s: %d calls timed after %d\n", options.collective.c_str(),
              row.ranks, row.backend.c_str(), place.c_str(), row.algorithm.c_str(), options.iterations,
              options.warm_up);
  std::printf("%12s %12s %6s %6s %12s %8s %8s %7s\n", "size", "count", "type", "redop", "time", "algbw", "busbw",
              "#wrong");
  std::printf("%12s %12s %6s %6s %12s %8s %8s %7s\n", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "");
}

void print_row(const CollectiveOptions& options, const CollectiveRow& row) {
  const bool reduces = options.collective == "all_reduce" || options.collective == "reduce_scatter";
  std::printf("%12lld %12lld %6s %6s %12.2f %8.2f %8.2f %7s\n", static_cast<long long>(row.bytes),
              static_cast<long long>(row.count), name(options.dtype), reduces ? "sum" : "none", row.time_us,
              row.algorithm_gb_s, row.bus_gb_s, row.wrong < 0 ? "N/A" : std::to_string(row.wrong).c_str());
  std::fflush(stdout);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  require<DataError>(file.flush().good(), "cannot write ", path);
}

}  // namespace

int bench(const CollectiveOptions& options, const std::string& command_line) {
  require<UsageError>(!ddp::is_launched_rank() || std::getenv(kOwnRank) != nullptr, "duet bench ", options.collective,
                      " starts its own ranks: run it without a launcher");
  std::vector<CollectiveRow> rows;
  const auto take = [&](const CollectiveRow& row) {
    const bool first = rows.empty() || rows.back().backend != row.backend || rows.back().algorithm != row.algorithm;
    if (first) print_head(options, row);
    print_row(options, row);
    rows.push_back(row);
  };
  ddp::LaunchOptions launch;
  launch.environment = {{kOwnRank, "1"}};
  launch.on_line = [&](int, bool is_stderr, std::string_view line) {
    if (!is_stderr) return take(parse_row(std::string(line)));
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  std::size_t skipped = 0;
  for (const std::string& name : options.backends) {
    const std::string why = why_skipped(options, name);
    if (!why.empty()) {
      ++skipped;
      if (!ddp::is_launched_rank())
        std::printf("# %s over %s: skipped: %s\n", options.collective.c_str(), name.c_str(), why.c_str());
    } else if (options.workers == "thread") {
      run_threads(options, name, take);
    } else {
      const int status = ddp::spawn([&](int) { run_rank(options, name); }, options.devices, launch);
      if (status != 0) return status;
    }
  }
  if (ddp::is_launched_rank()) return 0;
  if (skipped == options.backends.size()) return 1;
  std::int64_t wrong = 0;
  for (const CollectiveRow& row : rows) wrong += std::max<std::int64_t>(0, row.wrong);
  if (options.check == 1) std::printf("# wrong elements: %lld\n", static_cast<long long>(wrong));
  if (!options.json.empty()) write_file(options.json, rows_json(options, rows));
  if (!options.html.empty()) write_file(options.html, rows_html(options, rows, command_line));
  return wrong == 0 ? 0 : 1;
}

}  // namespace duet::cli
