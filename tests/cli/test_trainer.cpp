#include "cli/trainer.h"
#include "ddp/solo_group.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;

namespace {

TrainOptions small() {
  TrainOptions options;
  options.mode = Mode::ddp;
  options.model = "linear";
  options.data = "synthetic";
  options.train_images = 40;
  options.test_images = 10;
  options.batch = 16;
  options.epochs = 1;
  return options;
}

/// Trains as the first of two ranks whose sums are made by `sum`.
Run train_beside(const std::function<void(std::span<double>)>& sum) {
  const TrainOptions options = small();
  const Images images = find_images(options);
  ddp::SoloGroup alone;
  Setup setup = make_setup(options, *images.train, alone);
  return train_and_report(options, images, setup, {.rank = 0, .size = 2, .sum = sum}, monotonic_ns()).run;
}

}  // namespace

TEST_CASE("ranks that drifted apart are found at the end of the epoch") {
  const auto twin = [](std::span<double> numbers) {
    for (double& number : numbers) number *= 2;
  };
  const auto drifted = [](std::span<double> numbers) {
    for (double& number : numbers) number = 2 * number + (numbers.size() == 8 ? 1 : 0);
  };
  CHECK(train_beside(twin).peak_memory_mb.size() == 2);
  CHECK_THROWS_WITH(train_beside(drifted), duet_test::ContainsSubstring("the ranks hold different parameters"));
}
