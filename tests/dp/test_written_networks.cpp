// Networks that are written from operators: the same bits on any number of devices.
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/recurrent.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/adam.h"
#include "lib/random.h"
#include "tests/support/catch2.h"
#include "tests/support/transformer.h"

using namespace duet;

namespace {

constexpr std::int64_t kLength = 6, kWidth = 16, kSymbols = 11;

struct Transformer final : duet_test::CausalTransformer {
  Transformer()
      : duet_test::CausalTransformer(
            {.width = kWidth, .heads = 2, .length = kLength, .symbols = kSymbols, .dropout = 0.2}, 3) {}
};

/// Recurrent layers over (N, kLength) symbols, with dropout between them; its own state follows from the symbols.
struct Recurrences final : nn::Module {
  Recurrences() {
    register_module("symbols", symbols);
    register_module("lstm", lstm);
    register_module("gru", gru);
    register_module("head", head);
    initialise(std::uint64_t{3});
  }
  Variable forward(nn::Context& context, const Variable& ids) const override {
    const Variable x = symbols.forward(context, ids), first = ops::reshape(ops::mean(x, {1}), {-1, 1, kWidth});
    const Variable both = ops::concat({first, ops::tanh(first)});
    const auto seen = lstm.with_state(context, x, both, zeros_like(x, both.shape()));
    const auto said = gru.with_state(context, seen.output, seen.cell);
    return head.forward(context, said.output + ops::mean(said.hidden, {1}, true));
  }
  using nn::Module::forward;
  nn::Embedding symbols{kSymbols, kWidth};
  nn::LSTM lstm{kWidth, kWidth, {.num_layers = 2, .dropout = 0.2}};
  nn::GRU gru{kWidth, kWidth, {.num_layers = 2, .bias = false, .dropout = 0.3}};
  nn::Linear head{kWidth, kSymbols};
};

/// An autoencoder of (N, 1, 8, 8) images.
struct Autoencoder final : nn::Sequential {
  Autoencoder() {
    add<nn::Conv2d>(1, 16, 3, nn::Conv2dOptions{.stride = 2, .padding = 1});
    add<nn::LeakyReLU>(0.1);
    add<nn::ConvTranspose2d>(16, 1, 4, nn::ConvTranspose2dOptions{.stride = 2, .padding = 1});
    add<nn::Sigmoid>();
    initialise(std::uint64_t{3});
  }
};

Tensor symbols(const Shape& shape, std::uint64_t seed) {
  Tensor ids = empty(shape, DType::i64);
  Mt19937 generator(seed);
  for (std::int64_t& id : ids.span<std::int64_t>()) id = generator.randint(0, kSymbols);
  return ids;
}

Tensor images(std::int64_t rows, std::uint64_t seed) {
  Tensor x = empty({rows, 1, 8, 8});
  Mt19937 generator(seed);
  generator.uniform(x.span<float>(), 0, 1);
  return x;
}

/// The loss of `net` for the batch of a step.
using StepLoss = std::function<Variable(nn::Module& net, std::int64_t rows, const Rows& stamp)>;

Variable transformer_loss(nn::Module& net, std::int64_t rows, const Rows& stamp) {
  const auto seed = static_cast<std::uint64_t>(stamp.step);
  Tensor ids = symbols({rows, kLength}, seed), next = symbols({rows, kLength}, seed + 100);
  return ops::cross_entropy(net(ids.set_stamp(stamp)), next.set_stamp(stamp));
}

Variable autoencoder_loss(nn::Module& net, std::int64_t rows, const Rows& stamp) {
  Tensor x = images(rows, static_cast<std::uint64_t>(stamp.step));
  x.set_stamp(stamp);
  const Variable y = net(x), error = y - x;
  return ops::binary_cross_entropy(y, x) + ops::batch_mean(error * error) / 2;
}

/// All parameters after three steps.
std::vector<float> train(nn::Module& model, nn::Module& net, std::int64_t rows, const StepLoss& loss_of) {
  optim::AdamW opt(model, {.lr = 0.01f});
  for (std::int64_t step = 0; step < 3; ++step) {
    opt.zero_grad();
    loss_of(net, rows, {.step = step, .global = rows, .owned = true}).backward();
    opt.step();
  }
  const auto values = model.parameters().values().span<float>();
  return {values.begin(), values.end()};
}

template <class Model>
void check_bits(const StepLoss& loss) {
  for (const std::int64_t rows : {16, 13, 5}) {
    Model single;
    const std::vector<float> expected = train(single, single, rows, loss);
    for (int devices = 1; devices <= 8; ++devices) {
      Model model;
      dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices)});
      CAPTURE(rows, devices);
      const std::vector<float> got = train(model, net, rows, loss);
      CHECK(std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("a transformer has the same bits on any number of devices") { check_bits<Transformer>(transformer_loss); }

TEST_CASE("recurrent layers have the same bits on any number of devices") { check_bits<Recurrences>(transformer_loss); }

TEST_CASE("an autoencoder has the same bits on any number of devices") { check_bits<Autoencoder>(autoencoder_loss); }
