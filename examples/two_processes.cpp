// The scaffold of every distributed program: two processes with a rendezvous. First they pass a number on, then they
// fit a line together, each to its own half of the points.
#include <cstdint>
#include <cstdio>
#include <span>

#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/ddp/tutorial.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/sgd.h>

#include "in_order.h"
#include "program.h"

using namespace duet;

namespace {

void pass_a_number(ddp::ProcessGroup& group) {
  float number = 0;
  const std::span<float> buffer(&number, 1);
  if (group.rank() == 0) {
    number += 1;
    group.send(buffer, 1).wait();
  } else {
    group.recv(buffer, 0).wait();
  }
  char line[64];
  std::snprintf(line, sizeof line, "Rank  %d  has data  %.1f", group.rank(), static_cast<double>(number));
  examples::print_in_order(group, line);
}

void fit_a_line(ddp::ProcessGroup& group) {
  // 16 points of y = 2 x - 1; rank r has those from 8 r on.
  Tensor x = empty({8, 1}), y = empty({8, 1});
  for (std::int64_t i = 0; i < 8; ++i) {
    const float at = static_cast<float>(group.rank() * 8 + i) / 8;
    x.data<float>()[i] = at;
    y.data<float>()[i] = 2 * at - 1;
  }
  nn::Linear model(1, 1);
  model.initialise(1234);  // the same seed, so the replicas start equal
  optim::SGD opt(model, {.lr = 0.1f, .momentum = 0.5f});
  for (int epoch = 0; epoch < 100; ++epoch) {
    opt.zero_grad();
    const Variable loss = ops::mse_loss(model(x), y);
    loss.backward();
    ddp::average_gradients(model, group);  // without this line each rank would fit its own half only
    opt.step();
    if (epoch % 25 != 0) continue;
    char line[64];
    std::snprintf(line, sizeof line, "Rank  %d , epoch  %d :  %.2f", group.rank(), epoch,
                  static_cast<double>(loss.item()));
    examples::print_in_order(group, line);
  }
  const std::span<float> weight = model.parameters().value(0).span<float>();
  const std::span<float> bias = model.parameters().value(1).span<float>();
  char line[64];
  std::snprintf(line, sizeof line, "Rank  %d  has learned y = %.2f x %+.2f", group.rank(),
                static_cast<double>(weight[0]), static_cast<double>(bias[0]));
  examples::print_in_order(group, line);
}

void run(int /*rank*/) {
  // The tutorial starts its processes and joins them one after the other, so that a failed rank leaves the other one
  // waiting for minutes. spawn() ends all as soon as one has failed, and says which.
  const auto group = ddp::init_process_group();
  pass_a_number(*group);
  fit_a_line(*group);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "", [](const examples::Arguments&) { return ddp::spawn(run, 2); });
}
