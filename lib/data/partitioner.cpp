#include "lib/data/partitioner.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>

namespace duet::data {
namespace {

/// int(fraction * n), as Python computes it: in double, truncated.
std::vector<std::int64_t> truncated_lengths(std::int64_t n, std::span<const double> fractions) {
  std::vector<std::int64_t> lengths;
  for (const double fraction : fractions) {
    require<UsageError>(std::isfinite(fraction) && fraction >= 0, "a partition's fraction must be 0 or more, got ",
                        fraction);
    const double items = std::min(fraction * static_cast<double>(n), static_cast<double>(n));
    lengths.push_back(static_cast<std::int64_t>(items));
  }
  return lengths;
}

std::int64_t sum(std::span<const std::int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// How many items the fractions promise that truncation dropped.
std::int64_t missing_items(std::int64_t n, std::span<const double> fractions, std::span<const std::int64_t> lengths) {
  const double promised = std::accumulate(fractions.begin(), fractions.end(), 0.0) * static_cast<double>(n);
  return static_cast<std::int64_t>(std::min(std::round(promised), static_cast<double>(n))) - sum(lengths);
}

/// They go round the parts in order, as in PyTorch's random_split.
void spread_remainder(std::int64_t n, std::span<const double> fractions, std::span<std::int64_t> lengths) {
  std::int64_t missing = missing_items(n, fractions, lengths);
  for (std::size_t i = 0; missing > 0; i = (i + 1) % lengths.size()) {
    if (fractions[i] <= 0) continue;
    ++lengths[i];
    --missing;
  }
}

/// The consecutive parts of `all`; cut short where it ends.
IndexLists cut(const std::vector<std::int64_t>& all, std::span<const std::int64_t> lengths) {
  IndexLists parts;
  auto begin = all.begin();
  for (const std::int64_t length : lengths) {
    const auto end = begin + std::min<std::ptrdiff_t>(length, all.end() - begin);
    parts.emplace_back(begin, end);
    begin = end;
  }
  return parts;
}

void warn_of_lost(std::int64_t n, std::span<const double> fractions, std::span<const std::int64_t> lengths,
                  const PartitionOptions& options) {
  const std::int64_t lost = missing_items(n, fractions, lengths);
  if (lost <= 0) return;
  const std::string text = concat("the partition of ", n, " items into ", lengths.size(), " parts loses ", lost,
                                  lost == 1 ? " item" : " items", " by rounding down; exact partitions keep them");
  if (options.warn) {
    options.warn(text);
  } else {
    std::cerr << "warning: " + text + "\n";
  }
}

}  // namespace

IndexLists partition_indices(std::int64_t n, std::span<const double> fractions, const PartitionOptions& options) {
  require<UsageError>(n >= 0, "cannot partition ", n, " items");
  std::vector<std::int64_t> lengths = truncated_lengths(n, fractions);
  if (options.exact) {
    spread_remainder(n, fractions, lengths);
  } else {
    warn_of_lost(n, fractions, lengths, options);
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  PythonRandom(options.seed).shuffle(std::span(all));
  return cut(all, lengths);
}

IndexLists random_split(std::int64_t n, std::span<const std::int64_t> lengths, Mt19937& generator) {
  for (const std::int64_t length : lengths) {
    require<UsageError>(length >= 0, "a length of a split must be 0 or more, got ", length);
  }
  require<UsageError>(sum(lengths) == n, "Sum of input lengths does not equal the length of the input dataset! Got ",
                      sum(lengths), " and ", n);
  return cut(generator.randperm(n), lengths);
}

std::vector<double> equal_fractions(int parts) {
  require<UsageError>(parts > 0, "cannot divide data between ", parts, " parts");
  return std::vector<double>(static_cast<std::size_t>(parts), 1.0 / parts);
}

}  // namespace duet::data
