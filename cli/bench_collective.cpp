// duet bench all_reduce, all_gather, broadcast, reduce_scatter, all_to_all: times collectives among ranks of its own.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cli/collective_rows.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "ddp/init.h"
#include "ddp/launch.h"
#include "lib/error.h"
#include "lib/thread_pool.h"

namespace duet::cli {
namespace {

constexpr const char* kOwnRank = "DUET_BENCH_RANK";

/// This process's part: one rank of the group.
void run_rank(const CollectiveOptions& options, const std::string& backend) {
  const auto group = ddp::init_process_group({.backend = backend});
  const ddp::RankInfo place = ddp::rank_info();
  if (place.local_world_size <= usable_cores()) take_cores(place.local_rank, 1);
  for (const std::string& algorithm : options.algorithms)
    measure_collective(options, algorithm, *group, [](const CollectiveRow& row) { std::puts(row_json(row).c_str()); });
}

void print_head(const CollectiveOptions& options, const CollectiveRow& row) {
  std::printf("# %s among %d ranks over %s, algorithm %s: %d calls timed after %d\n", options.collective.c_str(),
              row.ranks, row.backend.c_str(), row.algorithm.c_str(), options.iterations, options.warm_up);
  std::printf("%12s %12s %6s %6s %12s %8s %8s %7s\n", "size", "count", "type", "redop", "time", "algbw", "busbw",
              "#wrong");
  std::printf("%12s %12s %6s %6s %12s %8s %8s %7s\n", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "");
}

void print_row(const CollectiveOptions& options, const CollectiveRow& row) {
  const bool reduces = options.collective == "all_reduce" || options.collective == "reduce_scatter";
  std::printf("%12lld %12lld %6s %6s %12.2f %8.2f %8.2f %7s\n", static_cast<long long>(row.bytes),
              static_cast<long long>(row.count), "f32", reduces ? "sum" : "none", row.time_us, row.algorithm_gb_s,
              row.bus_gb_s, row.wrong < 0 ? "N/A" : std::to_string(row.wrong).c_str());
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
  ddp::LaunchOptions launch;
  launch.environment = {{kOwnRank, "1"}};
  launch.on_line = [&](int, bool is_stderr, std::string_view line) {
    if (is_stderr) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
      return;
    }
    const CollectiveRow row = parse_row(std::string(line));
    const bool first = rows.empty() || rows.back().backend != row.backend || rows.back().algorithm != row.algorithm;
    if (first) print_head(options, row);
    print_row(options, row);
    rows.push_back(row);
  };
  for (const std::string& backend : options.backends) {
    const int status = ddp::spawn([&](int) { run_rank(options, backend); }, options.devices, launch);
    if (status != 0) return status;
  }
  if (ddp::is_launched_rank()) return 0;
  std::int64_t wrong = 0;
  for (const CollectiveRow& row : rows) wrong += std::max<std::int64_t>(0, row.wrong);
  if (options.check == 1) std::printf("# wrong elements: %lld\n", static_cast<long long>(wrong));
  if (!options.json.empty()) write_file(options.json, rows_json(options, rows));
  if (!options.html.empty()) write_file(options.html, rows_html(options, rows, command_line));
  return wrong == 0 ? 0 : 1;
}

}  // namespace duet::cli
