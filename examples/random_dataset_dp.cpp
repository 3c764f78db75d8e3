// RandomDataset under DataParallel: the input of the model inside each replica, and the output.
//
//   random_dataset_dp [DEVICES]      2 unless given
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>

#include <duet/dp/data_parallel.h>
#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/backend/devices.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/nn/layers.h>
#include <duet/samplers/data_loader.h>

#include "in_order.h"
#include "program.h"

using namespace duet;

namespace {

std::string size_text(const Variable& x) { return "torch.Size(" + x.shape().str() + ")"; }

/// A user-defined module: register the children, and compute with them in forward, which runs on all devices at once.
class Model : public nn::Module {
 public:
  Model(std::int64_t input_size, std::int64_t output_size, examples::ReplicaLines& lines)
      : fc_(input_size, output_size), lines_(lines) {
    register_module("fc", fc_);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable y = fc_.forward(context, x);
    lines_.add(x.device(), "\tIn Model: input size " + size_text(x) + " output size " + size_text(y));
    return y;
  }
  using nn::Module::forward;

 protected:
  std::string type_name() const override { return "Model"; }

 private:
  nn::Linear fc_;
  examples::ReplicaLines& lines_;
};

void run(int count) {
  const DeviceKind kind = is_available(DeviceKind::cuda) ? DeviceKind::cuda : DeviceKind::cpu;
  const char* const what = kind == DeviceKind::cuda ? "GPUs" : "CPU devices";
  std::cout << "There are " << device_count(kind) << ' ' << what << " on the Node!\n";
  // CPU devices that outnumber the cores share them.
  const auto devices = first_devices(kind, kind == DeviceKind::cpu ? count : std::min(count, device_count(kind)));

  examples::ReplicaLines lines;
  Model model(5, 2, lines);
  model.to(devices.front());
  dp::DataParallel net(model, {.devices = devices});
  std::cout << net.str() << '\n';

  Mt19937 generator(1234);
  const data::RandomDataset dataset(5, 100, 1234);
  auto loader = samplers::data_loader(dataset, {.batch_size = 30, .shuffle = true, .generator = &generator});
  const NoGrad no_grad;
  for (auto& [input, labels] : loader) {
    // The loader stamps a batch with its place in the epoch, and a stamped batch is cut into whole eighths, so that
    // sums have the same bits on any number of devices. Without the stamp it is cut as in the tutorial: ceil(n /
    // devices).
    input.set_stamp({});
    const Variable output = net(input);
    lines.print();
    std::cout << "Outside: input size " << size_text(input) << " output_size " << size_text(output) << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "[DEVICES]      1 to 64, 2 unless given",
                       [](const examples::Arguments& arguments) { run(static_cast<int>(arguments.number(0, 2, 64))); });
}
