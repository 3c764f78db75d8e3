#include "tests/user_programs/program.h"

#include <cmath>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>

#include "dp/data_parallel.h"
#include "lib/error.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "samplers/random.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

namespace duet_test {
namespace {

class DrawnSamples : public data::Dataset {
 public:
  std::int64_t size() const override { return 40; }
  Shape sample_shape() const override { return {1, 28, 28}; }
  void fetch(std::span<const std::int64_t> indices, const Tensor& images, const Tensor& labels) const override {
    check(indices);
    for (std::size_t row = 0; row < indices.size(); ++row) {
      Mt19937 generator(static_cast<std::uint64_t>(indices[row]) + 17);
      generator.uniform(images.span<float>().subspan(row * 784, 784), -1.0, 1.0);
      labels.data<std::int64_t>()[row] = indices[row] % 10;
    }
  }
};

struct Outcome {
  Values values;
  std::string error;
};

Outcome run_one(Mode mode, ddp::ProcessGroup* group, const Program& program) {
  Run run(mode, group);
  return {program(run), ""};
}

/// By rank; one for other modes than DDP.
std::vector<Outcome> run_in(Mode mode, const Program& program) {
  if (mode != Mode::ddp) {
    try {
      return {run_one(mode, nullptr, program)};
    } catch (const std::exception& error) {
      return {{{}, error.what()}};
    }
  }
  std::vector<Outcome> outcomes(2);
  const auto failures = try_ranks(Over::shm, 2, {}, [&](ddp::ProcessGroup& group) {
    outcomes[static_cast<std::size_t>(group.rank())] = run_one(mode, &group, program);
  });
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    if (failures[rank]) outcomes[rank].error = text_of(failures[rank]);
  return outcomes;
}

void check_values(const Values& got, const Values& expected, bool exact) {
  REQUIRE(got.size() == expected.size());
  std::size_t different = 0;
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) ++different;
    const double error = std::fabs(double{got[i]} - double{expected[i]});
    largest = std::fmax(largest, std::fabs(double{expected[i]}));
    worst = error <= worst ? worst : error;  // a NaN stays
  }
  INFO(different << " of " << got.size() << " values differ; largest value " << largest << ", largest error " << worst);
  if (exact) {
    CHECK(different == 0);
  } else {
    CHECK(worst <= 1e-5 * largest);
  }
}

}  // namespace

int Run::rank() const { return group_ != nullptr ? group_->rank() : 0; }
int Run::size() const { return group_ != nullptr ? group_->size() : 1; }

nn::Module& Run::wrap(nn::Module& model) {
  if (mode_ == Mode::alone) return model;
  if (mode_ == Mode::ddp) {
    wrapper_ = std::make_unique<ddp::DistributedDataParallel>(model, *group_);
  } else {
    wrapper_ = std::make_unique<dp::DataParallel>(
        model, dp::DataParallelOptions{.devices = first_devices(DeviceKind::cpu, 2)});
  }
  return *wrapper_;
}

void check(const Row& row) {
  INFO(row.what);
  std::vector<Outcome> reference;
  if (row.expected.error.empty()) {
    reference = run_in(Mode::alone, row.expected.same_as ? row.expected.same_as : row.program);
    REQUIRE(reference[0].error == "");
    REQUIRE(!reference[0].values.empty());
  }
  for (const Mode mode : row.modes) {
    INFO((mode == Mode::alone ? "alone" : mode == Mode::dp ? "DataParallel" : "DistributedDataParallel"));
    for (const Outcome& outcome : run_in(mode, row.program)) {
      if (!row.expected.error.empty()) {
        CHECK_THAT(outcome.error, ContainsSubstring(row.expected.error));
      } else {
        CHECK(outcome.error == "");
        if (outcome.error.empty()) check_values(outcome.values, reference[0].values, row.expected.exact);
      }
    }
  }
}

Values values_of(nn::Module& model) {
  const auto all = std::as_const(model.parameters()).values().span<float>();
  return {all.begin(), all.end()};
}

Values gradients_of(nn::Module& model) {
  const auto all = std::as_const(model.parameters()).gradients().span<float>();
  return {all.begin(), all.end()};
}

data::Loader loader_of(int world_size, int rank) {
  static const DrawnSamples set;
  auto order = std::make_unique<samplers::RandomSampler>(set.size(), 3);
  const samplers::BlockedOptions batches{.global_batch = 8, .world_size = world_size, .rank = rank};
  return data::Loader(set, std::make_unique<samplers::BlockedBatches>(std::move(order), batches));
}

Values train(Run& run, nn::Module& model, data::Loader& loader) {
  nn::Module& net = run.wrap(model);
  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  for (auto& [images, labels] : loader) {
    opt.zero_grad();
    const Variable loss = ops::nll_loss(net(images), labels);
    loss.backward();
    opt.step();
  }
  return values_of(model);
}

}  // namespace duet_test
