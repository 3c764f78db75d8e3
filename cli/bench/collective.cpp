// duet bench all_reduce, all_gather, broadcast, reduce_scatter, all_to_all: times collectives among ranks of its own.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/collective_rows.h"
#include "cli/options/options.h"
#include "cli/system/files.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/nccl/load.h"
#include "ddp/rank_threads.h"
#include "lib/backend/backend.h"
#include "lib/base/thread_pool.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kOwnRank = "DUET_BENCH_RANK";

/// The backend for init_process_group() and run_rank_threads().
std::string chosen(const CollectiveOptions& options, const std::string& backend) {
  return backend == "auto" && can_use_nccl(options.device, options.devices) ? "nccl" : backend;
}

/// Why a backend cannot be measured here; empty: it can.
std::string why_skipped(const CollectiveOptions& options, const std::string& backend) {
  const std::string why = why_unavailable(options.device);
  if (!why.empty()) return concat("--device ", duet::name(options.device), ": ", why);
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

/// Prints rows in the columns of nccl-tests, with the shortest, the longest and the mean call.
class Table {
 public:
  Table(const CollectiveOptions& options, std::FILE* out) : options_(options), out_(out) {}

  void add(const CollectiveRow& row) {
    if (rows_.empty() || rows_.back().backend != row.backend || rows_.back().algorithm != row.algorithm) {
      end_group();
      const std::string place = options_.device == DeviceKind::cpu ? "" : " on " + kind_title(options_.device);
      std::fprintf(out_, "# %s among %d ranks over %s%s, algorithm %s: %d calls timed after %d\n",
                   options_.collective.c_str(), row.ranks, row.backend.c_str(), place.c_str(), row.algorithm.c_str(),
                   options_.iterations, options_.warm_up);
      print_line("size", "count", "type", "redop", "time", "min", "max", "algbw", "busbw", "#wrong");
      print_line("(B)", "(elements)", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
    }
    const bool reduces = options_.collective == "all_reduce" || options_.collective == "reduce_scatter";
    const auto us = [](const std::optional<double>& value) { return value ? fixed(*value, 2) : "N/A"; };
    print_line(std::to_string(row.bytes), std::to_string(row.count), name(options_.dtype), reduces ? "sum" : "none",
               fixed(row.time_us, 2), us(row.min_us), us(row.max_us), fixed(row.algorithm_gb_s, 2),
               fixed(row.bus_gb_s, 2), row.wrong ? std::to_string(*row.wrong) : "N/A");
    std::fflush(out_);
    rows_.push_back(row);
    group_gb_s_ += row.bus_gb_s;
    ++group_;
  }
  /// After the last row of a backend and algorithm.
  void end_group() {
    if (group_ > 0) std::fprintf(out_, "# Avg bus bandwidth    : %g\n", group_gb_s_ / group_);
    group_gb_s_ = group_ = 0;
  }
  const std::vector<CollectiveRow>& rows() const { return rows_; }

 private:
  template <class... Texts>
  void print_line(const Texts&... texts) const {
    std::fprintf(out_, "%12s %12s %6s %6s %12s %10s %10s %8s %8s %7s\n", std::string(texts).c_str()...);
  }

  const CollectiveOptions& options_;
  std::FILE* out_;
  std::vector<CollectiveRow> rows_;
  double group_gb_s_ = 0, group_ = 0;  // sum and number of the rows of which no average was printed
};

}  // namespace

int bench(const CollectiveOptions& options, const std::string& command_line) {
  const bool launched = ddp::is_launched_rank();
  require<UsageError>(!launched || std::getenv(kOwnRank) != nullptr, "duet bench ", options.collective,
                      " starts its own ranks: run it without a launcher");
  if (!launched) {
    require_json_output(options.json);
    require_output("--html", options.html);
  }
  std::FILE* const out = text_stream(options.json);
  Table table(options, out);
  const auto take = [&](const CollectiveRow& row) { table.add(row); };
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
      if (!launched)
        std::fprintf(out, "# %s over %s: skipped: %s\n", options.collective.c_str(), name.c_str(), why.c_str());
    } else if (options.workers == "thread") {
      run_threads(options, name, take);
    } else {
      const int status = ddp::spawn([&](int) { run_rank(options, name); }, options.devices, launch);
      if (status != 0) return status;
    }
  }
  if (launched) return 0;
  if (skipped == options.backends.size()) return 1;
  table.end_group();
  std::int64_t wrong = 0;
  for (const CollectiveRow& row : table.rows()) wrong += row.wrong.value_or(0);
  if (options.check == 1) std::fprintf(out, "# wrong elements: %lld\n", static_cast<long long>(wrong));
  write_json(options.json, rows_json(options, table.rows()));
  if (!options.html.empty()) write_output(options.html, rows_html(options, table.rows(), command_line));
  return wrong == 0 ? 0 : 1;
}

}  // namespace duet::cli
