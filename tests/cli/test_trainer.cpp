#include <functional>
#include <span>
#include <string>
#include <vector>

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

/// Trains as the first of two ranks, of which the other one says what `other` makes of this one's texts.
Run train_beside(const std::function<std::string(const std::string&)>& other) {
  const TrainOptions options = small();
  const Images images = find_images(options);
  ddp::SoloGroup alone;
  Setup setup = make_setup(options, *images.train, alone);
  Team team{.rank = 0, .size = 2};
  team.sum = [](std::span<double> numbers) {
    for (double& number : numbers) number *= 2;
  };
  team.gather = [&](const std::string& text) { return std::vector<std::string>{text, other(text)}; };
  return train_and_report(options, images, setup, team, monotonic_ns()).run;
}

}  // namespace

TEST_CASE("ranks that are threads end after the same step, wherever a signal finds them") {
  CommonEnd end;
  CHECK_FALSE(end.comes(0, false));  // the one rank
  CHECK_FALSE(end.comes(0, false));  // the other
  CHECK_FALSE(end.comes(1, false));
  CHECK_FALSE(end.comes(1, true));
  CHECK(end.comes(2, true));
  CHECK(end.comes(2, true));
  CHECK(end.comes(3, true));
}

TEST_CASE("ranks that drifted apart are found at the end of the epoch") {
  CHECK(train_beside([](const std::string& text) { return text; }).peak_memory_mb.size() == 2);
  CHECK_THROWS_WITH(train_beside([](const std::string& text) { return text + "x"; }),
                    duet_test::ContainsSubstring("after step 3 of the epoch rank 1 holds parameters with sha256"));
}
