// The module libduet_torch: networks in TorchScript files, for `--model FILE.pt`.
#include <torch/script.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lib/autograd/grad_mode.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/nn/network_module.h"
#include "lib/shape.h"
#include "lib/tensor.h"
#include "torch/module_adapter.h"
#include "torch/script_file.h"

namespace duet::torch {
namespace {

/// What it gives for one sample of zeros: (1, classes).
std::int64_t classes_of(const ScriptModule& script, const Shape& sample, const std::string& path) {
  const std::unique_ptr<nn::Module> network = adapt(script);
  network->eval();
  Shape one = {1};
  for (const std::int64_t size : sample) one.append(size);
  const NoGrad no_grad;
  const Shape output = (*network)(zeros(one)).shape();
  require<UsageError>(output.rank() == 2, path, ": gives ", output, " for ", one, ", expected (N, classes)");
  return output[1];
}

}  // namespace
}  // namespace duet::torch

/// The network in a file for samples of this shape; it stays.
extern "C" const duet::nn::NetworkModule* duet_torch_script(const char* path, const duet::Shape* sample) {
  static std::mutex mutex;
  static std::map<std::string, duet::nn::NetworkModule> networks;
  const std::lock_guard lock(mutex);
  const std::string key = duet::concat(path, " ", *sample);
  if (const auto known = networks.find(key); known != networks.end()) return &known->second;
  const duet::torch::ScriptModule script = duet::torch::load_script(path);
  return &networks
              .insert({key,
                       {.sample_shape = *sample,
                        .classes = duet::torch::classes_of(script, *sample, path),
                        .make = [script](const duet::Shape&, std::int64_t) -> std::unique_ptr<duet::nn::Module> {
                          return duet::torch::adapt(script);
                        }}})
              .first->second;
}
