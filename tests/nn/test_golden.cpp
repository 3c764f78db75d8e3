// Numbers that PyTorch gives, bit for bit where its own are fixed. They were taken from PyTorch 1.13 and 2.15.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "tests/support/catch2.h"

using namespace duet;
using duet_test::Approx;

namespace {

/// x[i] = ((37 i % 256) / 255 - 0.1307) / 0.3081, four images.
Tensor fixed_images() {
  Tensor x = empty({4, 1, 28, 28});
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.data<float>()[i] = static_cast<float>((static_cast<double>(37 * i % 256) / 255 - 0.1307) / 0.3081);
  return x;
}

Tensor fixed_labels() { return from_values<std::int64_t>({4}, {3, 1, 4, 1}); }

/// Digest of all parameters in the order of registration.
std::string digest(nn::Module& model) {
  Sha256 sha;
  for (int slot = 0; slot < model.parameters().slot_count(); ++slot)
    sha.update(std::as_bytes(model.parameters().value(slot).span<float>()));
  return sha.hex();
}

Approx close(double value) { return Approx(value).epsilon(2e-5); }

/// Mt19937::uniform from -bound to bound, but with the last step rounded after the product, too.
void uniform_rounded_twice(Mt19937& generator, std::span<float> out, double bound) {
  const auto low = static_cast<float>(-bound), width = static_cast<float>(bound) - low;
  generator.uniform(out, 0, 1);
  for (float& value : out) value = value * width + low;  // the build contracts no floating-point operations
}

}  // namespace

TEST_CASE("SimpleCNN's initial weights are PyTorch's, bit for bit") {
  nn::SimpleCNN model(1234);
  std::int64_t count = 0;
  for (int slot = 0; slot < model.parameters().slot_count(); ++slot) count += model.parameters().value(slot).count();
  CHECK(count == 421642);
  const std::vector<std::pair<int, std::vector<std::uint32_t>>> expected = {
      {0, {0xbea0c66c, 0xbd85f0f0, 0xbe23f246, 0xbdb6143b}}, {1, {0x3e09f848, 0xbc8d042b, 0xbe2b99f6, 0xbdcbc0c6}},
      {2, {0x3c904a6b, 0x3d53eac6, 0x3cfec00c, 0xbcd33fa9}}, {4, {0xbc7f29dc, 0x3c743fae, 0xbc83bd8e, 0xbb912aee}},
      {6, {0xbc80c41a, 0xbd0afd31, 0xbcf28021, 0x3da8a4a1}}, {7, {0xbca8e466, 0x3c10011a, 0xbca2d255, 0x3dac0114}}};
  for (const auto& [slot, bits] : expected)
    for (std::size_t i = 0; i < bits.size(); ++i)
      CHECK(std::bit_cast<std::uint32_t>(model.parameters().value(slot).data<float>()[i]) == bits[i]);
  CHECK(digest(model) == "1f737b7c2591f10bec1c931484487411ef2af95110eb529c15bbe83a8a50db91");
}

TEST_CASE("a convolution in groups has PyTorch's initial weights, bit for bit, and its values") {
  // torch.manual_seed(1234); c = Conv2d(6, 9, 3, stride=2, padding=1, groups=3);
  // y = c(torch.sin(torch.arange(192.)).view(2, 6, 4, 4)), torch 2.15.0
  nn::Sequential model;
  model.add<nn::Conv2d>(6, 9, 3, nn::Conv2dOptions{.stride = 2, .padding = 1, .groups = 3});
  model.initialise(std::uint64_t{1234});
  CHECK(digest(model) == "fc4da9f421df249767d83dce3738a56e01cbb66dc368fba185f95f2350be07fb");
  Tensor x = empty({2, 6, 4, 4});
  for (std::int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = std::sin(static_cast<float>(i));
  const Variable y = model(x);
  const float first[] = {.1366618424f, -.1128721535f, .0652181580f, .1128433421f};
  for (int i = 0; i < 4; ++i) CHECK(std::abs(y.value().data<float>()[i] - first[i]) < 1e-6f);
  double total = 0;
  for (const float value : y.value().span<float>()) total += std::abs(static_cast<double>(value));
  CHECK(total == Approx(23.681549564).epsilon(1e-6));
}

TEST_CASE("a transposed convolution, an embedding and a layer norm have PyTorch's initial weights and values") {
  // torch.manual_seed(1234); c = ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2);
  // y = c(torch.sin(torch.arange(72.)).view(2, 4, 3, 3)), torch 2.15.0
  const auto sines = [](const Shape& shape) {
    Tensor x = empty(shape);
    for (std::int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = std::sin(static_cast<float>(i));
    return x;
  };
  nn::ConvTranspose2d conv(4, 6, 3, {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
  conv.initialise(std::uint64_t{1234});
  CHECK(digest(conv) == "39dc74089d139369392c733a4a4dd87bb911ff7aa104c2c8ce93765333df3144");
  const Variable y = ops::to_plain(conv(sines({2, 4, 3, 3})));
  CHECK(y.shape() == Shape{2, 6, 6, 6});
  const float first[] = {-.1936819702f, -.1995118856f, -.2757684290f, -.2736451030f};
  for (int i = 0; i < 4; ++i) CHECK(std::abs(y.value().data<float>()[i] - first[i]) < 1e-6f);
  // torch.manual_seed(1234); Embedding(5, 3); of 16 numbers and more the last bits are the machine's: Embedding(10, 7).
  nn::Embedding small(5, 3), large(10, 7);
  small.initialise(std::uint64_t{1234});
  large.initialise(std::uint64_t{1234});
  CHECK(digest(small) == "b9145dad298adc9ed09066e1cb25ea4e685059492fe5bd768aa4f6845c55509b");
  const float numbers[] = {-.1117185652f, -.4965901077f, .1630737036f, -.8816877604f};
  for (int i = 0; i < 4; ++i) CHECK(std::abs(large.parameters().value(0).data<float>()[i] - numbers[i]) < 1e-6f);
  CHECK(small(Variable(from_values<std::int64_t>({2}, {4, 0}))).value().data<float>()[3] ==
        small.parameters().value(0).data<float>()[0]);
  // LayerNorm(5)(torch.sin(torch.arange(10.)).view(2, 5))
  nn::LayerNorm norm({5});
  const Variable z = norm(sines({2, 5}));
  const float normalised[] = {-.37122011f, 1.00475919f, 1.11566961f, -.14045969f, -1.60874903f};
  for (int i = 0; i < 5; ++i) CHECK(std::abs(z.value().data<float>()[i] - normalised[i]) < 1e-6f);
}

TEST_CASE("the same without fused rounding are those of PyTorch for processors without AVX2") {
  nn::SimpleCNN model(1234);
  Mt19937 generator(1234);
  for (int slot = 0; slot < 8; slot += 2) {
    const auto fan_in = static_cast<double>(model.parameters().value(slot).shape().count_from(1));
    const double bound = std::sqrt(3.0) * (std::sqrt(2.0 / 6.0) / std::sqrt(fan_in));
    uniform_rounded_twice(generator, model.parameters().value(slot).span<float>(), bound);
    uniform_rounded_twice(generator, model.parameters().value(slot + 1).span<float>(), 1 / std::sqrt(fan_in));
  }
  CHECK(digest(model) == "f526e1a39bb7ffbc2b4be3ef7177a32d1322f558801a546d00b84fa740138181");
}

TEST_CASE("construction leaves the generator where PyTorch's is") {
  Mt19937 generator(1234);
  const nn::SimpleCNN model(generator);
  CHECK(generator.random_int64() == 551746818273622095);
}

TEST_CASE("SimpleCNN's forward, loss and gradients on fixed images are PyTorch's") {
  for (const bool fused : {true, false}) {
    nn::SimpleCNN model(1234);
    model.context().fuse = fused;
    model.eval();
    const Variable y = model(fixed_images());
    const float row[] = {-2.342586f, -2.293986f, -2.316692f, -2.286713f, -2.092657f,
                         -2.368055f, -2.431910f, -2.095010f, -2.442295f, -2.431126f};
    for (std::size_t i = 0; i < 10; ++i) CHECK(std::abs(y.value().data<float>()[i] - row[i]) < 2e-6f);
    const Variable loss = ops::nll_loss(y, fixed_labels());
    CHECK(loss.item() == Approx(2.2362251).epsilon(1e-6));
    loss.backward();
    const double norms[] = {.281918, .06125634, 1.736314, .1268964, 5.398181, .2310705, 1.025688, .5134571};
    for (int slot = 0; slot < 8; ++slot) {
      double squares = 0;
      const Tensor gradient = model.parameters().gradient(slot);
      for (const float g : gradient.span<float>()) squares += static_cast<double>(g) * static_cast<double>(g);
      CAPTURE(slot);
      CHECK(std::sqrt(squares) == close(norms[slot]));
    }
  }
}

TEST_CASE("five steps of SGD are PyTorch's, without dropout and with its stream of dropout") {
  struct Run {
    bool training;
    std::vector<double> losses;
  };
  for (const Run& run : {Run{false, {2.236225, 1.944793, 1.639372, 1.362535, 1.178595}},
                         Run{true, {2.382869, 1.987143, 1.573214, 1.476657, 1.255103}}}) {
    Mt19937 generator(1234);
    nn::SimpleCNN model(generator);
    model.train(run.training);
    model.context().stream = &generator;
    optim::SGD opt(model, {.lr = 0.01f, .momentum = 0.5f});
    for (const double expected : run.losses) {
      opt.zero_grad();
      const Variable loss = ops::nll_loss(model(fixed_images()), fixed_labels());
      CAPTURE(run.training);
      CHECK(loss.item() == close(expected));
      loss.backward();
      opt.step();
    }
  }
}
