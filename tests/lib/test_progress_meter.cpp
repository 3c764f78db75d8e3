#include <cmath>

#include "lib/base/progress_meter.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("a line of progress is that of PyTorch's ImageNet program") {
  AverageMeter time("Time", {.width = 6, .precision = 3}), loss("Loss", {.precision = 4, .scientific = true}),
      top1("Acc@1", {.width = 6, .precision = 2});
  const ProgressMeter progress("Epoch: [3]", 391, {&time, &loss, &top1});
  time.add(0.25);
  loss.add(4 * 2.0, 4);
  top1.add(100, 4);
  time.add(0.5);
  loss.add(12 * 1.0, 12);
  top1.add(1200, 12);
  CHECK(progress.line(11) ==
        "Epoch: [3][ 11/391]\tTime  0.500 ( 0.375)\tLoss 1.0000e+00 (1.2500e+00)\tAcc@1 100.00 ( 81.25)");
  CHECK(progress.line(391).starts_with("Epoch: [3][391/391]\t"));
  CHECK(top1.summary() == "Acc@1 81.250");
}

TEST_CASE("meters add up over ranks, and batches without rows count nothing") {
  AverageMeter meter("Acc@5");
  CHECK(std::isnan(meter.average()));
  meter.add(300, 4);
  meter.add(std::nan(""), 0);
  CHECK(meter.str() == "Acc@5 75.000000 (75.000000)");
  meter.set(meter.sum() + 100, meter.count() + 4);
  CHECK(meter.average() == 50.0);
  CHECK_THROWS_AS(meter.add(1, -1), UsageError);
  CHECK_THROWS_AS(meter.set(1, -1), UsageError);
}
