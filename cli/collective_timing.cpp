// One rank's part of duet bench COLLECTIVE.
#include <algorithm>
#include <span>

#include "cli/collective_rows.h"
#include "ddp/recursive_doubling.h"
#include "ddp/ring.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

using Span = std::span<float>;

/// Whole numbers whose sums are exact, so that any difference is an error.
float value(int rank, std::size_t i) { return static_cast<float>((static_cast<std::size_t>(rank) * 7 + i) % 13 + 1); }

class Bench {
 public:
  Bench(const CollectiveOptions& options, const std::string& algorithm, ddp::ProcessGroup& group)
      : options_(options), algorithm_(algorithm), group_(group), ranks_(static_cast<std::size_t>(group.size())) {
    const auto room = static_cast<std::size_t>(options.max_bytes) / sizeof(float);
    out_.resize(room);
    // Where gradients lie too.
    arena_ = options.collective == "all_reduce" ? group.shared_storage(room * sizeof(float)) : nullptr;
    if (arena_ == nullptr) own_.resize(room);
    in_ = arena_ ? Span(static_cast<float*>(arena_->data()), room) : Span(own_);
  }

  CollectiveRow measure(std::size_t count) {
    fill(count);
    for (int i = 0; i < options_.warm_up; ++i) call(count);
    group_.barrier().wait();
    const auto begin = ddp::Clock::now();
    for (int i = 0; i < options_.iterations; ++i) call(count);
    double time_us = std::chrono::duration<double, std::micro>(ddp::Clock::now() - begin).count() / options_.iterations;
    group_.all_reduce(std::span(&time_us, 1), ddp::ReduceOp::avg).wait();
    CollectiveRow row{.backend = group_.backend(), .algorithm = algorithm_, .ranks = group_.size()};
    row.count = static_cast<std::int64_t>(count);
    row.bytes = static_cast<std::int64_t>(count * sizeof(float));
    row.time_us = time_us;
    row.algorithm_gb_s = time_us > 0 ? static_cast<double>(row.bytes) / time_us / 1e3 : 0;
    row.bus_gb_s = row.algorithm_gb_s * bus_factor(options_.collective, group_.size());
    if (options_.check == 1) row.wrong = wrong_elements(count);
    return row;
  }

  /// What every rank gives or gets, of `count` elements in all.
  std::size_t piece(std::size_t count) const { return count / ranks_; }

 private:
  Span in(std::size_t count) const { return in_.first(count); }
  Span out(std::size_t count) { return Span(out_).first(count); }

  void fill(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) in_[i] = value(group_.rank(), i);
  }

  void call(std::size_t count) {
    const std::string& what = options_.collective;
    if (what == "all_reduce") return all_reduce(count);
    if (what == "broadcast") return group_.broadcast(in(count)).wait();
    if (what == "all_gather") return group_.all_gather(in(piece(count)), out(count)).wait();
    if (what == "reduce_scatter") return group_.reduce_scatter(in(count), out(piece(count))).wait();
    group_.all_to_all(in(count), out(count)).wait();
  }

  void all_reduce(std::size_t count) {
    if (algorithm_ == "naive_ring") return ddp::naive_ring_all_reduce(group_, in(count), out(count));
    if (algorithm_ == "chunked_ring") return ddp::chunked_ring_all_reduce(group_, in(count));
    if (algorithm_ == "recursive_doubling") return ddp::recursive_doubling_all_reduce(group_, in(count));
    group_.all_reduce(in(count)).wait();
  }

  float sum(std::size_t i) const {
    float total = 0;
    for (int rank = 0; rank < group_.size(); ++rank) total += value(rank, i);
    return total;
  }

  /// Element i of a rank's result.
  float expected(std::size_t i, std::size_t count) const {
    const std::size_t one = piece(count), own = static_cast<std::size_t>(group_.rank());
    const std::string& what = options_.collective;
    if (what == "all_reduce") return sum(i);
    if (what == "broadcast") return value(0, i);
    if (what == "all_gather") return value(static_cast<int>(i / one), i % one);
    if (what == "reduce_scatter") return sum(own * one + i);
    return value(static_cast<int>(i / one), own * one + i % one);
  }

  std::int64_t wrong_elements(std::size_t count) {
    fill(count);
    call(count);
    const bool in_place =
        options_.collective == "broadcast" || (options_.collective == "all_reduce" && algorithm_ != "naive_ring");
    const Span result = in_place ? in(count) : options_.collective == "reduce_scatter" ? out(piece(count)) : out(count);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < result.size(); ++i) wrong += result[i] != expected(i, count);
    group_.all_reduce(std::span(&wrong, 1)).wait();
    return wrong;
  }

  const CollectiveOptions& options_;
  std::string algorithm_;
  ddp::ProcessGroup& group_;
  std::size_t ranks_;
  std::shared_ptr<Storage> arena_;
  std::vector<float> own_, out_;
  Span in_;
};

/// Whether all ranks have a piece of their own in it.
bool in_pieces(const std::string& collective) { return collective != "all_reduce" && collective != "broadcast"; }

}  // namespace

double bus_factor(const std::string& collective, int ranks) {
  if (collective == "broadcast") return 1;
  const double share = static_cast<double>(ranks - 1) / ranks;
  return collective == "all_reduce" ? 2 * share : share;
}

void measure_collective(const CollectiveOptions& options, const std::string& algorithm, ddp::ProcessGroup& group,
                        const std::function<void(const CollectiveRow&)>& take) {
  Bench bench(options, algorithm, group);
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    std::size_t count = static_cast<std::size_t>(bytes) / sizeof(float);
    if (in_pieces(options.collective)) count = bench.piece(count) * static_cast<std::size_t>(group.size());
    if (count == 0) continue;  // less than an element for every rank
    const CollectiveRow row = bench.measure(count);
    if (group.rank() == 0) take(row);
  }
}

}  // namespace duet::cli
