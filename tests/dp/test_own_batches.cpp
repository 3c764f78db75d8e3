// Batches and losses that do not come from duet's loader and operators, and losses computed in the replicas.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ddp/own_batches.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"
#include "tests/support/own_loss.h"
#include "tests/support/said.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet_test;

namespace {

Values alone(const Batch& batch, const Loss& loss) {
  SyncNet model(kSeed);
  loss(model(batch.images), batch.labels).backward();
  return gradients_of(model);
}

/// Of `devices` devices, with the loss in the replicas or of the gathered output.
Values side_by_side(int devices, const Batch& batch, const Loss& loss, bool in_replicas) {
  SyncNet model(kSeed);
  dp::DataParallelOptions options{.devices = first_devices(DeviceKind::cpu, devices)};
  if (in_replicas) options.loss = loss;
  dp::DataParallel net(model, options);
  const Variable images(batch.images), labels(batch.labels);
  const Variable value =
      in_replicas ? net(nn::Value(nn::List{images, labels})).variable() : loss(net(batch.images), batch.labels);
  value.backward();
  return gradients_of(model);
}

}  // namespace

TEST_CASE("a synchronised batch norm with the loss in the replicas trains with fewer rows than devices") {
  for (int devices = 2; devices <= 9; ++devices) {
    for (std::int64_t rows = 1; rows <= 9; ++rows) {
      CAPTURE(devices, rows);
      const Batch batch = rows_of({rows}, 0, 0, true);
      const Values got = side_by_side(devices, batch, library_loss, true);
      check_close(got, alone(batch, library_loss));
      if (devices == 2 || devices == 4 || devices == 8) CHECK(got == alone(batch, library_loss));
    }
  }
}

TEST_CASE("DP has the gradients of the mean over all rows, with any loss, stamped or not, in the replicas or not") {
  for (const int devices : {1, 2, 3, 4}) {
    for (const std::int64_t rows : {12, 7, 2}) {
      for (const bool stamped : {false, true}) {
        for (const bool in_replicas : {false, true}) {
          CAPTURE(devices, rows, stamped, in_replicas);
          const Batch batch = rows_of({rows}, 0, 0, stamped);
          check_close(side_by_side(devices, batch, library_loss, in_replicas), alone(batch, library_loss));
          if (!in_replicas || !stamped || rows >= devices)  // the user's own loss divides by the rows
            check_close(side_by_side(devices, batch, users_loss, in_replicas), alone(batch, users_loss));
        }
      }
    }
  }
}

TEST_CASE("a loss in the replicas that adds both kinds of terms is refused") {
  const auto both = [](const Variable& output, const Tensor& labels) {
    return ops::add(ops::nll_loss(output, labels), own_loss(output));
  };
  CHECK_THROWS_WITH(side_by_side(2, rows_of({8}, 0, 0, true), both, true),
                    ContainsSubstring("a loss in the replicas adds"));
}

TEST_CASE("a stamped batch that is cut across its rows is weighted by what is cut") {
  const auto columns = [](std::int64_t begin, std::int64_t end, float factor) {
    Tensor x = empty({6, end - begin});
    for (std::int64_t row = 0; row < 6; ++row)
      for (std::int64_t c = begin; c < end; ++c)
        x.data<float>()[row * (end - begin) + c - begin] = factor * static_cast<float>(row * 8 + c);
    x.set_stamp({.step = 0, .first = 0, .global = 6});
    return x;
  };
  const auto loss = [](const Variable& output, const Tensor& target) { return ops::mse_loss(output, target); };
  nn::Linear across(4, 4);
  across.initialise(kSeed);
  dp::DataParallel net(across, {.devices = first_devices(DeviceKind::cpu, 2), .dim = 1, .loss = loss});
  net(nn::Value(nn::List{Variable(columns(0, 8, 0.01f)), Variable(columns(0, 8, 0.1f))})).variable().backward();

  nn::Linear alone(4, 4);
  alone.initialise(kSeed);
  for (const std::int64_t half : {0, 1}) {
    const Variable output = alone(columns(4 * half, 4 * half + 4, 0.01f));
    loss(output, columns(4 * half, 4 * half + 4, 0.1f)).backward(from_values<float>({}, {0.5f}));
  }
  check_close(gradients_of(across), gradients_of(alone));
}

namespace {

Variable sum_by_rows(const Variable& y) { return ops::sum(y * y) / double(y.size(0)); }
Variable mean_square(const Variable& y) { return ops::mean(y * y); }
Variable around_samples(const Variable& y) { return y - ops::mean(y, {0}); }
Variable around_classes(const Variable& y) { return y - ops::mean(y, {1}, true); }

}  // namespace

TEST_CASE("DP warns of values by each device's rows, unless it weights them or all devices have as many") {
  struct Gives : Plain {
    using Value = Variable (*)(const Variable& y);
    explicit Gives(Value value) : Plain(kSeed), value_(value) {}
    Variable forward(nn::Context& context, const Variable& x) const override {
      return value_(Plain::forward(context, x));
    }
    using Plain::forward;
    Value value_;
  };
  struct {
    Gives::Value value;
    std::int64_t rows;
    bool records, warns;
  } const table[] = {{sum_by_rows, 7, true, true},      {sum_by_rows, 8, true, false},
                     {mean_square, 7, true, false},     {mean_square, 7, false, true},
                     {mean_square, 8, false, false},    {around_classes, 7, true, false},
                     {around_classes, 7, false, false}, {around_samples, 8, false, true}};
  for (const auto& [value, rows, records, warns] : table) {
    CAPTURE(rows, records);
    Gives model(value);
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
    const NoGrad off(!records);
    const Said said;
    for (int step = 0; step < 2; ++step) net(rows_of({rows}, 0, 0, false).images);
    CHECK(said.lines() == (warns ? 1 : 0));
  }
}

TEST_CASE("a backward within forward is refused in replicas, which would lose its gradients") {
  struct Penalised : Plain {
    using Plain::Plain;
    Variable forward(nn::Context& context, const Variable& x) const override {
      const Variable leaf(x.value(), true);
      ops::sum(Plain::forward(context, leaf)).backward();
      return Plain::forward(context, x) + ops::mean(Variable(leaf.grad()));
    }
    using Plain::forward;
  } model(kSeed);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  CHECK_THROWS_WITH(net(rows_of({4}, 0, 0, false).images), ContainsSubstring("of its wrapper, or within forward"));
}

namespace {

/// Takes {images, labels} and gives {loss, logits}; the loss as a vector of one, or a mean over the rows, if asked to.
struct GivesLoss : nn::Module {
  explicit GivesLoss(bool vector, bool mean) : vector_(vector), mean_(mean) {
    register_module("fc", fc_);
    initialise(kSeed);
  }
  nn::Value forward(nn::Context& context, const nn::Value& input) const override {
    const Variable y = fc_.forward(context, ops::flatten(input.list()[0].variable()));
    const Variable loss = mean_ ? ops::mean(y * y) : ops::cross_entropy(y, input.list()[1].variable().value());
    return nn::List{vector_ ? ops::reshape(loss, {1}) : loss, y};
  }
  Variable forward(nn::Context&, const Variable&) const override { throw UsageError("takes a list"); }
  using nn::Module::forward;

 private:
  bool vector_, mean_;
  nn::Linear fc_{784, 10};
};

}  // namespace

TEST_CASE("a module that gives rows around a mean of each device's rows is refused in the replicas") {
  struct Centred : Plain {
    explicit Centred(bool detaches) : Plain(kSeed), cuts(detaches) {}
    Variable forward(nn::Context& context, const Variable& x) const override {
      const Variable y = Plain::forward(context, x), mean = ops::mean(y, {0});
      return y - (cuts ? mean.detach() : mean);
    }
    using Plain::forward;
    bool cuts;
  };
  for (const bool cuts : {true, false}) {
    Centred model(cuts);
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
    const Variable y = net(rows_of({8}, 0, 0, true).images);
    CHECK_THROWS_WITH(ops::mean(y * y).backward(),
                      ContainsSubstring(cuts ? "sub: a constant" : "sub: its argument is the result of mean"));
  }
}

TEST_CASE("a module that gives its loss has the gradients of one device, by mean(), by sum() or as it is") {
  struct Result {
    Shape shape;
    float loss;
    Values gradients;
  };
  const auto step = [](int devices, const Batch& batch, bool vector, bool mean, auto reduce) {
    GivesLoss model(vector, mean);
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices)});
    const nn::Value outputs = net(nn::Value(nn::List{Variable(batch.images), Variable(batch.labels)}));
    CHECK(outputs.list()[1].variable().shape() == Shape{batch.images.size(0), 10});
    const Variable loss = outputs.list()[0].variable(), reduced = reduce(loss);
    reduced.backward();
    return Result{loss.shape(), reduced.item(), gradients_of(model)};
  };
  const std::function<Variable(const Variable&)> reductions[] = {
      [](const Variable& loss) { return ops::mean(loss); }, [](const Variable& loss) { return ops::sum(loss); },
      [](const Variable& loss) { return loss; }, [](const Variable& loss) { return ops::sqrt(loss); }};
  for (const std::int64_t rows : {16, 13, 5})
    for (const bool stamped : {true, false})
      for (int devices = 2; devices <= 8; ++devices)
        for (std::size_t i = 0; i < 2 * std::size(reductions); ++i) {
          const bool mean = i >= std::size(reductions), root = i % 4 == 3;
          const auto& reduce = reductions[i % 4];
          Batch batch = rows_of({rows}, 0, 0, stamped);
          for (Tensor* const tensor : {&batch.images, &batch.labels})
            if (stamped) tensor->set_stamp({.global = rows, .owned = true});
          CAPTURE(rows, stamped, devices, i);
          const bool vector = i % 2 == 0 && (!mean || rows > devices);  // else perhaps an output of each device's row
          const Result expected = step(1, batch, vector, mean, reduce),
                       got = step(devices, batch, vector, mean, reduce);
          CHECK(got.shape == expected.shape);
          CHECK(std::fabs(got.loss - expected.loss) <= 1e-6f * expected.loss);
          if (stamped && !mean && !root)
            CHECK(got.gradients == expected.gradients);  // sqrt's slope is that of the loss
          check_close(got.gradients, expected.gradients);
        }
}
