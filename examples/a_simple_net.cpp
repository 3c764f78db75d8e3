// ASimpleNet on four devices: one training step of a batch of 16, four rows in each replica.
#include <iostream>
#include <string>

#include <duet/dp/data_parallel.h>
#include <duet/lib/nn/simple_cnn.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/sgd.h>

#include "in_order.h"
#include "program.h"

using namespace duet;

namespace {

/// The network of lib/nn, which also says how many rows it was given.
///
/// The tutorial writes `x = self.linears(x)` with a ModuleList. That raises NotImplementedError, in PyTorch and here: a
/// ModuleList only holds its children. Meant was a Sequential, or a loop over the layers; lib/nn/simple_cnn.cpp loops.
class ASimpleNet : public nn::ASimpleNet {
 public:
  explicit ASimpleNet(examples::ReplicaLines& lines) : lines_(lines) {}
  Variable forward(nn::Context& context, const Variable& x) const override {
    lines_.add(x.device(), "forward batchsize is: " + std::to_string(x.shape()[0]));
    return nn::ASimpleNet::forward(context, x);
  }
  using nn::Module::forward;

 private:
  examples::ReplicaLines& lines_;
};

void run() {
  // The tutorial prints "CUDA_VISIBLE_DEVICES :3, 2, 1, 0": device 0 of the program is the first one listed there.
  const auto devices = first_devices(DeviceKind::cpu, 4);
  std::cout << "devices :";
  for (const Device device : devices) std::cout << (device == devices.front() ? "" : ", ") << device;
  std::cout << '\n';

  Mt19937 generator(1234);
  Tensor inputs = empty({16, 3}), labels = empty({16, 3});
  generator.randn(inputs.span<float>());
  generator.randn(labels.span<float>());

  examples::ReplicaLines lines;
  ASimpleNet model(lines);
  model.initialise(1234);
  dp::DataParallel net(model, {.devices = devices});
  optim::SGD opt(model, {.lr = 0.01f});

  opt.zero_grad();
  const Variable outputs = net(inputs);
  lines.print();
  const Variable loss = ops::mse_loss(outputs, labels);  // over the whole batch, on the first device
  loss.backward();
  opt.step();
  std::cout << "outputs " << outputs.shape() << ", gradients summed on " << devices.front() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "", [](const examples::Arguments&) { run(); });
}
