// Ranks whose loaders disagree: an error on every rank, found with the first bucket of gradients.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr int kRanks = 2;

/// Rank's part [begin, end) of every batch of 8, as a sampler of the user's own cuts it.
class OwnCut final : public data::BatchSampler {
 public:
  OwnCut(std::int64_t begin, std::int64_t end) : begin_(begin) {
    for (std::int64_t i = 0; i < end - begin; ++i) indices_.push_back(i);
  }
  std::int64_t steps() const override { return 2; }
  void set_epoch(std::int64_t) override {}
  data::StepIndices step(std::int64_t) const override { return {indices_, begin_, 8, kRanks}; }

 private:
  std::int64_t begin_;
  std::vector<std::int64_t> indices_;
};

/// What one rank reads.
struct Reader {
  std::int64_t samples = 40, global_batch = 8;
  std::uint64_t seed = 1;
  int rank = 0;
  std::int64_t skipped = -1;  // step
  std::int64_t first_label = 0;
  std::shared_ptr<OwnCut> cut{};
  double dropout = 0;
  bool goes_forward_twice = false;  // the first time without the wrapper
};
using ReaderOf = std::function<Reader(int rank)>;

std::unique_ptr<data::BatchSampler> sampler_of(const Reader& reader) {
  if (reader.cut) return std::make_unique<OwnCut>(*reader.cut);
  return std::make_unique<samplers::BlockedBatches>(
      std::make_unique<samplers::RandomSampler>(reader.samples, reader.seed),
      samplers::BlockedOptions{.global_batch = reader.global_batch, .world_size = kRanks, .rank = reader.rank});
}

data::TensorDataset samples(std::int64_t count, std::int64_t first_label = 0) {
  const Tensor values = empty({count, 6}), labels = empty({count}, DType::i64);
  for (std::int64_t i = 0; i < values.count(); ++i)
    values.data<float>()[i] = static_cast<float>(i * 37 % 23) / 23.0f - 0.5f;
  for (std::int64_t i = 0; i < count; ++i) labels.data<std::int64_t>()[i] = (first_label + i) % 3;
  return data::TensorDataset(values, labels);
}

/// Dropout, linear and log_softmax; the values of all ranks' models are equal.
struct Net : nn::Module {
  explicit Net(Device device, double p = 0) : dropout(p) {
    register_module("fc", fc);
    register_module("dropout", dropout);
    initialise(3);
    to(device);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return ops::log_softmax(fc.forward(context, dropout.forward(context, x)));
  }
  using nn::Module::forward;
  std::string type_name() const override { return "Net"; }
  nn::Linear fc{6, 3};
  nn::Dropout dropout;
};

void train(ProcessGroup& group, const Reader& reader, const DistributedDataParallelOptions& options = {}) {
  const Device device{DeviceKind::cpu, group.rank()};
  const data::TensorDataset set = samples(reader.samples, reader.first_label);
  data::Loader loader(set, sampler_of(reader));
  Net model(device, reader.dropout);
  DistributedDataParallel net(model, group, options);
  optim::SGD optimizer(model, {.lr = 0.1f});
  for (auto& [images, labels] : loader) {
    if (loader.stamp().step == reader.skipped) continue;
    optimizer.zero_grad();
    if (reader.goes_forward_twice) model(images.alias(device));
    ops::nll_loss(net(images.alias(device)), labels.alias(device)).backward();
    optimizer.step();
  }
}

/// `compresses`: each rank communicates its gradients by a hook of its own.
std::vector<std::string> failures_of(Over over, const ReaderOf& reader_of, bool compresses = false) {
  std::vector<std::string> texts;
  for (const auto& failure : try_ranks(over, kRanks, {.timeout = std::chrono::seconds(60)}, [&](ProcessGroup& group) {
         DistributedDataParallelOptions options;
         if (compresses) options.comm_hook = std::make_shared<CompressionHook>(HalfFormat::bf16);
         train(group, reader_of(group.rank()), options);
       }))
    texts.push_back(text_of(failure));
  return texts;
}

struct Misuse {
  const char* what;
  ReaderOf reader_of;
  const char *said, *advice;  // by every rank
};

const std::vector<Misuse>& misuses() {
  static const std::vector<Misuse> all = {
      {"the rank forgotten", [](int) { return Reader{.rank = 0}; }, "ranks 0, 1", "its own rank"},
      {"batches of 8 and 7", [](int rank) { return Reader{.global_batch = 8 - rank, .rank = rank}; }, "of 7 in step 0",
       "the same batch size"},
      {"40 and 39 samples", [](int rank) { return Reader{.samples = 40 - rank, .rank = rank}; }, "order",
       "the same data"},
      {"seeds by rank", [](int rank) { return Reader{.seed = std::uint64_t(1 + rank), .rank = rank}; }, "order",
       "and seed"},
      {"other labels", [](int rank) { return Reader{.rank = rank, .first_label = rank}; }, "order", "the same data"},
      {"another batch skipped", [](int rank) { return Reader{.rank = rank, .skipped = 1 + 2 * rank}; }, "in step 2",
       ": skip, repeat and accumulate batches alike"},
      {"a gap", [](int rank) { return Reader{.cut = std::make_shared<OwnCut>(rank == 0 ? 0 : 4, rank == 0 ? 3 : 8)}; },
       "rows 0 to 3 of 8", "its own rank"},
      {"an overlap",
       [](int rank) { return Reader{.cut = std::make_shared<OwnCut>(rank == 0 ? 0 : 3, rank == 0 ? 5 : 8)}; },
       "rows 3 to 8 of 8", "its own rank"},
  };
  return all;
}

/// Backward of rows [begin, end) of a rank's shard.
using PartBackward = std::function<void(std::int64_t begin, std::int64_t end)>;

/// What the ranks failed with, as texts, if `backward_in_parts` takes each rank's shards apart.
std::vector<std::string> failures_in_parts(
    const std::function<void(DistributedDataParallel& net, std::int64_t rows, int rank, const PartBackward&)>&
        backward_in_parts) {
  std::vector<std::string> texts;
  for (const auto& failure : try_ranks(Over::shm, kRanks, {}, [&](ProcessGroup& group) {
         const Device device{DeviceKind::cpu, group.rank()};
         const data::TensorDataset set = samples(40);
         data::Loader loader(set, sampler_of({.global_batch = 16, .rank = group.rank()}));
         Net model(device);
         DistributedDataParallel net(model, group);
         for (const auto& [images, labels] : loader) {
           model.zero_grad();
           backward_in_parts(
               net, images.size(0), group.rank(),
               [&, x = images.alias(device), y = labels.alias(device)](std::int64_t begin, std::int64_t end) {
                 ops::nll_loss(net(x.rows(begin, end)), y.rows(begin, end)).backward();
               });
         }
       }))
    texts.push_back(text_of(failure));
  return texts;
}

}  // namespace

TEST_CASE("ranks whose loaders disagree all fail, over every backend") {
  for (const Over over : {Over::memory, Over::shm, Over::tcp, Over::gloo}) {
    if (missing(over)) continue;
    for (const Misuse& misuse : misuses()) {
      CAPTURE(static_cast<int>(over), misuse.what);
      for (const std::string& failure : failures_of(over, misuse.reader_of)) {
        CHECK_THAT(failure, ContainsSubstring("the ranks disagree: "));
        CHECK_THAT(failure, ContainsSubstring(misuse.said) && ContainsSubstring(misuse.advice));
      }
    }
  }
}

TEST_CASE("ranks whose loaders disagree all fail with a comm_hook") {
  const ReaderOf forgotten = [](int) { return Reader{}; };
  for (const std::string& failure : failures_of(Over::memory, forgotten, true))
    CHECK_THAT(failure, ContainsSubstring("the ranks disagree: ranks 0, 1"));
}

TEST_CASE("ranks whose loaders agree train, also where a sampler of the user's own cuts unevenly") {
  for (const std::string& failure : failures_of(Over::shm, [](int rank) { return Reader{.rank = rank}; }))
    CHECK(failure.empty());
  for (const std::string& failure : failures_of(Over::shm, [](int rank) {
         return Reader{.rank = rank, .skipped = 2};  // all ranks skip the same step
       }))
    CHECK(failure.empty());
  for (const std::string& failure : failures_of(Over::memory, [](int rank) {
         return Reader{.cut = std::make_shared<OwnCut>(rank == 0 ? 0 : 5, rank == 0 ? 5 : 8)};
       }))
    CHECK(failure.empty());
}

TEST_CASE("micro-batches of a rank's shard, in any order and number, are its shard") {
  for (const std::string& failure :
       failures_in_parts([](DistributedDataParallel&net, std::int64_t rows, int rank, const PartBackward&backward) {
         const std::int64_t size = rank == 0 ? 2 : 4;
         {
           const auto guard = net.no_sync();
           for (std::int64_t begin = rows - size; begin > 0; begin -= size) backward(begin, begin + size);
         }
         backward(0, size);
       }))
    CHECK(failure == "");
}

TEST_CASE("micro-batches that leave gaps at first are the shard once all of them are there") {
  for (const std::string& failure :
       failures_in_parts([](DistributedDataParallel&net, std::int64_t rows, int, const PartBackward&backward) {
         const std::int64_t size = rows / 4;
         auto guard = net.no_sync();
         for (const std::int64_t part : {0, 2, 1, 3}) {
           if (part == 3) guard = {};
           backward(part * size, part == 3 ? rows : (part + 1) * size);
         }
       }))
    CHECK(failure == "");
}

TEST_CASE("a model without a wrapper may stand behind one with") {
  for (const auto& failure : try_ranks(Over::shm, kRanks, {}, [](ProcessGroup& group) {
         const Device device{DeviceKind::cpu, group.rank()};
         const data::TensorDataset set = samples(16);
         data::Loader loader(set, sampler_of({.samples = 16, .rank = group.rank()}));
         Net model(device);
         nn::Linear fixed(3, 3);
         fixed.initialise(5);
         fixed.to(device);
         DistributedDataParallel net(model, group);
         for (const auto& [images, labels] : loader) {
           model.zero_grad();
           ops::nll_loss(fixed(net(images.alias(device))), labels.alias(device)).backward();
         }
       }))
    CHECK(text_of(failure) == "");
}

TEST_CASE("a rank that has ended leaves the mean over the rows of those that train") {
  std::vector<std::vector<float>> gradients(kRanks);
  run_ranks(Over::shm, kRanks, [&](ProcessGroup& group) {
    const Device device{DeviceKind::cpu, group.rank()};
    const data::TensorDataset set = samples(16);
    data::Loader loader(set, sampler_of({.samples = 16, .rank = group.rank()}));
    Net model(device);
    DistributedDataParallel net(model, group);
    net.join([&] {
      for (const auto& [images, labels] : loader) {
        model.zero_grad();
        ops::nll_loss(net(images.alias(device)), labels.alias(device)).backward();
        if (group.rank() == 1) break;
      }
    });
    if (group.rank() > 0) return;
    const auto got = std::as_const(model.parameters()).gradients().span<float>();
    gradients[0].assign(got.begin(), got.end());
    Net alone(device);
    loader.set_position({0, 1});
    for (const auto& [images, labels] : loader) {
      Tensor x = images.alias(device), y = labels.alias(device);
      ops::nll_loss(alone(x.set_stamp({})), y.set_stamp({})).backward();
    }
    const auto expected = std::as_const(alone.parameters()).gradients().span<float>();
    gradients[1].assign(expected.begin(), expected.end());
  });
  REQUIRE(gradients[0].size() == gradients[1].size());
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    CHECK(gradients[0][i] == duet_test::Approx(gradients[1][i]).margin(1e-6));
}

TEST_CASE("ranks that read the same part of an order are named") {
  const auto read = [](int size, bool forgotten) {
    return try_ranks(Over::memory, size, {}, [&](ProcessGroup& group) {
      const Device device{DeviceKind::cpu, group.rank()};
      const data::TensorDataset set = samples(40);
      auto order = std::make_unique<samplers::DistributedSampler>(
          set.size(), samplers::DistributedOptions{.world_size = size, .rank = forgotten ? 0 : group.rank()});
      data::Loader loader = samplers::data_loader(set, {.batch_size = 4, .sampler = std::move(order)});
      Net model(device);
      DistributedDataParallel net(model, group);
      for (const auto& [images, labels] : loader) {
        model.zero_grad();
        ops::nll_loss(net(images.alias(device)), labels.alias(device)).backward();
      }
    });
  };
  for (const auto& failure : read(3, true))
    CHECK_THAT(text_of(failure), ContainsSubstring("ranks 0, 1, 2 read the same part of the data"));
  for (const auto& failure : read(3, false)) CHECK(text_of(failure) == "");
}

TEST_CASE("a forward with dropout that one rank alone calls before the wrapper's is an error") {
  for (const bool by_all : {true, false}) {
    const auto reader_of = [&](int rank) {
      return Reader{.rank = rank, .dropout = 0.1, .goes_forward_twice = by_all || rank == 0};
    };
    for (const std::string& failure : failures_of(Over::memory, reader_of))
      CHECK(by_all ==
            (failure.find("dropout has drawn for this batch on rank 0, but not on rank 1: ") == std::string::npos));
  }
}
