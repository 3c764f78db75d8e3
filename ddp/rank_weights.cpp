#include "ddp/rank_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ddp/rank_names.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// What ranks send one another, as whole numbers.
struct Sent {
  std::int64_t trains, global, rows, alike, digest;
};
constexpr std::size_t kNumbers = sizeof(Sent) / sizeof(std::int64_t);

/// The ranks of which `holds` is true.
template <class Condition>
std::vector<int> ranks_where(const std::vector<Sent>& all, Condition holds) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].trains && holds(all[rank])) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

}  // namespace

void RankWeights::add(std::int64_t rows) {
  if (std::exchange(reduced_, false)) {
    rows_ = rows;
    alike_ = true;
    digest_ = 0;
  }
  alike_ = alike_ && rows == rows_;
  digest_ = (digest_ ^ static_cast<std::uint64_t>(rows + 1)) * 0x9e3779b97f4a7c15u;
}

double RankWeights::exchange(ProcessGroup& group, const Step& step) const {
  Sent own{step.trains, step.global, rows_, alike_, static_cast<std::int64_t>(digest_)};
  std::vector<Sent> all(static_cast<std::size_t>(group.size()));
  const auto numbers = [](Sent& first, std::size_t count) {
    return Buffer(&first, static_cast<std::int64_t>(count * kNumbers), DType::i64);
  };
  group.all_gather(numbers(own, 1), numbers(all[0], all.size())).wait();

  const std::vector<int> training = ranks_where(all, [](const Sent&) { return true; });
  const std::vector<int> global = ranks_where(all, [](const Sent& rank) { return rank.global != 0; });
  require<UsageError>(global.empty() || global.size() == training.size(),
                      "the losses of some ranks were divided by the rows of the global batch, on ", rank_names(global),
                      ", those of others by their own rows: their gradients cannot be combined");
  if (!step.trains || !global.empty()) return 1;
  const Sent& first = all[static_cast<std::size_t>(training[0])];
  if (ranks_where(all, [&](const Sent& rank) { return rank.digest != first.digest; }).empty())
    return 1.0 / static_cast<double>(training.size());
  const std::vector<int> varying = ranks_where(all, [](const Sent& rank) { return rank.alike == 0; });
  require<UsageError>(varying.empty(), "gradients of batches of several sizes have accumulated on ",
                      rank_names(varying),
                      ", and the sizes differ between ranks: no weight per rank gives the mean over all rows; "
                      "accumulate batches of one size, or batches that the loader has stamped");
  std::int64_t total = 0;
  for (const int rank : training) total += all[static_cast<std::size_t>(rank)].rows;
  return total == 0 ? 1.0 : static_cast<double>(rows_) / static_cast<double>(total);
}

}  // namespace duet::ddp
