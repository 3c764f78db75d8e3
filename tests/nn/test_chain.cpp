// Chains of layers: which of them run as one operator, with the values, gradients and errors of the layers one by one.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/autograd/check_finite.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/random.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"

using namespace duet;
using namespace duet::nn;
using duet_test::ContainsSubstring;

namespace {

/// Layers of a network to be built.
using Layers = std::vector<std::function<void(Sequential&)>>;

template <class Layer, class... Args>
std::function<void(Sequential&)> layer(const Args&... args) {
  return [=](Sequential& net) { net.add<Layer>(args...); };
}

struct LayersNet : Sequential {
  explicit LayersNet(const Layers& layers) {
    for (const auto& add : layers) add(*this);
    initialise(std::uint64_t{7});
  }
};

/// The operators on the tape of y, in the order in which they ran.
std::string operators(const Variable& y) {
  std::string names;
  for (const Node* node = y.edge().node.get(); node != nullptr && !node->edges().empty();
       node = node->edges()[0].node.get())
    names = node->name() + (names.empty() ? "" : " " + names);
  return names;
}

Tensor random_input(const Shape& shape) {
  Tensor x = empty(shape);
  Mt19937 generator(5);
  generator.uniform(x.span<float>(), -1, 1);
  return x.set_stamp({3, 8, 64});
}

std::string operators(const Layers& layers, const Shape& input) {
  return operators(LayersNet(layers)(random_input(input)));
}

/// The output, then the gradients of the input and of all parameters.
std::vector<Tensor> results(Module& net, const Shape& input) {
  const Variable x(random_input(input), true);
  net.context().draws = {};  // as if the batch were delivered again
  const Variable y = ops::to_plain(net.forward(net.context(), x));
  net.zero_grad();
  y.backward(random_input(y.shape()));
  std::vector<Tensor> all = {y.value(), x.grad()};
  const FlatParameters& store = net.parameters();
  for (int slot = 0; slot < store.slot_count(); ++slot) all.push_back(store.gradient(slot).clone());
  return all;
}

/// Largest difference, relative to the largest number of b.
double difference(const Tensor& a, const Tensor& b) {
  double most = 0, largest = 0;
  for (std::int64_t i = 0; i < b.count(); ++i) {
    const double value = static_cast<double>(b.data<float>()[i]);
    most = std::max(most, std::abs(static_cast<double>(a.data<float>()[i]) - value));
    largest = std::max(largest, std::abs(value));
  }
  return most / largest;
}

const Conv2dOptions kPadded = {.padding = 1}, kNoBias = {.bias = false};
const Layers kConvolutions = {layer<Conv2d>(1, 16, 3, kPadded),
                              layer<ReLU>(),
                              layer<MaxPool2d>(2),
                              layer<Conv2d>(16, 32, 3, kPadded),
                              layer<MaxPool2d>(2),
                              layer<ReLU>(),
                              layer<Dropout>(0.25)};
const Layers kLinears = {layer<Linear>(40, 24),        layer<ReLU>(), layer<Dropout>(0.5),
                         layer<Linear>(24, 20, false), layer<ReLU>(), layer<Linear>(20, 10),
                         layer<LogSoftmax>()};
const Layers kLargeWindows = {layer<Conv2d>(3, 5, 5, Conv2dOptions{.stride = 2}), layer<MaxPool2d>(3), layer<ReLU>()};

const Layers kNorms = {layer<Conv2d>(3, 16, 3, kNoBias), layer<BatchNorm2d>(16), layer<ReLU>(),
                       layer<SyncBatchNorm>(16),         layer<ReLU>(),          layer<BatchNorm2d>(16)};

/// A user's layer that computes something else than its base.
struct OwnLinear : Linear {
  using Linear::Linear;
  Variable forward(Context& context, const Variable& x) const override {
    return ops::dropout(Linear::forward(context, x), {.seed = 1, .p = 0.5f});
  }
};

template <class E>
std::string error_of(Module& net, const Variable& x) {
  return duet_test::error_of<E>([&] { net.forward(net.context(), x); });
}

}  // namespace

TEST_CASE("a Sequential runs layers as the fused operators that cover them") {
  CHECK(operators(kConvolutions, {4, 1, 12, 12}) == "conv_pool_relu conv_pool_relu");
  CHECK(operators(kLinears, {4, 40}) == "linear_relu_dropout linear_relu_dropout linear log_softmax");
  CHECK(operators(kLargeWindows, {4, 3, 21, 21}) == "conv_pool_relu");
  CHECK(operators(kNorms, {4, 3, 9, 9}) == "conv2d batch_norm2d batch_norm2d batch_norm2d");
}

TEST_CASE("a user's Sequential has SimpleCNN's operators, values and gradients") {
  LayersNet net({layer<Conv2d>(1, 32, 3, kPadded), layer<MaxPool2d>(2), layer<ReLU>(),
                 layer<Conv2d>(32, 64, 3, kPadded), layer<MaxPool2d>(2), layer<ReLU>(), layer<Dropout>(0.25),
                 layer<Flatten>(), layer<Linear>(3136, 128), layer<ReLU>(), layer<Dropout>(0.5), layer<Linear>(128, 10),
                 layer<LogSoftmax>()});
  SimpleCNN cnn(7);
  const Shape input = {2, 1, 28, 28};
  const std::string expected = "conv_pool_relu conv_pool_relu flatten linear_relu_dropout linear log_softmax";
  CHECK(operators(net(random_input(input))) == expected);
  CHECK(operators(cnn(random_input(input))) == expected);
  // In training the two differ: a Dropout's key holds its number among the model's layers.
  net.eval();
  cnn.eval();
  const std::vector<Tensor> a = results(net, input), b = results(cnn, input);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::memcmp(a[i].raw(), b[i].raw(), b[i].bytes()) == 0);
}

TEST_CASE("layers that no fused operator covers run one by one") {
  const auto conv = layer<Conv2d>(1, 4, 3), relu = layer<ReLU>(), pool = layer<MaxPool2d>(2),
             dropout = layer<Dropout>(0.5), linear = layer<Linear>(4, 4);
  const auto nested = [](Sequential& net) { net.add<Sequential>().add<ReLU>(); };
  const Shape image = {2, 1, 40, 40}, row = {2, 4};
  struct Case {
    const char* what;
    Layers layers;
    Shape input;
    std::string expected;
  };
  const Case cases[] = {
      {"no bias", {layer<Conv2d>(1, 4, 3, kNoBias), pool, relu}, image, "conv2d max_pool2d relu"},
      {"groups",
       {layer<Conv2d>(4, 4, 3, Conv2dOptions{.groups = 2}), pool, relu},
       {2, 4, 40, 40},
       "conv2d max_pool2d relu"},
      {"windows that overlap", {conv, layer<MaxPool2d>(3, 2), relu}, image, "conv2d max_pool2d relu"},
      {"windows with padding", {conv, relu, layer<MaxPool2d>(2, 2, 1)}, image, "conv2d relu max_pool2d"},
      {"windows with gaps", {conv, relu, layer<MaxPool2d>(2, 3)}, image, "conv2d relu max_pool2d"},
      {"no pool", {conv, relu, layer<Conv2d>(4, 4, 3)}, image, "conv2d relu conv2d"},
      {"no relu", {conv, pool}, image, "conv2d max_pool2d"},
      {"two pools", {conv, pool, pool, relu}, image, "conv2d max_pool2d max_pool2d relu"},
      {"dropout before relu", {conv, pool, dropout, relu}, image, "conv2d max_pool2d dropout relu"},
      {"dropout before relu", {linear, dropout, relu}, row, "linear dropout relu"},
      {"no relu", {linear, dropout}, row, "linear dropout"},
      {"a subclass", {layer<OwnLinear>(4, 4), relu}, row, "linear dropout relu"},
      {"a nested container", {linear, nested}, row, "linear relu"},
      {"vectors in more dimensions", {linear, relu, dropout}, {2, 3, 4}, "linear relu dropout"},
      {"another dimension", {linear, layer<LogSoftmax>(0)}, row, "linear transpose log_softmax transpose"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    CHECK(operators(c.layers, c.input) == c.expected);
  }
}

TEST_CASE("fused layers have the values and gradients of the layers one by one") {
  struct Case {
    Layers layers;
    Shape input;
    double tolerance;  // of convolutions: their fused kernels sum in another order
  };
  const Case cases[] = {{kLinears, {9, 40}, 0},
                        {kNorms, {9, 3, 9, 9}, 0},
                        {kConvolutions, {9, 1, 12, 12}, 2e-6},
                        {kLargeWindows, {9, 3, 21, 21}, 2e-6}};
  for (const Case& c : cases)
    for (const bool training : {true, false}) {
      LayersNet net(c.layers);
      net.train(training);
      const std::vector<Tensor> fused = results(net, c.input);
      net.context().fuse = false;
      const std::vector<Tensor> plain = results(net, c.input);
      REQUIRE(fused.size() == plain.size());
      for (std::size_t i = 0; i < fused.size(); ++i) {
        CAPTURE(c.input.str(), training, i);
        REQUIRE(fused[i].shape() == plain[i].shape());
        if (c.tolerance == 0) CHECK(std::memcmp(fused[i].raw(), plain[i].raw(), plain[i].bytes()) == 0);
        CHECK(difference(fused[i], plain[i]) <= c.tolerance);
      }
    }
}

TEST_CASE("the end of a residual block has the values and gradients of norm, addition and relu") {
  struct Block : Module {
    Block() { register_module("norm", norm_), initialise(std::uint64_t{7}); }
    Variable forward(Context& context, const Variable& x) const override { return norm_.forward_relu(context, x, x); }
    using Module::forward;
    BatchNorm2d norm_{5};
  };
  Block fused, plain;
  plain.context().fuse = false;
  const Shape input = {3, 5, 4, 4};
  CHECK(operators(fused(random_input(input))) == "batch_norm2d");
  CHECK(operators(plain(random_input(input))) == "batch_norm2d add relu");
  const std::vector<Tensor> a = results(fused, input), b = results(plain, input);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::memcmp(a[i].raw(), b[i].raw(), b[i].bytes()) == 0);
  const CheckFinite check;
  CHECK(operators(fused(random_input(input))) == "batch_norm2d add relu");
}

TEST_CASE("a fused dropout has the key of its layer") {
  LayersNet net({layer<Linear>(6, 8), layer<ReLU>(), layer<Dropout>(0.5)});
  const Tensor x = random_input({5, 6});
  const FlatParameters& store = net.parameters();
  const Variable linear = ops::linear(x, store.value(0), store.value(1));
  const Tensor expected = ops::dropout(ops::relu(linear), {.seed = 7, .step = 3, .layer = 3, .p = 0.5f}).value();
  const Tensor got = net(x).value();
  CHECK(std::memcmp(got.raw(), expected.raw(), got.bytes()) == 0);
}

TEST_CASE("layers run one by one while fusion is off and while dropout draws PyTorch's stream") {
  LayersNet net(kConvolutions);
  const std::string fused = "conv_pool_relu conv_pool_relu";
  const Tensor x = random_input({2, 1, 8, 8});
  CHECK(operators(net(x)) == fused);
  net.context().fuse = false;
  CHECK_THAT(operators(net(x)), ContainsSubstring("conv2d relu max_pool2d conv2d max_pool2d relu"));
  net.context().fuse = true;
  Mt19937 generator(1);
  net.context().stream = &generator;
  CHECK_THAT(operators(net(x)), ContainsSubstring("conv2d relu max_pool2d conv2d max_pool2d relu"));
  net.context().stream = nullptr;
  CHECK(operators(net(x)) == fused);
}

TEST_CASE("replicas fuse where their model does") {
  LayersNet model(kLinears);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  CHECK_THAT(error_of<ShapeError>(net, zeros({4, 3})), ContainsSubstring("0 (Linear): linear_relu_dropout: "));
  model.context().fuse = false;
  CHECK_THAT(error_of<ShapeError>(net, zeros({4, 3})), ContainsSubstring("0 (Linear): linear: "));
}

TEST_CASE("errors of fused layers name the layer that they would name one by one") {
  LayersNet linear(kLinears), conv(kLargeWindows), classifier({layer<Linear>(4, 2), layer<LogSoftmax>()});
  CHECK(error_of<ShapeError>(linear, zeros({4, 3})).rfind("0 (Linear): linear_relu_dropout: ", 0) == 0);
  CHECK(error_of<ShapeError>(linear, Variable()).rfind("0 (Linear): linear: ", 0) == 0);
  CHECK(error_of<ShapeError>(conv, zeros({4, 2, 21, 21})).rfind("0 (Conv2d): conv_pool_relu: ", 0) == 0);
  CHECK(error_of<ShapeError>(conv, zeros({4, 3, 4, 4})).rfind("0 (Conv2d): conv2d: ", 0) == 0);
  CHECK(error_of<ShapeError>(conv, zeros({4, 3, 6, 6})).rfind("1 (MaxPool2d): max_pool2d: ", 0) == 0);
  CHECK(error_of<ShapeError>(conv, zeros({4, 3})).rfind("0 (Conv2d): conv2d: ", 0) == 0);
  CHECK(error_of<ShapeError>(conv, Variable()).rfind("0 (Conv2d): conv2d: ", 0) == 0);
  CHECK(error_of<ShapeError>(classifier, zeros({4, 3})).rfind("0 (Linear): linear_log_softmax: ", 0) == 0);
}

TEST_CASE("a CheckFinite names the layer of a fused run in which the number arose") {
  LayersNet net({layer<Linear>(1, 1), layer<ReLU>(), layer<Dropout>(0.5)});
  const CheckFinite check;
  const Tensor x = from_values<float>({8, 1}, std::vector<float>(8, 1.0f));
  net.parameters().value(0).data<float>()[0] = std::numeric_limits<float>::max();
  CHECK(error_of<NumericError>(net, x).rfind("2 (Dropout): dropout: the result", 0) == 0);
  net.parameters().value(0).data<float>()[0] = std::numeric_limits<float>::infinity();
  CHECK(error_of<NumericError>(net, x).rfind("0 (Linear): linear: ", 0) == 0);
}

TEST_CASE("a network of members runs as a chain, and names a layer that is not registered") {
  struct Members : Module {
    explicit Members(bool registered) {
      register_module("conv", conv);
      if (registered) register_module("dropout", dropout);
    }
    Variable forward(Context& context, const Variable& x) const override {
      return chain(context, x, {conv, relu, pool, dropout, flatten});
    }
    using Module::forward;
    std::string type_name() const override { return "Members"; }
    Conv2d conv{1, 8, 3};
    ReLU relu;
    MaxPool2d pool{2};
    Dropout dropout{0.5};
    Flatten flatten;
  };
  Members net(true), broken(false);
  const Tensor x = random_input({2, 1, 6, 6});
  CHECK(operators(net(x)) == "conv_pool_relu flatten");
  CHECK(chain(net.context(), x, {}).value().same_memory(x));
  CHECK(error_of<UsageError>(broken, x).rfind("Dropout(p=0.5, inplace=False) is not registered", 0) == 0);
}
