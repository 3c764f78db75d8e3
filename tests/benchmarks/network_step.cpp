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
#include "lib/optim/adam.h"
#include "lib/random.h"
#include "tests/support/transformer.h"

namespace {

using namespace duet;

constexpr std::int64_t kSymbols = 80;

/// By width; network_steps.py has them, too.
duet_test::TransformerSizes sizes_of(std::int64_t width) {
  const std::int64_t heads = width > 128 ? 8 : 4;
  const std::int64_t length = width > 128 ? 128 : width > 32 ? 64 : 32;
  return {.width = width, .heads = heads, .length = length, .symbols = kSymbols, .blocks = 2};
}

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
  const duet_test::TransformerSizes sizes = sizes_of(width);
  const std::unique_ptr<nn::Module> model =
      is_mlp ? mlp(width) : std::make_unique<duet_test::CausalTransformer>(sizes, std::uint64_t{1});
  dp::DataParallel net(*model, {.devices = first_devices(DeviceKind::cpu, devices)});
  optim::AdamW opt(*model, {.lr = 0.01f});
  Mt19937 generator(1);
  const std::int64_t rows = is_mlp ? 128 : width > 256 ? 8 : width > 128 ? 16 : 32;
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
