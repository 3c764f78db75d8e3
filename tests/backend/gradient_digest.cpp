// Prints a digest of gradients and log-probabilities computed with so many threads for the device. The number of
// threads is fixed before the first kernel, so each needs a process of its own.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <span>
#include <string>

#include "lib/base/sha256.h"
#include "tests/backend/bits.h"

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

}  // namespace

int main(int, char** arguments) {
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
