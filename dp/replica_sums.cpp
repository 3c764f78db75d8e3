#include "dp/replica_sums.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lib/error.h"

namespace duet::dp {

class ReplicaSums::Entrance final : public BatchSums {
 public:
  Entrance(ReplicaSums& sums, int replica) : sums_(sums), replica_(replica) {}
  void sum(std::span<double> values) override { sums_.sum(replica_, values); }

 private:
  ReplicaSums& sums_;
  int replica_;
};

ReplicaSums::ReplicaSums(int replicas) : parts_(static_cast<std::size_t>(replicas)) {
  for (int replica = 0; replica < replicas; ++replica) entrances_.push_back(std::make_unique<Entrance>(*this, replica));
}

void ReplicaSums::begin(int count) {
  const std::lock_guard lock(mutex_);
  count_ = count;
  arrived_ = 0;
  left_ = false;
  cause_ = nullptr;
  std::fill(parts_.begin(), parts_.end(), std::span<double>());
}

void ReplicaSums::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

void ReplicaSums::fail(std::exception_ptr cause) {
  const std::lock_guard lock(mutex_);
  if (!cause_) cause_ = std::move(cause);
  changed_.notify_all();
}

void ReplicaSums::sum(int replica, std::span<double> values) {
  std::unique_lock lock(mutex_);
  const std::uint64_t round = round_;
  parts_[static_cast<std::size_t>(replica)] = values;
  if (++arrived_ == count_) {
    add_up();
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  } else {
    changed_.wait(lock, [&] { return round_ != round || left_ || cause_; });
  }
  if (round_ == round && cause_) throw OtherReplicaFailed{cause_};
  require<UsageError>(round_ != round, "replica ", replica, " sums over the batch, but another one has ended");
  std::copy(result_.begin(), result_.end(), values.begin());
}

/// Replicas without rows count as zeros, which change no bits.
void ReplicaSums::add_up() {
  const std::size_t width = parts_[0].size();
  for (int replica = 0; replica < count_; ++replica)
    require<UsageError>(parts_[static_cast<std::size_t>(replica)].size() == width, "replica ", replica, " sums up ",
                        parts_[static_cast<std::size_t>(replica)].size(), " numbers, replica 0 ", width);
  scratch_.assign(width * parts_.size(), 0);
  for (std::size_t i = 0; i < parts_.size(); ++i)
    std::copy(parts_[i].begin(), parts_[i].end(), scratch_.begin() + static_cast<std::ptrdiff_t>(i * width));
  const bool tree = (parts_.size() & (parts_.size() - 1)) == 0;
  const auto add = [&](std::size_t to, std::size_t from) {
    for (std::size_t k = 0; k < width; ++k) scratch_[to * width + k] += scratch_[from * width + k];
  };
  for (std::size_t step = 1; tree && step < parts_.size(); step *= 2)
    for (std::size_t i = 0; i < parts_.size(); i += 2 * step) add(i, i + step);
  for (std::size_t i = 1; !tree && i < parts_.size(); ++i) add(0, i);
  result_.assign(scratch_.begin(), scratch_.begin() + static_cast<std::ptrdiff_t>(width));
}

}  // namespace duet::dp
