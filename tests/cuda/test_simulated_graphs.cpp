// Recordings of steps that fail, on simulated devices.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/backend/step_graph.h"
#include "tests/cuda/small_cnn.h"
#include "tests/cuda/training.h"
#include "tests/support/fake_cuda/simulator.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Where a recording may fail: at its start, at its end, and while it runs.
const std::vector<std::string> kFailures = {"cudaStreamBeginCapture:1", "cudaStreamEndCapture:1",
                                            "cudaGraphInstantiate:1", "cublasSgemm:1"};

/// Two epochs of three batches; the third step is the first that is recorded, and the failure is set before it.
struct Run {
  explicit Run(Training& training, const std::string& failure) {
    std::int64_t done = 0;
    for (int epoch = 0; epoch < 2; ++epoch)
      losses.push_back(training.epoch([&](Training&) {
        if (++done == 2 && !failure.empty()) duet_sim::set_failures(failure);
      }));
    duet_sim::set_failures("");
  }
  std::vector<float> losses;
};

}  // namespace

DUET_CUDA_TEST("simulated: a recording that fails is an error, or leaves plain steps and a remark") {
  Training plain(cnn(), 12, 4, false);
  const Run expected(plain, "");
  std::optional<std::size_t> used;  // after the first, which makes the handles of branches
  for (const std::string& failure : kFailures) {
    CAPTURE(failure);
    {
      Training strict(cnn(), 12, 4, true), tolerant(cnn(), 12, 4, true);
      CHECK_THROWS_AS(Run(strict, failure), DeviceError);
      std::vector<std::string> remarks;
      tolerant.graph().fall_back([&](const std::string& why) { remarks.push_back(why); });
      CHECK(Run(tolerant, failure).losses == expected.losses);
      CHECK(same_values(tolerant, plain));
      REQUIRE(remarks.size() == 1);
      CHECK_THAT(remarks[0], ContainsSubstring("cuda: "));
      CHECK(tolerant.graph().replays() == 0);
    }
    const std::size_t now = backend(DeviceKind::cuda).use(kGpu).used;
    CHECK(used.value_or(now) == now);
    used = now;
  }
  // Where a recording fails after others, these go, too.
  Training late(cnn(), 12, 4, true);
  std::vector<std::string> remarks;
  late.graph().fall_back([&](const std::string& why) { remarks.push_back(why); });
  CHECK(Run(late, "cudaGraphInstantiate:2").losses == expected.losses);
  CHECK(remarks.empty());
  Training same(cnn(), 12, 4, false);
  Run(same, "");
  for (Training* training : {&late, &same}) training->optimizer().set_lr(0.02f);
  duet_sim::set_failures("cudaGraphInstantiate:1");
  CHECK(late.epoch() == same.epoch());
  CHECK(same_values(late, same));
  CHECK(remarks.size() == 1);
  duet_sim::set_failures("");
}

DUET_CUDA_TEST("simulated: DataParallel goes on with plain steps where its recording fails") {
  const std::vector<Device> devices = {kGpu, {DeviceKind::cuda, 1}};
  const auto train = [&](bool recorded, const std::string& failure) {
    Training training(cnn(), 12, 4, recorded, {.devices = devices});
    int remarks = 0;
    if (recorded) training.graph().fall_back([&](const std::string&) { ++remarks; });
    const Run run(training, failure);
    CHECK(remarks == (failure.empty() ? 0 : 1));
    return training.values();
  };
  const std::vector<double> expected = train(false, "");
  for (const std::string& failure : kFailures) {
    CAPTURE(failure);
    CHECK(train(true, failure) == expected);
  }
}
