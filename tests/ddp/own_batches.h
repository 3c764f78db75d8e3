// Training on batches and losses that do not come from duet's loader and operators, on ranks that are threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/own_loss.h"

namespace duet_test {

using namespace duet;
using namespace duet::ddp;

using Values = std::vector<float>;
using Loss = std::function<Variable(const Variable& output, const Tensor& labels)>;
using RankRows = std::vector<std::int64_t>;  // by rank

inline Variable library_loss(const Variable& output, const Tensor& labels) { return ops::nll_loss(output, labels); }
inline Variable users_loss(const Variable& output, const Tensor&) { return own_loss(output); }

/// (N, 1, 28, 28) -> (N, 10), without a batch norm.
struct Plain : nn::Sequential {
  explicit Plain(std::uint64_t seed) {
    add<nn::Flatten>();
    add<nn::Linear>(784, 10);
    add<nn::LogSoftmax>();
    initialise(seed);
  }
};

/// RankRows of step `step`, of which rank r has rows[r], the first ranks first.
inline Batch rows_of(const RankRows& rows, int rank, std::int64_t step, bool stamped) {
  const std::int64_t first = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  Batch batch = make_batch(all, step).rows(first, first + rows[static_cast<std::size_t>(rank)]);
  if (!stamped) {
    batch.images.set_stamp({});
    batch.labels.set_stamp({});
  }
  return batch;
}

/// The blocks of a batch that a rank owns.
inline Batch owned_batch(std::int64_t rows, std::int64_t step, int rank, int ranks) {
  const std::int64_t first = share_begin(rank, ranks, rows, kBlocks);
  Batch batch = make_batch(rows, step).rows(first, share_begin(rank + 1, ranks, rows, kBlocks));
  for (Tensor* const tensor : {&batch.images, &batch.labels})
    tensor->set_stamp({.step = step, .first = first, .global = rows, .shards = ranks, .owned = true});
  return batch;
}

inline Values gradients_of(nn::Module& model) {
  const auto all = std::as_const(model.parameters()).gradients().span<float>();
  return {all.begin(), all.end()};
}

/// Of one device that reads all ranks' rows at once, summed over the steps.
template <class Net>
Values alone(const RankRows& rows, const Loss& loss, int steps = 1) {
  Net model(kSeed);
  const RankRows all = {std::accumulate(rows.begin(), rows.end(), std::int64_t{0})};
  for (int step = 0; step < steps; ++step) {
    const Batch batch = rows_of(all, 0, step, false);
    loss(model(batch.images), batch.labels).backward();
  }
  return gradients_of(model);
}

/// Of every rank after `body(net, rank, device)`.
template <class Net>
std::vector<Values> of_ranks(int size, const std::function<void(DistributedDataParallel&, int rank, Device)>& body,
                             const DistributedDataParallelOptions& options = {}) {
  std::vector<Values> gradients(static_cast<std::size_t>(size));
  run_ranks(Over::shm, size, [&](ProcessGroup& group) {
    const Device device{DeviceKind::cpu, group.rank()};
    Net model(kSeed);
    model.to(device);
    DistributedDataParallel net(model, group, options);
    body(net, group.rank(), device);
    gradients[static_cast<std::size_t>(group.rank())] = gradients_of(model);
  });
  return gradients;
}

/// Of every rank after a step on rows[rank] rows.
template <class Net>
std::vector<Values> after_a_step(const RankRows& rows, const Loss& loss, bool stamped) {
  return of_ranks<Net>(static_cast<int>(rows.size()), [&](DistributedDataParallel& net, int rank, Device device) {
    const Batch batch = rows_of(rows, rank, 0, stamped).to(device);
    loss(net(batch.images), batch.labels).backward();
  });
}

inline void check_close(const Values& got, const Values& expected, double tolerance = 1e-5) {
  REQUIRE(got.size() == expected.size());
  double largest = 0, worst = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(double{value}));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(double{got[i]} - double{expected[i]});
    worst = error <= worst ? worst : error;  // a NaN stays
  }
  INFO("largest gradient " << largest << ", largest error " << worst);
  CHECK(largest > 0);
  CHECK(worst <= tolerance * largest);
}

inline void check_all_close(const std::vector<Values>& got, const Values& expected) {
  for (const Values& of_rank : got) {
    CHECK(of_rank == got[0]);
    check_close(of_rank, expected);
  }
}

template <class Net = Plain>
std::string failure_of(int size, const std::function<void(DistributedDataParallel&, int rank, Device)>& body,
                       const DistributedDataParallelOptions& options = {}) {
  const auto failures = try_ranks(Over::shm, size, {}, [&](ProcessGroup& group) {
    const Device device{DeviceKind::cpu, group.rank()};
    Net model(kSeed);
    model.to(device);
    DistributedDataParallel net(model, group, options);
    body(net, group.rank(), device);
  });
  for (const auto& failure : failures) CHECK(text_of(failure) == text_of(failures[0]));
  return text_of(failures[0]);
}

}  // namespace duet_test
