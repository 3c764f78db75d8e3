// Functions of a mean over the batch: linear ones train as on one device, others are refused where devices have parts.
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/variable.h"
#include "lib/error.h"
#include "lib/ops/custom.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/own_loss.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

Variable squared(const Variable& y) { return ops::mse_loss(y, zeros(y.shape(), DType::f32, y.device())); }
Variable rooted(const Variable& y, const Tensor&) { return ops::sqrt(squared(y)); }

/// Operators of one's own, of which only the second says that it's linear.
struct Square {
  static constexpr const char* kName = "square";
  static constexpr bool kSumsRows = false;
  Tensor forward(const ops::Tensors& in) const {
    return full_like(in[0], {}, in[0].data<float>()[0] * in[0].data<float>()[0]);
  }
  ops::Tensors backward(const Tensor& dy, const ops::Tensors& in, const Tensor&) const {
    return {full_like(dy, {}, 2 * in[0].data<float>()[0] * dy.data<float>()[0])};
  }
};
struct Halve {
  static constexpr const char* kName = "halve";
  static constexpr bool kSumsRows = false, kLinear = true;
  Tensor forward(const ops::Tensors& in) const { return full_like(in[0], {}, in[0].data<float>()[0] / 2); }
  ops::Tensors backward(const Tensor& dy, const ops::Tensors& in, const Tensor&) const {
    ops::Tensors gradients(in.size());
    gradients[0] = full_like(dy, {}, dy.data<float>()[0] / 2);
    return gradients;
  }
};

/// A number of all rows, of which duet knows no more.
struct Total {
  static constexpr const char* kName = "total";
  static constexpr bool kSumsRows = false;
  Tensor forward(const ops::Tensors& in) const {
    float sum = 0;
    for (const float x : in[0].span<float>()) sum += x;
    return full_like(in[0], {}, sum / static_cast<float>(in[0].size(0)));
  }
  ops::Tensors backward(const Tensor& dy, const ops::Tensors& in, const Tensor&) const {
    return {full_like(in[0], in[0].shape(), dy.data<float>()[0] / static_cast<float>(in[0].size(0)))};
  }
};
Variable total(const Variable& y) { return ops::custom(Total{}, {y}); }

struct Curved {
  std::string op, mean;
  Loss loss;
  bool stamped_only = false;
};

const std::vector<Curved>& curved_losses() {
  static const std::vector<Curved> losses = {
      {"sqrt", "mse_loss", rooted},
      {"sqrt", "mean", [](const Variable& y, const Tensor&) { return ops::sqrt(ops::mean(y * y)); }},
      {"log", "sum", [](const Variable& y, const Tensor&) { return ops::log(ops::sum(ops::exp(y)) / 3); }},
      {"mul", "nll_loss",
       [](const Variable& y, const Tensor& labels) { return squared(y) + ops::nll_loss(y, labels) * squared(y); }},
      {"div", "mse_loss", [](const Variable& y, const Tensor&) { return 1 / squared(y); }},
      {"relu", "nll_loss", [](const Variable& y, const Tensor& l) { return ops::relu(ops::nll_loss(y, l) - 1) + 1; }},
      {"exp", "nll_loss",  // the focal loss of a batch
       [](const Variable& y, const Tensor& labels) {
         const Variable loss = ops::nll_loss(y, labels), rest = 1 - ops::exp(-loss);
         return rest * rest * loss;
       }},
      {"square", "mse_loss", [](const Variable& y, const Tensor&) { return ops::custom(Square{}, {squared(y)}); }},
      {"sqrt", "total", [](const Variable& y, const Tensor&) { return ops::sqrt(total(y * y)); }},
      {"own_loss", "mse_loss",  // a node of one's own
       [](const Variable& y, const Tensor&) {
         return own_loss(ops::reshape(squared(y), {1, 1}));
       }},
      {"mse_loss", "mean", [](const Variable& y, const Tensor&) { return squared(y - ops::mean(y)); }},
      {"div", "sum", [](const Variable& y, const Tensor&) { return ops::mean(y / (ops::sum(y * y) + 1)); }},
      {"mse_loss", "batch_mean", [](const Variable& y, const Tensor&) { return squared(y - ops::batch_mean(y)); },
       true}};
  return losses;
}

void step(nn::Module& net, const Batch& batch, const Loss& loss) { loss(net(batch.images), batch.labels).backward(); }

}  // namespace

TEST_CASE("DDP refuses a function of a batch's mean that is not linear, and names operator and mean") {
  for (const auto& [op, mean, loss, stamped_only] : curved_losses())
    for (const bool stamped : {true, false}) {
      if (stamped_only && !stamped) continue;
      const std::string failure =
          failure_of(2, [&, &loss = loss](DistributedDataParallel& net, int rank, Device device) {
            step(net, rows_of({5, 3}, rank, 0, stamped).to(device), loss);
          });
      CAPTURE(op, stamped);
      CHECK_THAT(failure, ContainsSubstring(op + ": its argument is the result of " + mean + " over this device's"));
    }
}

TEST_CASE("DDP refuses gradients that depend on a batch's mean which has left the tape") {
  struct Cut {
    std::string op;
    Loss loss;
    bool stamped_only = false;
  };
  const Cut losses[] = {
      {"mul", [](const Variable& y, const Tensor&) { return squared(y) * squared(y).detach(); }},
      {"div", [](const Variable& y, const Tensor&) { return squared(y) / squared(y).detach(); }},
      {"mul", [](const Variable& y, const Tensor&) { return ops::mean(y * (1 - ops::exp(-squared(y).detach()))); }},
      {"sub", [](const Variable& y, const Tensor&) { return squared(y - squared(y).detach()); }},
      {"mul",
       [](const Variable& y, const Tensor&) {
         const auto factor = [&] {
           const NoGrad off;
           return ops::sqrt(squared(y));
         };
         return squared(y) * factor();
       }},
      {"mul", [](const Variable& y, const Tensor&) { return squared(y) * total(y.detach()); }, true},
      {"halve", [](const Variable& y, const Tensor&) {
         return ops::custom(Halve{}, {squared(y), squared(y).detach()});
       }}};
  for (const auto& [op, loss, stamped_only] : losses)
    for (const bool stamped : {true, false}) {
      if (stamped_only && !stamped) continue;
      const std::string failure =
          failure_of(2, [&, &loss = loss](DistributedDataParallel& net, int rank, Device device) {
            step(net, rows_of({5, 3}, rank, 0, stamped).to(device), loss);
          });
      CAPTURE(op, stamped);
      CHECK_THAT(failure, ContainsSubstring(op + ": a constant among its arguments is, or was computed from, a mean"));
    }
}

TEST_CASE("a mean of a rank's rows is known in a DataParallel of each rank, whether it goes in or comes out") {
  struct Scaled : Plain {
    Scaled() : Plain(kSeed) {}
    nn::Value forward(nn::Context& context, const nn::Value& input) const override {
      const Variable y = Plain::forward(context, input.list()[0].variable());
      return nn::List{y * input.list()[1].variable(), ops::reshape(ops::mean(y).detach(), {1})};
    }
    using Plain::forward;
  };
  for (const bool in : {true, false}) {
    const auto step = [&](nn::Module& net, const Batch& batch) {
      const Variable factor = in ? ops::mean(Variable(batch.images)) : Variable(full_like(batch.images, {}, 0.5f));
      const nn::Value out = net(nn::Value(nn::List{Variable(batch.images), factor}));
      const Variable y = out.list()[0].variable();
      (in ? ops::mean(y) : ops::mean(y * ops::mean(out.list()[1].variable()))).backward();
    };
    const auto failures = try_ranks(Over::shm, 2, {}, [&](ProcessGroup& group) {
      const Device own{DeviceKind::cpu, group.rank()};
      Scaled model;
      model.to(own);
      dp::DataParallel two(model, {.devices = {own, {DeviceKind::cpu, 2 + group.rank()}}});
      DistributedDataParallel net(two, group);
      step(net, owned_batch(16, 0, group.rank(), 2).to(own));
    });
    CHECK_THAT(text_of(failures[0]), ContainsSubstring("parallel_apply: a constant among its arguments is"));
  }
}

TEST_CASE("a sum over a rank's rows as a loss prints a warning") {
  const Said said;
  for (const bool divides : {true, false})
    of_ranks<Plain>(2, [&](DistributedDataParallel& net, int rank, Device device) {
      const Batch batch = rows_of({5, 3}, rank, 0, true).to(device);
      const Variable sum = -ops::sum(net(batch.images));
      (divides ? sum / 3 : sum).backward();
      if (divides) CHECK(said.lines() == 0);
    });
  CHECK_THAT(said.text(), ContainsSubstring("warning: the loss is a sum over this device's rows of the batch"));
}

TEST_CASE("a function of a batch's mean that is linear trains as on one device") {
  const Loss losses[] = {
      [](const Variable& y, const Tensor& l) { return 0.5 * ops::nll_loss(y, l) - squared(y) / 3 + 2; },
      [](const Variable& y, const Tensor&) {
        return ops::sum(ops::reshape(squared(y), {1, 1}) * 3);
      },
      [](const Variable& y, const Tensor&) {
        const Variable loss = ops::reshape(squared(y), {1, 1});
        return ops::mean(ops::concat({loss, -loss, loss}) *
                         Variable(from_values<float>({1, 3}, {1, 2, 3}).to(y.device())));
      },
      [](const Variable& y, const Tensor&) { return ops::batch_mean(ops::sqrt(y * y + 1)); },
      [](const Variable& y, const Tensor&) {
        const Variable loss = squared(y);
        return ops::custom(Halve{}, {loss}) + (2 - ops::exp(loss.detach()));
      },
      [](const Variable& y, const Tensor&) { return ops::mean(y - ops::mean(y, {0})) + ops::mean(y * y); }};
  for (std::size_t i = 0; i < std::size(losses); ++i)
    for (const bool stamped : {true, false}) {
      CAPTURE(i, stamped);
      check_all_close(after_a_step<Plain>({5, 3}, losses[i], stamped), alone<Plain>({5, 3}, losses[i]));
    }
}

TEST_CASE(
    "the root of a batch's mean trains where one tape has all rows, by its slope, and under GradientRule::torch") {
  const Values expected = alone<Plain>({5, 3}, rooted);
  check_all_close(after_a_step<Plain>({8}, rooted, true), expected);
  const auto own_rows = [](DistributedDataParallel& net, int rank, Device device) {
    step(net, rows_of({5, 3}, rank, 0, false).to(device), rooted);
  };
  CHECK(failure_of(2, own_rows, {.rule = GradientRule::torch}).empty());
  check_all_close(of_ranks<Plain>(2,
                                  [&](DistributedDataParallel& net, int rank, Device device) {
                                    const Batch batch = rows_of({5, 3}, rank, 0, true).to(device);
                                    const Variable loss = squared(net(batch.images));
                                    float sums[] = {loss.item() * static_cast<float>(batch.images.size(0)), 8};
                                    net.group().all_reduce(std::span(sums, 1)).wait();
                                    Tensor slope = zeros({}).to(device);
                                    slope.data<float>()[0] = 0.5f / std::sqrt(sums[0] / sums[1]);
                                    loss.backward(slope);
                                  }),
                  expected);
  Plain model(kSeed);
  const Batch batch = rows_of({8}, 0, 0, true);
  CHECK_THROWS_WITH(step(model, batch.rows(0, 4), rooted), ContainsSubstring("sqrt: its argument is the result"));
  for (const bool in_replicas : {false, true}) {
    model.zero_grad();
    dp::DataParallelOptions options{.devices = first_devices(DeviceKind::cpu, 2)};
    if (in_replicas) options.loss = rooted;
    dp::DataParallel net(model, options);
    if (!in_replicas) {
      step(net, batch, rooted);
      CHECK(gradients_of(model) == expected);
      continue;
    }
    const Variable loss = net(nn::Value(nn::List{Variable(batch.images), Variable(batch.labels)})).variable();
    CHECK_THROWS_WITH(loss.backward(), ContainsSubstring("sqrt: its argument is the result of mse_loss"));
  }
}
