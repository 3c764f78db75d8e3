// Threads that compute on one CPU device at the same time.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/rank_threads.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "tests/ddp/train.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

constexpr std::int64_t kSharedRows = 32;
constexpr int kRounds = 10;  // of three steps: sharing scratch memory showed in the first

/// A user's own network. It does not say on which device it is.
class Net : public nn::Module {
 public:
  explicit Net(std::uint64_t seed) {
    register_module("conv", conv_);
    register_module("hidden", hidden_);
    register_module("out", out_);
    initialise(seed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable image = pool_.forward(context, relu_.forward(context, conv_.forward(context, x)));
    const Variable hidden = relu_.forward(context, hidden_.forward(context, flatten_.forward(context, image)));
    return log_softmax_.forward(context, out_.forward(context, hidden));
  }
  using Module::forward;

 protected:
  std::string type_name() const override { return "Net"; }

 private:
  nn::Conv2d conv_{1, 16, 3, {.padding = 1}};
  nn::MaxPool2d pool_{2};
  nn::ReLU relu_;
  nn::Flatten flatten_;
  nn::Linear hidden_{16 * 14 * 14, 64}, out_{64, 10};
  nn::LogSoftmax log_softmax_;
};

template <class Model>
std::string trained_alone() {
  Model model(kSeed);
  train(model, model, kSharedRows, 0, 1);
  return fingerprint(model);
}

}  // namespace

TEST_CASE("rank threads that name no device train with the bits of one device") {
  const std::string single = trained_alone<Net>();
  for (const int size : {2, 4})
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::string> prints(static_cast<std::size_t>(size));
      run_rank_threads(size, [&](ProcessGroup& group) {
        Net model(kSeed);
        DistributedDataParallel net(model, group);
        train(model, net, kSharedRows, group.rank(), size);
        prints[static_cast<std::size_t>(group.rank())] = fingerprint(model);
      });
      REQUIRE(prints == std::vector<std::string>(prints.size(), single));
    }
}

TEST_CASE("threads train models of their own on one device at the same time") {
  const std::string single = trained_alone<nn::SimpleCNN>();
  for (int round = 0; round < kRounds; ++round) {
    nn::SimpleCNN first(kSeed), second(kSeed);  // made on this thread, trained on others
    std::thread one([&] { train(first, first, kSharedRows, 0, 1); });
    std::thread other([&] { train(second, second, kSharedRows, 0, 1); });
    one.join();
    other.join();
    REQUIRE(fingerprint(first) == single);
    REQUIRE(fingerprint(second) == single);
  }
}
