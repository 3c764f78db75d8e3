// The loop with nothing around it: a linear layer, the squared error and SGD on two tensors, without a loader.
#include <cstdio>

#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/sgd.h>
#include <duet/lib/random.h>

using namespace duet;

int main() {
  Mt19937 generator(0);
  nn::Linear model(10, 5);
  model.initialise(generator);
  optim::SGD opt(model, {.lr = 0.1f});
  Tensor x = empty({20, 10}), y = empty({20, 5});
  generator.randn(x.span<float>());
  generator.randn(y.span<float>());
  for (int step = 0; step < 5; ++step) {
    opt.zero_grad();
    const Variable loss = ops::mse_loss(model(x), y);
    loss.backward();
    opt.step();
    std::printf("step %d  loss %.4f\n", step, static_cast<double>(loss.item()));
  }
}
