// Times collectives among ranks, and reports them as nccl-tests do, and as JSON.
#include "cli/bench.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/rank_threads.h"
#include "ddp/transport/modules.h"
#include "ddp/tutorial.h"
#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "train/measure/json_fields.h"
#include "train/options/options.h"
#include "train/system/display.h"
#include "train/system/files.h"
#include "train/system/machine.h"

namespace duet::cli {
namespace {

/// Element i of a rank's values: whole numbers whose sums over up to 256 ranks are exact in every type and order, so
/// that any difference is an error.
std::int64_t value(int rank, std::int64_t i, int ranks) { return (rank * 7 + i) % std::clamp(256 / ranks, 1, 13) + 1; }

template <class T>
class CollectiveBench {
 public:
  CollectiveBench(const CollectiveOptions& options, const std::string& algorithm, ddp::ProcessGroup& group,
                  Device device)
      : options_(options), algorithm_(algorithm), group_(group), device_(device) {
    const Shape room = {options.max_bytes / static_cast<std::int64_t>(sizeof(T))};
    out_ = zeros(room, dtype_of<T>(), device);
    // Where gradients are stored, too.
    const bool shares = options.collective == "all_reduce" && device.kind == DeviceKind::cpu;
    const auto arena = shares ? group.shared_storage(out_.bytes()) : nullptr;
    in_ = arena ? Tensor(arena, 0, room, dtype_of<T>()) : zeros(room, dtype_of<T>(), device);
  }

  CollectiveRow measure(std::int64_t count) {
    fill(count);
    for (int i = 0; i < options_.warm_up; ++i) call(count);
    backend(device_.kind).synchronize(device_);
    std::vector<double> calls_us(static_cast<std::size_t>(options_.iterations));
    group_.barrier().wait();
    const auto begin = Clock::now();
    auto last = begin;
    for (double& us : calls_us) {
      call(count);
      if (device_.kind != DeviceKind::cpu) continue;
      const auto now = Clock::now();
      us = microseconds(now - last);
      last = now;
    }
    backend(device_.kind).synchronize(device_);  // on a GPU, wait() orders the stream only
    double time_us = microseconds_since(begin) / options_.iterations;
    group_.all_reduce(std::span(&time_us, 1), ddp::ReduceOp::avg).wait();
    CollectiveRow row{.backend = group_.backend(), .algorithm = algorithm_, .ranks = group_.size()};
    row.count = count;
    row.bytes = count * static_cast<std::int64_t>(sizeof(T));
    row.time_us = time_us;
    if (device_.kind == DeviceKind::cpu) {
      group_.all_reduce(std::span(calls_us), ddp::ReduceOp::avg).wait();
      row.min_us = *std::min_element(calls_us.begin(), calls_us.end());
      row.max_us = *std::max_element(calls_us.begin(), calls_us.end());
    }
    row.algorithm_gb_s = time_us > 0 ? static_cast<double>(row.bytes) / time_us / 1e3 : 0;
    row.bus_gb_s = row.algorithm_gb_s * bus_factor(options_.collective, group_.size());
    if (options_.check == 1) row.wrong = wrong_elements(count);
    return row;
  }

  /// What every rank gives or gets, of `count` elements in all.
  std::int64_t piece(std::int64_t count) const { return count / group_.size(); }

 private:
  Tensor in(std::int64_t count) const { return in_.slice(0, {count}); }
  Tensor out(std::int64_t count) const { return out_.slice(0, {count}); }

  static std::span<float> floats(const Tensor& tensor) { return tensor.span<float>(); }

  static T as_element(std::int64_t whole) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(whole);
    return static_cast<T>(static_cast<float>(whole));
  }

  void fill(std::int64_t count) {
    const Tensor to = in(count), host = to.to(Device{});
    T* const values = host.data<T>();
    for (std::int64_t i = 0; i < count; ++i) values[i] = as_element(value(group_.rank(), i, group_.size()));
    if (!host.same_memory(to)) copy(host, to);
  }

  void call(std::int64_t count) {
    const std::string& what = options_.collective;
    if (what == "all_reduce") return all_reduce(count);
    if (what == "broadcast") return group_.broadcast(in(count)).wait();
    if (what == "all_gather") return group_.all_gather(in(piece(count)), out(count)).wait();
    if (what == "reduce_scatter") return group_.reduce_scatter(in(count), out(piece(count))).wait();
    group_.all_to_all(in(count), out(count)).wait();
  }

  void all_reduce(std::int64_t count) {
    if (algorithm_ == "naive_ring") return ddp::naive_ring_all_reduce(group_, floats(in(count)), floats(out(count)));
    if (algorithm_ == "chunked_ring") return ddp::chunked_ring_all_reduce(group_, floats(in(count)));
    if (algorithm_ == "recursive_doubling") return ddp::recursive_doubling_all_reduce(group_, floats(in(count)));
    group_.all_reduce(in(count)).wait();
  }

  std::int64_t sum(std::int64_t i) const {
    std::int64_t total = 0;
    for (int rank = 0; rank < group_.size(); ++rank) total += value(rank, i, group_.size());
    return total;
  }

  /// Element i of a rank's result.
  std::int64_t expected(std::int64_t i, std::int64_t count) const {
    const std::int64_t one = piece(count), own = group_.rank();
    const std::string& what = options_.collective;
    const auto given = [&](std::int64_t rank, std::int64_t at) {
      return value(static_cast<int>(rank), at, group_.size());
    };
    if (what == "all_reduce") return sum(i);
    if (what == "broadcast") return given(0, i);
    if (what == "all_gather") return given(i / one, i % one);
    if (what == "reduce_scatter") return sum(own * one + i);
    return given(i / one, own * one + i % one);
  }

  std::int64_t wrong_elements(std::int64_t count) {
    fill(count);
    call(count);
    const bool in_place =
        options_.collective == "broadcast" || (options_.collective == "all_reduce" && algorithm_ != "naive_ring");
    const Tensor all = in_place ? in(count) : options_.collective == "reduce_scatter" ? out(piece(count)) : out(count);
    const Tensor host = all.to(Device{});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < host.count(); ++i) wrong += host.data<T>()[i] != as_element(expected(i, count));
    group_.all_reduce(std::span(&wrong, 1)).wait();
    return wrong;
  }

  const CollectiveOptions& options_;
  std::string algorithm_;
  ddp::ProcessGroup& group_;
  Device device_;
  Tensor in_, out_;
};

/// Whether all ranks have a piece of their own in it.
bool in_pieces(const std::string& collective) { return collective != "all_reduce" && collective != "broadcast"; }

template <class T>
void measure(const CollectiveOptions& options, const std::string& algorithm, ddp::ProcessGroup& group, Device device,
             const std::function<void(const CollectiveRow&)>& take) {
  CollectiveBench<T> bench(options, algorithm, group, device);
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(T));
    if (in_pieces(options.collective)) count = bench.piece(count) * group.size();
    if (count == 0) continue;  // less than an element for every rank
    const CollectiveRow row = bench.measure(count);
    if (group.rank() == 0) take(row);
  }
}

constexpr const char* kOwnRank = "DUET_BENCH_RANK";

/// Ranks are started here, unless they exchange over MPI, which has a launcher of its own.
void require_launcher(const CollectiveOptions& options, bool launched, bool own_rank) {
  const bool mpi = std::find(options.backends.begin(), options.backends.end(), "mpi") != options.backends.end();
  require<UsageError>(!launched || own_rank || mpi, "duet bench ", options.collective,
                      " starts its own ranks: run it without a launcher");
  require<UsageError>(launched || !mpi, kNeedsMpirun);
  const int ranks = ddp::rank_info().world_size;
  require<UsageError>(!launched || ranks == options.devices, "--devices is ", options.devices,
                      ", but the launcher started ", ranks, " ranks");
}

/// Why a backend cannot be measured here; empty: it can.
std::string why_skipped(const CollectiveOptions& options, const std::string& backend) {
  const std::string why = why_unavailable(options.device);
  if (!why.empty()) return concat("--device ", duet::name(options.device), ": ", why);
  return backend == "nccl" ? ddp::why_no_nccl() : "";
}

/// This process's part: one rank of the group.
void run_rank(const CollectiveOptions& options, const std::string& name,
              const std::function<void(const CollectiveRow&)>& take) {
  const ddp::RankInfo place = ddp::rank_info();
  const Device device = device_of_rank(options.device, place.local_rank, place.local_world_size);
  const auto group =
      ddp::init_process_group({.backend = backend_for(options.device, options.devices, name), .device = device});
  if (options.device == DeviceKind::cuda)
    backend(options.device).bind_thread(device);
  else if (place.local_world_size <= usable_cores())
    take_cores(place.local_rank, 1);
  for (const std::string& algorithm : options.algorithms) measure_collective(options, algorithm, *group, device, take);
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
  ddp::run_rank_threads(options.devices, run,
                        {.backend = backend_for(options.device, options.devices, name), .devices = devices});
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

double bus_factor(const std::string& collective, int ranks) {
  if (collective == "broadcast") return 1;
  const double share = static_cast<double>(ranks - 1) / ranks;
  return collective == "all_reduce" ? 2 * share : share;
}

void measure_collective(const CollectiveOptions& options, const std::string& algorithm, ddp::ProcessGroup& group,
                        Device device, const std::function<void(const CollectiveRow&)>& take) {
  switch (options.dtype) {
    case DType::f32: return measure<float>(options, algorithm, group, device, take);
    case DType::f64: return measure<double>(options, algorithm, group, device, take);
    case DType::i32: return measure<std::int32_t>(options, algorithm, group, device, take);
    case DType::i64: return measure<std::int64_t>(options, algorithm, group, device, take);
    case DType::u8: return measure<std::uint8_t>(options, algorithm, group, device, take);
    case DType::f16: return measure<Float16>(options, algorithm, group, device, take);
    case DType::bf16: return measure<BFloat16>(options, algorithm, group, device, take);
  }
}

void fields(auto& io, CollectiveRow& row) {
  io("backend", row.backend);
  io("algorithm", row.algorithm);
  io("ranks", row.ranks);
  io("size_bytes", row.bytes);
  io("count", row.count);
  io("time_us", row.time_us);
  io("min_us", row.min_us);
  io("max_us", row.max_us);
  io("algbw_gb_s", row.algorithm_gb_s);
  io("busbw_gb_s", row.bus_gb_s);
  io("wrong", row.wrong);
}

std::string row_json(const CollectiveRow& row) { return line_of(JsonWriter::json_of(row)); }

CollectiveRow parse_row(const std::string& text) {
  return with_prefix([&] { return concat("not a row of duet bench: '", text, "': "); },
                     [&] { return read_json<CollectiveRow>(text, "a row"); });
}

std::string rows_json(const CollectiveOptions& options, const std::vector<CollectiveRow>& rows) {
  const Machine machine = this_machine();
  const Json out = {{"duet", DUET_VERSION},
                    {"collective", options.collective},
                    {"type", name(options.dtype)},
                    {"device", kind_title(options.device)},
                    {"iterations", options.iterations},
                    {"warm_up", options.warm_up},
                    {"cpu", machine.cpu},
                    {"cores", machine.cores},
                    {"rows", JsonWriter::json_of(rows)}};
  return text_of(out);
}

int run(const CollectiveOptions& options, const std::string&) {
  const bool launched = ddp::is_launched_rank(), own_rank = std::getenv(kOwnRank) != nullptr;
  require_launcher(options, launched, own_rank);
  const bool reports = !own_rank && ddp::rank_info().rank == 0;
  if (reports) require_json_output(options.json);
  std::FILE* const out = text_stream(options.json);
  Table table(options, out);
  const std::function<void(const CollectiveRow&)> take = [&](const CollectiveRow& row) {
    own_rank ? void(std::puts(row_json(row).c_str())) : table.add(row);
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
      if (reports)
        std::fprintf(out, "# %s over %s: skipped: %s\n", options.collective.c_str(), name.c_str(), why.c_str());
    } else if (options.workers == "thread") {
      run_threads(options, name, take);
    } else {
      const int status = ddp::spawn([&](int) { run_rank(options, name, take); }, options.devices, launch);
      if (status != 0) return status;
    }
  }
  if (!reports) return 0;
  if (skipped == options.backends.size()) return 1;
  table.end_group();
  std::int64_t wrong = 0;
  for (const CollectiveRow& row : table.rows()) wrong += row.wrong.value_or(0);
  if (options.check == 1) std::fprintf(out, "# wrong elements: %lld\n", static_cast<long long>(wrong));
  write_json(options.json, rows_json(options, table.rows()));
  return wrong == 0 ? 0 : 1;
}

}  // namespace duet::cli
