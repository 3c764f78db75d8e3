// One rank's part of duet bench COLLECTIVE.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <ratio>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/bench/collective_rows.h"
#include "ddp/tutorial/ring.h"
#include "lib/backend/backend.h"
#include "lib/monotonic.h"

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

}  // namespace duet::cli
