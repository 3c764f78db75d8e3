// Errors of layers name the layer of the model.
#include <cstdint>
#include <memory>
#include <string>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/error.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/ops.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"

using namespace duet;
using namespace duet::nn;
using duet_test::ContainsSubstring;

namespace {

/// x + conv(x): shapes differ unless the convolution pads.
struct Residual : Module {
  explicit Residual(std::int64_t padding) : conv1(2, 2, 3, {.padding = padding}) { register_module("conv1", conv1); }
  Variable forward(Context& context, const Variable& x) const override {
    return ops::add(x, conv1.forward(context, x));
  }
  using Module::forward;
  std::string type_name() const override { return "Residual"; }
  Conv2d conv1;
};

struct Net : Module {
  explicit Net(std::int64_t padding) {
    features.add<ReLU>();
    features.add<Residual>(padding);
    register_module("features", features);
    register_module("fc", fc);
  }
  Variable forward(Context& context, const Variable& x) const override {
    return fc.forward(context, features.forward(context, x));
  }
  using Module::forward;
  std::string type_name() const override { return "Net"; }
  Sequential features;
  Linear fc{4, 2};
};

const std::string kThreeChannels = "features.1.conv1 (Conv2d): conv2d: input [4, 3, 5, 5] has 3 channels";

template <class E>
std::string text_of(Module& net, const Tensor& x) {
  return duet_test::error_of<E>([&] { net(x); });
}

}  // namespace

TEST_CASE("an error in a layer names the layer, once") {
  Net model(1);
  CHECK_THAT(text_of<ShapeError>(model, zeros({4, 3, 5, 5})), ContainsSubstring(kThreeChannels));
  CHECK(text_of<ShapeError>(model, zeros({4, 3, 5, 5})).rfind(kThreeChannels, 0) == 0);
  CHECK(text_of<ShapeError>(model, zeros({4, 2, 5, 5})) ==
        "fc (Linear): linear: input [4, 2, 5, 5] and weights [2, 4] disagree about the number of inputs");
  Linear alone(4, 2);
  CHECK(text_of<ShapeError>(alone, zeros({3})) == "Linear: linear: got shape [3], expected (N, ..., I)");
}

TEST_CASE("an error in a child of a Sequential names the child where no layer inside is the cause") {
  Net model(0);
  CHECK(text_of<ShapeError>(model, zeros({4, 2, 5, 5})) ==
        "features.1 (Residual): add: shapes [4, 2, 5, 5] and [4, 2, 3, 3] differ in dimension -2, expected "
        "equal sizes or 1");
}

TEST_CASE("under DataParallel the replica is named before the layer") {
  Net model(1);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  const std::string text = text_of<ShapeError>(net, zeros({8, 3, 5, 5}));
  CHECK(text.rfind("replica 0 on device cpu:0: " + kThreeChannels, 0) == 0);
}

TEST_CASE("under DistributedDataParallel the rank is named before the layer") {
  const auto run = [](ddp::ProcessGroup& group) {
    Net model(1);
    ddp::DistributedDataParallel net(model, group);
    net(zeros({4, 3, 5, 5}));
  };
  CHECK_THROWS_AS(ddp::run_rank_threads(2, run), ShapeError);
  CHECK_THROWS_WITH(ddp::run_rank_threads(2, run), ContainsSubstring(": " + kThreeChannels));
}

TEST_CASE("fused operators name the layer whose weights they use") {
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    SimpleCNN model(1);
    model.context().fuse = fused;
    CHECK(text_of<ShapeError>(model, zeros({2, 3, 28, 28})).rfind("conv1 (Conv2d): conv", 0) == 0);
    CHECK(text_of<ShapeError>(model, zeros({2, 1, 20, 20})).rfind("fc1 (Linear): linear", 0) == 0);
  }
}

TEST_CASE("a prefix keeps an error's type and time") {
  std::int64_t when = 0;
  try {
    with_prefix([] { return std::string("outer: "); },
                [&] {
                  try {
                    throw CommError("inner");
                  } catch (const Error& error) {
                    when = error.when();
                    throw;
                  }
                });
    FAIL("nothing was thrown");
  } catch (const CommError& error) {
    CHECK(std::string(error.what()) == "outer: inner");
    CHECK(error.when() == when);
  }
}
