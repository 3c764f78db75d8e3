// Prints the median time of a training step, in ms: see network_steps.py.
//
//     network_step NETWORK WIDTH DEVICES STEPS      NETWORK: transformer or mlp; DEVICES: of DataParallel, or 1
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/adam.h"
#include "lib/random.h"

namespace {

using namespace duet;

constexpr std::int64_t kSymbols = 80;

/// Of the transformer, by width; network_steps.py has them, too.
struct Sizes {
  explicit Sizes(std::int64_t w)
      : width(w),
        heads(w > 128 ? 8 : 4),
        length(w > 128  ? 128
               : w > 32 ? 64
                        : 32),
        batch(w > 256   ? 8
              : w > 128 ? 16
                        : 32) {}
  std::int64_t width, heads, length, batch;
};

struct Block final : nn::Module {
  explicit Block(const Sizes& s) : sizes(s) {
    register_module("norm1", norm1);
    register_module("in", in);
    register_module("out", out);
    register_module("norm2", norm2);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable all = nn::chain(context, x, {norm1, in});
    const auto heads = [&](std::int64_t i) {
      const Variable part = ops::slice(all, 2, i * sizes.width, (i + 1) * sizes.width);
      return ops::transpose(ops::reshape(part, {-1, sizes.length, sizes.heads, sizes.width / sizes.heads}), 1, 2);
    };
    const Variable seen = ops::scaled_dot_product_attention(heads(0), heads(1), heads(2), true);
    const Variable y =
        x + out.forward(context, ops::reshape(ops::transpose(seen, 1, 2), {-1, sizes.length, sizes.width}));
    return y + nn::chain(context, y, {norm2, wide, gelu, narrow});
  }
  using nn::Module::forward;
  Sizes sizes;
  nn::LayerNorm norm1{{sizes.width}}, norm2{{sizes.width}};
  nn::Linear in{sizes.width, 3 * sizes.width}, out{sizes.width, sizes.width}, wide{sizes.width, 4 * sizes.width},
      narrow{4 * sizes.width, sizes.width};
  nn::GELU gelu;
};

struct Transformer final : nn::Module {
  explicit Transformer(const Sizes& s) : sizes(s) {
    register_module("symbols", symbols);
    register_module("places", places);
    register_module("first", first);
    register_module("second", second);
    register_module("norm", norm);
    register_module("head", head);
    initialise(std::uint64_t{1});
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return nn::chain(context, symbols.forward(context, x) + places.weight(context), {first, second, norm, head});
  }
  using nn::Module::forward;
  Sizes sizes;
  nn::Embedding symbols{kSymbols, sizes.width}, places{sizes.length, sizes.width};
  Block first{sizes}, second{sizes};
  nn::LayerNorm norm{{sizes.width}};
  nn::Linear head{sizes.width, kSymbols};
};

std::unique_ptr<nn::Module> mlp(std::int64_t width) {
  auto net = std::make_unique<nn::Sequential>();
  for (int layer = 0; layer < 3; ++layer) {
    net->add<nn::Linear>(layer == 0 ? 784 : width, width);
    net->add<nn::ReLU>();
  }
  net->add<nn::Linear>(width, 10);
  net->initialise(std::uint64_t{1});
  return net;
}

double median_step(const std::string& network, std::int64_t width, int devices, int steps) {
  const bool is_mlp = network == "mlp";
  const Sizes sizes(width);
  const std::unique_ptr<nn::Module> model = is_mlp ? mlp(width) : std::make_unique<Transformer>(sizes);
  dp::DataParallel net(*model, {.devices = first_devices(DeviceKind::cpu, devices)});
  optim::AdamW opt(*model, {.lr = 0.01f});
  Mt19937 generator(1);
  const std::int64_t rows = is_mlp ? 128 : sizes.batch;
  Tensor x = is_mlp ? empty({rows, 784}) : empty({rows, sizes.length}, DType::i64);
  Tensor labels = empty(is_mlp ? Shape{rows} : x.shape(), DType::i64);
  if (is_mlp) generator.uniform(x.span<float>(), -1, 1);
  for (const Tensor& t : {x, labels})
    for (std::int64_t& n : t.dtype() == DType::i64 ? t.span<std::int64_t>() : std::span<std::int64_t>())
      n = generator.randint(0, is_mlp ? 10 : kSymbols);
  std::vector<double> ms;
  for (int step = -3; step < steps; ++step) {
    const std::int64_t begin = monotonic_ns();
    opt.zero_grad();
    ops::cross_entropy(net(x), labels).backward();
    opt.step();
    if (step >= 0) ms.push_back(static_cast<double>(monotonic_ns() - begin) / 1e6);
  }
  std::ranges::nth_element(ms, ms.begin() + steps / 2);
  return ms[static_cast<std::size_t>(steps / 2)];
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 5) throw duet::UsageError("usage: network_step transformer|mlp WIDTH DEVICES STEPS");
  std::printf("%.3f\n",
              median_step(arguments[1], std::stoll(arguments[2]), std::stoi(arguments[3]), std::stoi(arguments[4])));
} catch (const std::exception& error) {
  std::fprintf(stderr, "network_step: %s\n", error.what());
  return 1;
}
