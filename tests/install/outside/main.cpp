// A program outside of duet's tree, built against an installed duet: two steps of DataParallel on two devices, the
// checkpoint of the result, and a group over Gloo's module if it was built.
#include <cstdio>
#include <filesystem>
#include <string>

#include <duet/duet.h>

#include "lib/tensor.h"  // this project's

int main() {
  static_assert(outside::kOwnHeader);
  duet::nn::SimpleCNN model(1234);
  duet::dp::DataParallel net(model, {.devices = duet::first_devices(duet::DeviceKind::cpu, 2)});
  duet::optim::SGD opt(model, {.lr = 0.1f});
  const duet::Tensor images = duet::zeros({8, 1, 28, 28});
  const duet::Tensor labels = duet::zeros({8}, duet::DType::i64);
  float first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    opt.zero_grad();
    auto loss = duet::ops::nll_loss(net(images), labels);
    loss.backward();
    opt.step();
    (step == 0 ? first : last) = loss.item();
  }
  const std::string folder = std::filesystem::temp_directory_path() / "outside-of-duet";
  duet::prepare_checkpoint_folder(folder);
  duet::save_checkpoint(folder,
                        {.position = {.epoch = 1}, .step = 2, .arch = "SimpleCNN", .model = model.state_dict()});
  duet::restore(duet::load_checkpoint(folder), "SimpleCNN", model.state_dict());
  std::filesystem::remove_all(folder);
  const std::string no_gloo = duet::ddp::why_no_gloo();
  std::printf("loss %g to %g; Gloo: %s\n", static_cast<double>(first), static_cast<double>(last),
              no_gloo.empty() ? "yes" : no_gloo.c_str());
  return last < first / 2 ? 0 : 1;
}
