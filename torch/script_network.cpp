// The module libduet_torch: networks in TorchScript files, for `--model FILE.pt`.
#include <torch/script.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lib/autograd/grad_mode.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/nn/network_module.h"
#include "lib/tensor.h"
#include "torch/device_order.h"
#include "torch/module_adapter.h"
#include "torch/script_file.h"

namespace duet::torch {
namespace {

/// torch.jit.freeze makes constants of parameters.
void require_trainable(const ScriptModule& script, const std::string& path) {
  for (const at::Tensor& parameter : script.parameters())
    if (parameter.requires_grad()) return;
  throw DataError(
      concat(path, ": has no parameters that require a gradient (torch.jit.freeze turns them into constants)"));
}

/// The message of an error of TorchScript's interpreter, which is the last line, behind a traceback.
std::string last_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  const std::size_t end = text.rfind('\n');
  return end == std::string::npos ? text : "LibTorch: " + text.substr(end + 1);
}

Shape output_shape(nn::Module& network, const Shape& batch, const std::string& path) {
  const NoGrad no_grad;
  try {
    return network(zeros(batch)).shape();
  } catch (const Error& error) {
    throw UsageError(concat(path, ": fails on samples of ", batch[1], "x", batch[2], "x", batch[3],
                            " (--input, --image-size): ", last_line(error.what())));
  }
}

/// What it gives for one sample of zeros: (1, classes).
std::int64_t classes_of(const ScriptModule& script, const Shape& sample, const std::string& path) {
  const std::unique_ptr<nn::Module> network = adapt(script);
  network->eval();
  Shape one = {1};
  for (const std::int64_t size : sample) one.append(size);
  const Shape output = output_shape(*network, one, path);
  require<UsageError>(output.rank() == 2, path, ": gives ", output, " for ", one, ", expected (N, classes)");
  return output[1];
}

}  // namespace
}  // namespace duet::torch

/// The network in a file for samples of this shape; it stays.
extern "C" const duet::nn::NetworkModule* duet_torch_script(const char* path, const duet::Shape* sample) {
  duet::torch::why_no_torch_cuda();  // which loads it, before anything else of LibTorch runs
  static std::mutex mutex;
  static std::map<std::string, duet::nn::NetworkModule> networks;
  const std::lock_guard lock(mutex);
  const std::string key = duet::concat(path, " ", *sample);
  if (const auto known = networks.find(key); known != networks.end()) return &known->second;
  const duet::torch::ScriptModule script = duet::torch::load_script(path);
  duet::torch::require_trainable(script, path);
  return &networks
              .insert({key,
                       {.sample_shape = *sample,
                        .classes = duet::torch::classes_of(script, *sample, path),
                        .make = [script](const duet::Shape&, std::int64_t) -> std::unique_ptr<duet::nn::Module> {
                          return duet::torch::adapt(script);
                        }}})
              .first->second;
}
