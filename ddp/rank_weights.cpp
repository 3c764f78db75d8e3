#include "ddp/rank_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ddp/store/store.h"
#include "lib/autograd/node.h"
#include "lib/error.h"
#include "lib/pool.h"

namespace duet::ddp {

namespace {

/// What ranks exchange, as whole numbers.
struct Sent {
  std::int64_t trains, normalisers;
  std::int64_t batches;           // how many
  std::int64_t rows;              // of the first batch
  std::int64_t alike;             // all batches have as many
  std::int64_t digest;            // of the sizes of all batches, in order
  std::int64_t whole;             // every batch has all rows of its stamp
  std::int64_t all_rows;          // of all batches
  std::int64_t all_global;        // by their stamps
  std::int64_t global_digest;     // of steps and sizes in the stamps, in order
  std::int64_t first, last_rows;  // of the last batch
};

std::int64_t mixed(std::int64_t digest, std::int64_t number) {
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(digest) ^ static_cast<std::uint64_t>(number + 1)) *
                                   0x9e3779b97f4a7c15u);
}

/// The training ranks of which `holds` is true.
template <class Condition>
std::vector<int> ranks_where(const std::vector<Sent>& all, Condition holds) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].trains && holds(all[rank])) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

/// The training ranks whose losses were divided by one of `normalisers`.
std::vector<int> ranks_by(const std::vector<Sent>& all, unsigned normalisers) {
  return ranks_where(all, [&](const Sent& rank) { return (rank.normalisers & normalisers) != 0; });
}

/// Whether the ranks' batches are parts of the same stamped batches, which together have all of their rows. Of the last
/// batch the rows are compared one by one, so that equal parts are not taken for complementary ones.
bool parts_of_one(const std::vector<Sent>& all, const std::vector<int>& training) {
  const auto of = [&](int rank) -> const Sent& { return all[static_cast<std::size_t>(rank)]; };
  const Sent& first = of(training[0]);
  std::int64_t rows = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const int rank : training) {
    if (of(rank).global_digest != first.global_digest || of(rank).batches != first.batches) return false;
    rows += of(rank).all_rows;
    if (of(rank).last_rows > 0) ranges.emplace_back(of(rank).first, of(rank).last_rows);
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (const auto& [begin, count] : ranges)
    if (std::exchange(end, begin + count) != begin) return false;
  return rows == first.all_global;
}

/// The batches, with consecutive parts of the same stamped batch as one.
std::vector<RankWeights::Batch> joined_parts(const std::vector<RankWeights::Batch>& batches) {
  std::vector<RankWeights::Batch> joined;
  for (const RankWeights::Batch& batch : batches) {
    if (!joined.empty() && batch.stamp.stamped() && batch.stamp.first > 0) {
      RankWeights::Batch& last = joined.back();
      if (last.stamp.global == batch.stamp.global && last.stamp.step == batch.stamp.step &&
          last.stamp.first + last.rows == batch.stamp.first) {
        last.rows += batch.rows;
        continue;
      }
    }
    joined.push_back(batch);
  }
  return joined;
}

Sent summary_of(const std::vector<RankWeights::Batch>& all, const RankWeights::Step& step) {
  const auto batches = (step.normalisers & kPartOfBatch) != 0 ? joined_parts(all) : all;
  Sent sent{.trains = step.trains,
            .normalisers = step.normalisers,
            .batches = static_cast<std::int64_t>(batches.size()),
            .rows = batches.empty() ? 0 : batches[0].rows,
            .alike = 1,
            .digest = 0,
            .whole = 1,
            .all_rows = 0,
            .all_global = 0,
            .global_digest = 0,
            .first = batches.empty() ? 0 : batches.back().stamp.first,
            .last_rows = batches.empty() ? 0 : batches.back().rows};
  for (const RankWeights::Batch& batch : batches) {
    sent.alike &= batch.rows == sent.rows;
    sent.digest = mixed(sent.digest, batch.rows);
    sent.whole &= batch.rows == batch.stamp.global;
    sent.all_rows += batch.rows;
    sent.all_global += batch.stamp.global;
    sent.global_digest = mixed(mixed(sent.global_digest, batch.stamp.step), batch.stamp.global);
  }
  return sent;
}

struct OutputNode final : Node {
  const char* name() const override { return "DistributedDataParallel"; }
  void reached() override { weights->reached(batch); }
  void backward(const Gradients& gradients) override { gradients.inputs[0] = gradients.outputs[0]; }
  std::shared_ptr<RankWeights> weights;
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
}

void RankWeights::reached(const Batch& batch) {
  const auto same = [&](const Batch& other) { return other.forward == batch.forward; };
  if (std::none_of(batches_.begin() + static_cast<std::ptrdiff_t>(of_this_run_), batches_.end(), same))
    batches_.push_back(batch);
}

bool RankWeights::whole_batches() const { return summary_of(batches_, {.normalisers = kPartOfBatch}).whole != 0; }

RankWeights::Weight RankWeights::exchange(ProcessGroup& group, const Step& step) const {
  Sent own = summary_of(batches_, step);
  std::vector<Sent> all(static_cast<std::size_t>(group.size()));
  const auto numbers = [](Sent& first, std::size_t count) {
    return Buffer(&first, static_cast<std::int64_t>(count * sizeof(Sent) / sizeof(std::int64_t)), DType::i64);
  };
  group.all_gather(numbers(own, 1), numbers(all[0], all.size())).wait();

  const std::vector<int> training = ranks_where(all, [](const Sent&) { return true; });
  const std::vector<int> global = ranks_by(all, kGlobalRows);
  const auto require_all_global = [](bool holds, const std::vector<int>& ranks) {
    require<UsageError>(holds, "the losses of some ranks were divided by the rows of the global batch, on ",
                        rank_names(ranks), ", those of others by their own rows: their gradients cannot be combined");
  };
  require_all_global(global.empty() || global.size() == training.size(), global);
  if (!global.empty()) return {};
  const std::vector<int> without = ranks_where(all, [](const Sent& rank) { return rank.batches == 0; });
  require<UsageError>(without.empty(), "backward reached no output of DistributedDataParallel, on ",
                      rank_names(without), ": call the wrapper, not the module in it");
  const std::vector<int> by_part = ranks_by(all, kPartOfBatch);
  if (!by_part.empty() && !ranks_where(all, [](const Sent& rank) { return rank.whole == 0; }).empty()) {
    require_all_global(ranks_by(all, kOwnRows).empty(), by_part);
    require<UsageError>(parts_of_one(all, training),
                        "the ranks' losses were divided by the rows of stamped batches of which they have parts, that "
                        "are neither each rank's own batch, whole, nor together one batch: their gradients cannot be "
                        "combined");
    return {};
  }

  const Sent& first = all[static_cast<std::size_t>(training[0])];
  if (ranks_where(all, [&](const Sent& rank) { return rank.digest != first.digest; }).empty())
    return {step.trains ? 1.0 / static_cast<double>(training.size()) : 1.0, false, true};
  const std::vector<int> varying = ranks_where(all, [](const Sent& rank) { return rank.alike == 0; });
  require<UsageError>(varying.empty(), "gradients of batches of several sizes have accumulated on ",
                      rank_names(varying),
                      ", and the sizes differ between ranks: no weight per rank gives the mean over all rows; "
                      "accumulate batches of one size, or batches that the loader has stamped");
  std::int64_t total = 0;
  for (const int rank : training) total += all[static_cast<std::size_t>(rank)].rows;
  return {total == 0 || !step.trains ? 1.0 : static_cast<double>(own.rows) / static_cast<double>(total), false, false};
}

Variable output_of_batch(const Variable& output, const std::shared_ptr<RankWeights>& weights,
                         const RankWeights::Batch& batch) {
  if (!output.requires_grad()) return output;
  auto node = make_pooled<OutputNode>();
  node->add_edge(output.edge());
  node->weights = weights;
  node->batch = batch;
  return {output.value(), std::move(node)};
}

nn::Value output_of_batch(const nn::Value& output, const std::shared_ptr<RankWeights>& weights,
                          const RankWeights::Batch& batch) {
  return nn::map_tensors(output, [&](const Variable& y) { return output_of_batch(y, weights, batch); });
}

}  // namespace duet::ddp
