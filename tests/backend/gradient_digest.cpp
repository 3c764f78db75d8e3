// Prints a digest of what was computed with so many threads for the device, or with the instruction set of that name.
// Both are fixed before the first kernel, so each needs a process of its own. Exits with 77 if the machine lacks the
// set.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/sha256.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "tests/backend/bits.h"
#include "tests/support/transformer.h"

using namespace duet;

namespace {

std::string digest() {
  nn::SimpleCNN model(1234);
  Sha256 sha;
  for (const bool fused : {true, false}) {
    model.context().fuse = fused;
    for (const std::int64_t rows : {5, 9, 33}) {
      const duet_test::Batch batch = duet_test::random_batch(rows, 99);
      sha.update(std::as_bytes(duet_test::gradient_of(model, batch).span<float>()));
      sha.update(std::as_bytes(model(batch.images).value().span<float>()));
    }
  }
  return sha.hex();
}

/// Parameters after a few steps of a transformer and of an autoencoder with dropout, relu and sigmoid.
std::string digest_without_convolutions() {
  const duet_test::TransformerSizes sizes = {.width = 26, .heads = 2, .length = 9, .symbols = 11};
  nn::Sequential net(std::make_unique<duet_test::CausalTransformer>(sizes, 5), std::make_unique<nn::Flatten>(),
                     std::make_unique<nn::Linear>(sizes.length * sizes.symbols, 70), std::make_unique<nn::ReLU>(),
                     std::make_unique<nn::Dropout>(0.5), std::make_unique<nn::Linear>(70, 300),
                     std::make_unique<nn::Tanh>(), std::make_unique<nn::Linear>(300, 13),
                     std::make_unique<nn::Sigmoid>());
  net.initialise(std::uint64_t{5});
  optim::Adam opt(net, {.lr = 0.01f});
  Mt19937 generator(6);
  for (std::int64_t step = 1; step <= 4; ++step) {
    Tensor symbols = empty({19, sizes.length}, DType::i64), target = empty({19, 13});
    for (std::int64_t& symbol : symbols.span<std::int64_t>()) symbol = generator.randint(0, sizes.symbols);
    generator.uniform(target.span<float>(), 0, 1);
    symbols.set_stamp({step, 0, 19});
    target.set_stamp({step, 0, 19});
    opt.zero_grad();
    ops::mse_loss(net(symbols), target).backward();
    opt.step();
  }
  Sha256 sha;
  sha.update(std::as_bytes(net.parameters().values().span<float>()));
  return sha.hex();
}

int print_with_instruction_set(const char* name) {
  ::setenv("DUET_ISA", name, 1);
  try {
    std::printf("%s\n", digest_without_convolutions().c_str());
    return 0;
  } catch (const UsageError& error) {
    std::puts(error.what());
    return 77;
  }
}

}  // namespace

int main(int, char** arguments) {
  if (std::string_view(arguments[1]).starts_with("avx") || std::string_view(arguments[1]) == "generic")
    return print_with_instruction_set(arguments[1]);
  const int threads = std::atoi(arguments[1]);
  backend(DeviceKind::cpu).set_threads_per_device(threads);
  auto concurrent = std::async(std::launch::async, digest);  // on the same device at the same time
  const std::string own = digest();
  if (concurrent.get() != own) {
    std::puts("two threads that computed at the same time differ");
    return 1;
  }
  try {
    backend(DeviceKind::cpu).set_threads_per_device(threads + 1);
    std::puts("threads were changed after the first kernel");
    return 1;
  } catch (const UsageError&) {
  }
  std::printf("%s\n", own.c_str());
}
