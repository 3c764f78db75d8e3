#include "ddp/rank_weights.h"

#include <algorithm>
#include <utility>

#include "ddp/store/store.h"
#include "lib/autograd/node.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/pool.h"

namespace duet::ddp {

namespace {

/// Describes the batches whose gradients a rank has accumulated, in numbers of 8 bytes that it gives the others.
struct RowsOfRank {
  std::int64_t trains, normalisers;
  std::int64_t blocks;         // of the last batch if ranks own its blocks, else 0
  std::int64_t batches;        // their number; parts of one count together; -1 if ranks may have different ones
  std::int64_t size;           // rows of each batch; -1 if they differ
  std::uint64_t sizes;         // hash of the batches' numbers of rows, in order; 0: backward reached no batch
  std::uint64_t part;          // hash of this rank's part of a shared order, which no other rank has; 0: unknown
  std::uint64_t whole, cover;  // see BatchMark; of all batches, or of those that a sampler divided if losses were, too
  std::int64_t rows, global;   // this rank's and all ranks' rows of these batches

  bool has_all_rows() const { return cover == whole; }
};

/// Hashes what the stamps of all ranks' parts of a batch have in common.
std::uint64_t hash_of(const Rows& stamp) {
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t batch = mixed(mixed(number(stamp.step), number(stamp.global)), number(stamp.blocks));
  return mixed(batch, stamp.shards == 1 ? 0 : stamp.order);
}

/// The training ranks of which `holds` is true.
template <class Condition>
std::vector<int> ranks_where(const std::vector<RowsOfRank>& all, Condition holds) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].trains && holds(all[rank])) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

/// The training ranks whose losses were divided by one of `normalisers`.
std::vector<int> ranks_by(const std::vector<RowsOfRank>& all, unsigned normalisers) {
  return ranks_where(all, [&](const RowsOfRank& rank) { return (rank.normalisers & normalisers) != 0; });
}

/// Whether the ranks' batches are parts of the same stamped batches, which together have each of their rows once.
bool parts_of_one(const std::vector<RowsOfRank>& all, const std::vector<int>& training) {
  std::uint64_t cover = 0;
  for (const int rank : training) cover += all[static_cast<std::size_t>(rank)].cover;
  return ranks_where(all, [&](const RowsOfRank& rank) { return rank.whole != cover; }).empty();
}

/// Whether two parts of the same stamped batch follow one another.
bool touch(const RankWeights::Batch& one, const RankWeights::Batch& other) {
  Rows stamp = other.stamp;
  stamp.first = one.stamp.first;
  return one.rows > 0 && one.stamp.stamped() && stamp == one.stamp &&
         (other.stamp.first + other.rows == one.stamp.first || one.stamp.first + one.rows == other.stamp.first);
}

/// The batches, with parts of the same stamped batch that follow one another as one.
PooledVector<RankWeights::Batch> joined_parts(const std::vector<RankWeights::Batch>& batches) {
  PooledVector<RankWeights::Batch> joined;
  for (RankWeights::Batch part : batches) {
    const auto next = [&] {
      return std::find_if(joined.begin(), joined.end(), [&](const auto& other) { return touch(part, other); });
    };
    for (auto other = next(); other != joined.end(); other = next()) {
      part.rows += other->rows;
      part.stamp.first = std::min(other->stamp.first, part.stamp.first);
      joined.erase(other);
    }
    joined.push_back(part);
  }
  return joined;
}

/// Where all losses were divided by global rows, within join(). Ranks may have ended whose rows the stamps count: the
/// mean is over the rows of the others.
RankWeights::Weight of_global_rows(const std::vector<RowsOfRank>& all, const std::vector<int>& training, bool trains) {
  const RowsOfRank* known = nullptr;
  std::int64_t rows = 0;
  std::uint64_t cover = 0;
  for (const int rank : training) {
    const RowsOfRank& other = all[static_cast<std::size_t>(rank)];
    rows += other.rows;
    cover += other.cover;
    if (other.whole == 0) continue;
    if (known == nullptr) known = &other;
    require<UsageError>(other.whole == known->whole, "the ranks disagree: rank ", rank, " trains on ", other.global,
                        " rows of another batch than other ranks do");
  }
  if (known == nullptr || rows == 0) return {};
  const std::int64_t expected = known->global;
  require<UsageError>(training.size() < all.size() ? rows <= expected : cover == known->whole,
                      "the ranks disagree: they have ", rows, " rows of batches of ", expected,
                      ", but not each of them once");
  return {trains ? static_cast<double>(expected) / static_cast<double>(rows) : 1.0, true, true};
}

/// Each rank's part of an order is its own.
void require_own_parts(const std::vector<RowsOfRank>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<int> same =
        ranks_where(all, [&](const RowsOfRank& other) { return other.part != 0 && other.part == all[rank].part; });
    require<UsageError>(same.size() < 2, rank_names(same),
                        " read the same part of the data: give each rank's sampler its own rank");
  }
}

/// Sums up stamped batches: their common mark and their rows.
struct Divided {
  BatchMark mark;
  std::int64_t rows = 0, global = 0;  // this rank's, and all ranks'
};

/// `by_sampler`: only of batches that a sampler divided among ranks.
Divided divided(const PooledVector<RankWeights::Batch>& joined, bool by_sampler) {
  Divided sum;
  bool known = true;
  for (const RankWeights::Batch& batch : joined) {
    const Rows& stamp = batch.stamp;
    if (by_sampler && stamp.shards == 1) continue;
    const std::uint64_t hash = hash_of(stamp);
    const auto at = [&](std::int64_t row) { return mixed(hash, static_cast<std::uint64_t>(row)); };
    const std::int64_t end = stamp.first + batch.rows;
    sum.rows += batch.rows;
    sum.global += stamp.global;
    sum.mark = {.whole = sum.mark.whole + at(stamp.global) - at(0),
                .cover = sum.mark.cover + at(end) - at(stamp.first),
                .step = stamp.step,
                .first = stamp.first,
                .end = end,
                .global = stamp.global,
                .order = stamp.order,
                .blocks = stamp.blocks};
    known = known && batch.rows > 0;  // else it is not known how many parts of it are one
  }
  if (by_sampler && !known) sum.mark.whole = 0;
  return sum;
}

RowsOfRank summary_of(const std::vector<RankWeights::Batch>& all, const RankWeights::Step& step) {
  const bool global = (step.normalisers & kGlobalRows) != 0, parts = (step.normalisers & kPartOfBatch) != 0;
  const auto batches = global || parts ? joined_parts(all) : PooledVector<RankWeights::Batch>(all.begin(), all.end());
  const Divided sum = divided(batches, global);
  RowsOfRank own{.trains = step.trains,
                 .normalisers = step.normalisers,
                 .blocks = all.empty() || !all.back().stamp.owned ? 0 : all.back().stamp.blocks,
                 .batches = step.local_steps ? -1 : static_cast<std::int64_t>(batches.size()),
                 .size = batches.empty() ? 0 : batches[0].rows,
                 .sizes = 0,
                 .part = 0,
                 .whole = sum.mark.whole,
                 .cover = sum.mark.cover,
                 .rows = sum.rows,
                 .global = sum.global};
  for (const RankWeights::Batch& batch : batches) {
    if (batch.rows != own.size) own.size = -1;
    own.sizes = mixed(own.sizes, static_cast<std::uint64_t>(batch.rows));
    if (batch.stamp.shards == 1 && batch.rows > 0) own.part = batch.stamp.order;
  }
  return own;
}

/// See RankWeights::exchange(); `all`: what the ranks have exchanged.
RankWeights::Weight weight_of(const RowsOfRank& own, const std::vector<RowsOfRank>& all,
                              const RankWeights::Step& step) {
  const std::vector<int> training = ranks_where(all, [](const RowsOfRank&) { return true; });
  const std::vector<int> global = ranks_by(all, kGlobalRows);
  const auto require_all_global = [](bool holds, const std::vector<int>& ranks) {
    require<UsageError>(holds, "the losses of some ranks were divided by the rows of the global batch, on ",
                        rank_names(ranks), ", those of others by their own rows: their gradients cannot be combined");
  };
  require_all_global(global.empty() || global.size() == training.size(), global);
  if (!global.empty()) return of_global_rows(all, training, step.trains);
  require_own_parts(all);
  const std::vector<int> without = ranks_where(all, [](const RowsOfRank& rank) { return rank.sizes == 0; });
  require<UsageError>(without.empty(), "backward reached no output of DistributedDataParallel, on ",
                      rank_names(without), ": call the wrapper, not the module in it");
  const std::vector<int> by_part = ranks_by(all, kPartOfBatch);
  if (!by_part.empty() && !ranks_where(all, [](const RowsOfRank& rank) { return !rank.has_all_rows(); }).empty()) {
    require_all_global(ranks_by(all, kOwnRows).empty(), by_part);
    require<UsageError>(parts_of_one(all, training),
                        "the ranks' losses were divided by the rows of stamped batches of which they have parts, that "
                        "are neither each rank's own batch, whole, nor together one batch: their gradients cannot be "
                        "combined");
    return {};
  }

  const RowsOfRank& first = all[static_cast<std::size_t>(training[0])];
  if (ranks_where(all, [&](const RowsOfRank& rank) { return rank.sizes != first.sizes; }).empty())
    return {step.trains ? 1.0 / static_cast<double>(training.size()) : 1.0, false, true};
  for (const int rank : training)
    require<UsageError>(all[static_cast<std::size_t>(rank)].batches == first.batches, "the gradients of rank ", rank,
                        " are of ", all[static_cast<std::size_t>(rank)].batches, " accumulated batches, expected ",
                        first.batches, " as on rank ", training[0],
                        "; if ranks are to differ, set DistributedDataParallelOptions::local_steps");
  const std::vector<int> varying = ranks_where(all, [](const RowsOfRank& rank) { return rank.size < 0; });
  require<UsageError>(varying.empty(), "gradients of batches of several sizes have accumulated on ",
                      rank_names(varying),
                      ", and the sizes differ between ranks: no weight per rank gives the mean over all rows; "
                      "accumulate batches of one size, or batches that the loader has stamped");
  std::int64_t total = 0;
  for (const int rank : training) total += all[static_cast<std::size_t>(rank)].size;
  return {total == 0 || !step.trains ? 1.0 : static_cast<double>(own.size) / static_cast<double>(total), false, false};
}

struct OutputNode final : Node {
  const char* name() const override { return "DistributedDataParallel"; }
  void reached() override {
    const std::shared_ptr<RankWeights> wrapper = weights.lock();
    require<UsageError>(wrapper != nullptr,
                        "the DistributedDataParallel of this backward's forward was destroyed: gradients would stay "
                        "those of this rank; keep the wrapper as long as its losses");
    wrapper->reached(batch);
  }
  void consumed() override {
    if (const auto wrapper = weights.lock(); batch.counts && wrapper != nullptr) wrapper->consumed(batch.forward);
  }
  void backward(const Gradients& gradients) override { gradients.inputs[0] = gradients.outputs[0]; }
  std::weak_ptr<RankWeights> weights;  // while the wrapper is
  RankWeights::Batch batch;
};

}  // namespace

void RankWeights::backward_begins(std::uint64_t zero_grads) {
  if (std::exchange(zero_grads_, zero_grads) != zero_grads)
    batches_.erase(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(of_this_run_));
  of_this_run_ = batches_.size();
}

void RankWeights::reduced() {
  batches_.clear();
  of_this_run_ = 0;
  restart();
}

void RankWeights::reached(const Batch& batch) {
  const auto same = [&](const Batch& other) { return other.forward == batch.forward; };
  if (std::none_of(batches_.begin() + static_cast<std::ptrdiff_t>(of_this_run_), batches_.end(), same))
    batches_.push_back(batch);
}

BatchMark RankWeights::mark() const { return divided(joined_parts(batches_), true).mark; }

bool RankWeights::whole_batches() const { return summary_of(batches_, {.normalisers = kPartOfBatch}).has_all_rows(); }

RankWeights::Weight RankWeights::exchange(ProcessGroup& group, const Step& step) const {
  std::vector<RowsOfRank> all(static_cast<std::size_t>(group.size()));
  RowsOfRank own = summary_of(batches_, step);
  const auto numbers = [](RowsOfRank& first, std::size_t count) {
    return Buffer(&first, static_cast<std::int64_t>(count * sizeof(RowsOfRank) / sizeof(std::int64_t)), DType::i64);
  };
  group.all_gather(numbers(own, 1), numbers(all[0], all.size())).wait();
  if (Recovery::instance().is_void()) return {};
  Weight weight = weight_of(own, all, step);
  for (const RowsOfRank& rank : all) weight.blocks = std::max(weight.blocks, static_cast<int>(rank.blocks));
  return weight;
}

void GroupSums::sum(std::span<double> values, int parts) {
  used_ = true;
  if (blocks_ == 0) return group_.all_reduce(values).wait();
  require<UsageError>(parts == 1 || parts == parts_, "a rank sums ", parts, " parts of a batch, expected 1 or ",
                      parts_);
  const std::size_t width = values.size() / static_cast<std::size_t>(parts);
  TreeParts tree{.blocks = blocks_};
  if (parts == 1) zeros_.assign(width * static_cast<std::size_t>(parts_), 0);
  for (int part = 1; part < parts_; ++part) {
    const auto i = static_cast<std::size_t>(part);
    tree.more[i - 1] = (parts == 1 ? zeros_.data() : values.data()) + i * width;
  }
  group_.all_reduce(values.first(width), tree).wait();
}

double GroupSums::sum_gradients(std::span<double> values, int parts) {
  if (!weighted_) return BatchSums::sum_gradients(values, parts);
  const std::size_t width = values.size() / static_cast<std::size_t>(parts);
  double own = 0;
  for (std::size_t end = width; end <= values.size(); end += width) own += values[end - 1];
  for (std::size_t i = 0; i < values.size(); ++i)
    if ((i + 1) % width != 0) values[i] *= own;
  sum(values, parts);
  const auto sums = values.first(width);
  for (double& one : sums.first(width - 1)) one /= sums.back();
  return own;
}

Variable output_of_batch(const Variable& output, const std::shared_ptr<RankWeights>& weights,
                         const RankWeights::Batch& batch) {
  if (!output.requires_grad()) return output;
  auto node = make_pooled<OutputNode>();
  node->add_edge(output.edge());
  const unsigned kinds = output.edge().kinds();
  node->set_kinds((kinds & kDivisors & ~unsigned{kOwnRows}) != 0 ? kinds : (kinds & ~unsigned{kFree}) | kOwnRows);
  node->weights = weights;
  node->batch = batch;
  if (output.shape().rank() == 0) node->consumed();  // a loss itself
  return {output.value(), std::move(node)};
}

nn::Value output_of_batch(const nn::Value& output, const std::shared_ptr<RankWeights>& weights,
                          const RankWeights::Batch& batch) {
  return nn::map_tensors(output, [&](const Variable& y) { return output_of_batch(y, weights, batch); });
}

}  // namespace duet::ddp
