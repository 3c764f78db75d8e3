// The toy of the DistributedDataParallel tutorial: alone, under DataParallel and under DistributedDataParallel, with a
// sampler that divides the points among ranks, and the parameters in a file that rank 0 writes and all ranks read.
//
//   toy_regression [MODE [FILE]]      MODE: single, dp or ddp
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include <duet/ddp/distributed_data_parallel.h>
#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/dp/data_parallel.h>
#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/io/safetensors.h>
#include <duet/lib/nn/chain.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/sgd.h>
#include <duet/lib/random.h>
#include <duet/samplers/distributed.h>

#include "program.h"

using namespace duet;

namespace {

class ToyModel : public nn::Sequential {
 public:
  ToyModel() {
    add<nn::Linear>(10, 10);
    add<nn::ReLU>();
    add<nn::Linear>(10, 5);
    initialise(1234);
  }
};

Tensor rows_of(const Tensor& all, std::span<const std::int64_t> indices) {
  const std::int64_t width = all.size(1);
  Tensor rows = empty({static_cast<std::int64_t>(indices.size()), width});
  float* to = rows.data<float>();
  for (const std::int64_t index : indices) to = std::copy_n(all.data<float>() + index * width, width, to);
  return rows;
}

/// `net` is the model itself, or a wrapper around it; `barrier` waits for the other ranks.
template <class Barrier>
void train(nn::Module& model, nn::Module& net, int rank, int ranks, const std::string& file, const Barrier& barrier) {
  Mt19937 generator(0);
  Tensor x = empty({20, 10}), y = empty({20, 5});
  generator.randn(x.span<float>());
  generator.randn(y.span<float>());
  const auto say = [&](const char* when) {
    const NoGrad no_grad;
    const float loss = ops::mse_loss(model(x), y).item();
    if (rank == 0) std::printf("%s: loss of all points %.4f\n", when, static_cast<double>(loss));
  };
  say("untrained");
  optim::SGD opt(model, {.lr = 0.1f});
  samplers::DistributedSampler sampler(x.size(0), {.world_size = ranks, .rank = rank});
  for (int epoch = 0; epoch < 20; ++epoch) {
    sampler.set_epoch(epoch);
    opt.zero_grad();
    const Variable outputs = net(rows_of(x, sampler.indices()));
    const Variable loss = ops::mse_loss(outputs, rows_of(y, sampler.indices()));
    loss.backward();
    opt.step();
  }
  say("trained");
  if (file.empty()) return;
  if (rank == 0) save_tensors(file, model.state_dict());
  barrier();
  model.initialise(0);
  model.load_state_dict(load_tensors(file).tensors);
  say("read from the file");
}

int run(const std::string& mode, const std::string& file) {
  const auto alone = [] {};
  if (mode == "ddp")
    return ddp::spawn(
        [&](int) {
          const auto group = ddp::init_process_group();
          ToyModel model;
          ddp::DistributedDataParallel net(model, *group);
          train(model, net, group->rank(), group->size(), file, [&] { group->barrier().wait(); });
        },
        2);
  ToyModel model;
  if (mode == "dp") {
    const auto devices = first_devices(DeviceKind::cpu, 2);
    dp::DataParallel net(model, {.devices = devices});
    train(model, net, 0, 1, file, alone);
  } else {
    require<UsageError>(mode.empty() || mode == "single", "got '", mode, "', expected single, dp or ddp");
    train(model, model, 0, 1, file, alone);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "[MODE [FILE]]      MODE: single, dp or ddp; FILE: for the parameters",
                       [](const examples::Arguments& arguments) { return run(arguments.text(0), arguments.text(1)); });
}
