// Losses whose mean divides by the labels that count, over ranks of which each has others.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "dp/data_parallel.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kCountedRows = 20;

/// Classes below 4 count nothing, nor do the last rows of the batch.
Tensor masked(const Batch& batch) {
  Tensor labels = batch.labels.to(Device{}).clone();
  for (std::int64_t i = 0; i < labels.count(); ++i)
    if (std::int64_t& label = labels.data<std::int64_t>()[i]; label < 4 || batch.labels.stamp().first + i > 11)
      label = 255;
  labels.set_stamp(batch.labels.stamp());
  return labels.to(batch.labels.device());
}

const std::vector<Loss>& counted_losses() {
  static const ops::LabelOptions ignore{.ignore_index = 255},
      weighted{.ignore_index = 255, .weight = from_values<float>({10}, {1, 1, 1, 1, .1f, 3, .7f, 1e-3f, 2, 0})},
      smooth{.label_smoothing = 0.1, .ignore_index = 255}, sum{.ignore_index = 255, .reduction = ops::Reduction::sum};
  static const std::vector<Loss> losses = {
      [](const Variable& y, const Tensor& l) { return ops::nll_loss(y, l, ignore); },
      [](const Variable& y, const Tensor& l) { return ops::cross_entropy(y, l, weighted); },
      [](const Variable& y, const Tensor& l) { return ops::cross_entropy(y, l, smooth); },
      [](const Variable& y, const Tensor& l) { return 0.3 * ops::nll_loss(y, l, sum); },
      [](const Variable& y, const Tensor& l) {
        return ops::nll_loss(y, l, weighted) + 0.1 * ops::batch_mean(y * y) + ops::cross_entropy(y, l, ignore);
      }};
  return losses;
}

}  // namespace

TEST_CASE("losses of labels that count have the gradients of one device, bit for bit, under DDP and DP") {
  for (std::size_t i = 0; i < counted_losses().size(); ++i) {
    const auto step = [&](nn::Module& net, const Batch& batch) {
      const Variable loss = counted_losses()[i](net(batch.images), masked(batch));
      loss.backward();
      return loss.item();
    };
    Plain single(kSeed);
    const float value = step(single, owned_batch(kCountedRows, 0, 0, 1));
    for (const int count : {2, 3, 4, 8}) {
      CAPTURE(i, count);
      const auto ranks = of_ranks<Plain>(count, [&](DistributedDataParallel& net, int rank, Device device) {
        step(net, owned_batch(kCountedRows, 0, rank, count).to(device));
      });
      CHECK(ranks == std::vector<Values>(static_cast<std::size_t>(count), gradients_of(single)));
      Plain model(kSeed);
      dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, count)});
      CHECK(step(net, owned_batch(kCountedRows, 0, 0, 1)) == value);
      CHECK(gradients_of(model) == gradients_of(single));
    }
  }
}

TEST_CASE("a mean over labels that count is refused where the count of the whole batch is unknown") {
  const Loss& loss = counted_losses()[0];
  const auto refused = ContainsSubstring("divides by the labels that count in the whole batch");
  CHECK_THAT(failure_of(2,
                        [&](DistributedDataParallel& net, int rank, Device device) {
                          const Batch batch = rows_of({5, 3}, rank, 0, false).to(device);
                          loss(net(batch.images), masked(batch)).backward();
                        }),
             refused);
  Plain model(kSeed);
  const Batch batch = owned_batch(kCountedRows, 0, 0, 1), half = batch.rows(0, 10);
  CHECK_THROWS_WITH(loss(model(half.images), masked(half)).backward(), refused);
  for (const std::size_t i : {std::size_t{0}, std::size_t{3}}) {
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2), .loss = counted_losses()[i]});
    const auto step = [&] {
      net(nn::Value(nn::List{Variable(batch.images), Variable(masked(batch))})).variable().backward();
    };
    if (i == 0) CHECK_THROWS_WITH(step(), refused);
    if (i == 3) CHECK_THROWS_WITH(step(), ContainsSubstring("a loss in the replicas is a sum over rows"));
  }
  struct GivesLoss : Plain {
    using Plain::Plain;
    nn::Value forward(nn::Context& context, const nn::Value& input) const override {
      return counted_losses()[0](Plain::forward(context, input.list()[0].variable()),
                                 input.list()[1].variable().value());
    }
    using Plain::forward;
  };
  const auto failures = try_ranks(Over::shm, 3, {}, [](ProcessGroup& group) {  // of which ranks 1 and 2 have replicas
    GivesLoss gives_loss(kSeed);
    DistributedDataParallel net(gives_loss, group);
    const Batch part = owned_batch(kCountedRows, 0, group.rank(), 3);
    net(nn::Value(nn::List{Variable(part.images), Variable(masked(part))})).variable().backward();
  });
  CHECK_THAT(text_of(failures[1]), refused);
}
