// Bit-equality of gradients over shards and threads: what "the same parameters on 1, 2, 4, 8 devices" rests on.
#include <cstdint>
#include <vector>

#include "tests/backend/bits.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("gradients of 2, 4 and 8 shards sum to the very bits of the whole batch") {
  nn::SimpleCNN model(1234);
  Mt19937 generator(31);
  std::vector<std::int64_t> sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 96, 100, 128};
  for (int i = 0; i < 4; ++i) sizes.push_back(generator.randint(10, 70));
  for (const bool fused : {true, false}) {
    model.set_fused(fused);
    for (const std::int64_t rows : sizes) {
      if (!fused && rows > 20) continue;
      const Batch batch = random_batch(rows, static_cast<std::uint64_t>(rows));
      const Tensor whole = gradient_of(model, batch);
      for (const int shards : {2, 4, 8}) {
        CAPTURE(fused, rows, shards);
        CHECK(same_bits(whole, gradient_in_shards(model, batch, shards)));
      }
    }
  }
}

TEST_CASE("other numbers of shards give the same gradients to rounding") {
  nn::SimpleCNN model(1234);
  for (const std::int64_t rows : {2, 7, 50, 100}) {
    const Batch batch = random_batch(rows, 77);
    const Tensor whole = gradient_of(model, batch);
    for (const int shards : {3, 5, 6, 7}) {
      CAPTURE(rows, shards);
      CHECK(largest_difference(whole, gradient_in_shards(model, batch, shards)) < 1e-5f);
    }
  }
}

TEST_CASE("the comparison of bits sees dropout that counts its rows from the shard") {
  // A shard that forgot its place in the batch drops other elements: the gradients are far apart, not just unequal.
  nn::SimpleCNN model(1234);
  const Batch batch = random_batch(16, 5);
  Tensor images = batch.images.rows(8, 16), labels = batch.labels.rows(8, 16);
  const Tensor right = gradient_of(model, {images, labels});
  images.set_stamp({3, 0, 16});
  labels.set_stamp({3, 0, 16});
  CHECK(largest_difference(right, gradient_of(model, {images, labels})) > 1e-2f);
}
