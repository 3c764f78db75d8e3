// Divides a data set between workers, as the tutorials' DataPartitioner and torch.utils.data.random_split do.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/data/dataset.h"
#include "lib/random.h"

namespace duet::data {

using IndexLists = std::vector<std::vector<std::int64_t>>;

struct PartitionOptions {
  std::uint64_t seed = 1234;
  bool exact = false;                              // give every item to a part: remainders go round the parts in order
  std::function<void(const std::string&)> warn{};  // called for lost items; unset: one line on the standard error
};

/// Indices 0..n-1, shuffled by CPython's Random(seed).shuffle, in consecutive parts of int(fraction * n) items. As in
/// the tutorial the remainders are lost unless `exact` is set, and a part that begins past the end is empty or short.
/// Throws UsageError for a negative n and for a fraction that is negative or not finite.
IndexLists partition_indices(std::int64_t n, std::span<const double> fractions, const PartitionOptions& options = {});

/// torch.utils.data.random_split: randperm(n) in consecutive parts of these lengths. Throws UsageError unless they are
/// non-negative and sum to n.
IndexLists random_split(std::int64_t n, std::span<const std::int64_t> lengths, Mt19937& generator);

/// 1 / parts, `parts` times: the tutorial's fractions.
std::vector<double> equal_fractions(int parts);

/// Some items of a random-access range, which must outlive it.
template <class Range>
class Partition {
 public:
  Partition(const Range& all, std::vector<std::int64_t> indices) : all_(&all), indices_(std::move(indices)) {}
  std::size_t size() const { return indices_.size(); }
  decltype(auto) operator[](std::size_t i) const {
    require<DataError>(i < size(), "item ", i, " asked of a partition of ", size(), " items");
    return (*all_)[static_cast<std::size_t>(indices_[i])];
  }
  const std::vector<std::int64_t>& indices() const { return indices_; }

 private:
  const Range* all_;
  std::vector<std::int64_t> indices_;
};

/// The tutorial's DataPartitioner over a Dataset (use() gives a Subset) or over any range with size() and operator[]
/// (use() gives a Partition). The data must outlive it and its parts.
template <class Range>
class DataPartitioner {
 public:
  DataPartitioner(const Range& all, const std::vector<double>& fractions, const PartitionOptions& options = {})
      : all_(&all), parts_(partition_indices(static_cast<std::int64_t>(all.size()), fractions, options)) {}

  using Part = std::conditional_t<std::derived_from<Range, Dataset>, Subset, Partition<Range>>;
  /// Throws UsageError when there is no such part.
  Part use(std::size_t part) const {
    require<UsageError>(part < parts_.size(), "part ", part, " asked of ", parts_.size(), " parts");
    return Part(*all_, parts_[part]);
  }
  std::size_t parts() const { return parts_.size(); }

 private:
  const Range* all_;
  IndexLists parts_;
};

}  // namespace duet::data
