// A user-defined communication hook: gradients summed in double precision, compared with all_reduce and compression
// to 16 bits. Trains SimpleCNN on drawn digits on two ranks, three times.
//
//   comm_hook
#include <cstdio>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <duet/ddp/distributed_data_parallel.h>
#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/data/mnist/drawn_digits.h>
#include <duet/lib/nn/simple_cnn.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/sgd.h>
#include <duet/samplers/batch.h>
#include <duet/samplers/random.h>

#include "program.h"

using namespace duet;

namespace {

/// Rounds once, after the sum, instead of after every addition; sends twice as many bytes.
class DoubleHook final : public ddp::CommHook {
 public:
  ddp::Work start(ddp::ProcessGroup& group, const ddp::GradBucket& bucket) override {
    sums_.resize(static_cast<std::size_t>(bucket.count));
    std::vector<double>& sums = sums_[static_cast<std::size_t>(bucket.index)];
    const auto* const gradients = static_cast<const float*>(bucket.gradients.data);
    sums.assign(gradients, gradients + bucket.gradients.count);
    return group.all_reduce(std::span(sums));  // in the background, while backward goes on
  }
  void finish(ddp::ProcessGroup&, const ddp::GradBucket& bucket) override {
    auto* gradient = static_cast<float*>(bucket.gradients.data);
    for (const double sum : sums_[static_cast<std::size_t>(bucket.index)]) *gradient++ = static_cast<float>(sum);
  }

 private:
  std::vector<std::vector<double>> sums_;  // by bucket: several may be under way
};

void train(const char* name, ddp::ProcessGroup& group, std::shared_ptr<ddp::CommHook> hook) {
  nn::SimpleCNN model(1234);
  ddp::DistributedDataParallel net(model, group, {.comm_hook = std::move(hook)});
  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  const data::ImageDataset digits = data::draw_digits(1, 2048);
  auto order = std::make_unique<samplers::RandomSampler>(digits.size(), 1234);
  const samplers::BlockedOptions batches{.global_batch = 64, .world_size = group.size(), .rank = group.rank()};
  data::Loader loader(digits, std::make_unique<samplers::BlockedBatches>(std::move(order), batches));
  float last = 0;
  for (auto& [images, labels] : loader) {
    opt.zero_grad();
    auto loss = ops::nll_loss(net(images), labels);
    loss.backward();
    opt.step();
    last = loss.item();
  }
  group.all_reduce({&last, 1, DType::f32}, ddp::ReduceOp::avg).wait();
  if (group.rank() == 0) std::printf("%-12s loss of the last batch %.1f\n", name, static_cast<double>(last));
}

void run(int /*rank*/) {
  const auto group = ddp::init_process_group();
  train("all_reduce", *group, nullptr);
  train("bf16", *group, std::make_shared<ddp::CompressionHook>(ddp::HalfFormat::bf16));
  train("double", *group, std::make_shared<DoubleHook>());
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "", [](const examples::Arguments&) { return ddp::spawn(run, 2); });
}
