// The module libduet_torch: networks in TorchScript files, for `--model FILE.pt`.
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_iterator.h>
#include <torch/script.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "lib/autograd/grad_mode.h"
#include "lib/base/text.h"
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

/// The shape of the output for `count` samples of zeros.
Shape output_shape(nn::Module& network, std::int64_t count, const Shape& sample) {
  const NoGrad no_grad;
  Shape batch = {count};
  for (const std::int64_t size : sample) batch.append(size);
  return network(zeros(batch)).shape();
}

/// Calls visit(node) for all operators of the network, those of its children too.
template <class Visit>
void for_each_operator(const ScriptModule& script, const Visit& visit) {
  const auto forward = script.find_method("forward");
  if (!forward) return;
  auto graph = forward->graph()->copy();
  ::torch::jit::Inline(*graph);
  ::torch::jit::DepthFirstGraphNodeIterator nodes(graph);
  while (::torch::jit::Node* const node = nodes.next())
    if (node->maybeSchema() != nullptr) visit(*node);
}

/// The number that a view() or reshape() gives dimension 0, as in a trace of a batch of this size; 0 if none does.
std::int64_t fixed_rows(const ScriptModule& script) {
  std::int64_t rows = 0;
  for_each_operator(script, [&](::torch::jit::Node& node) {
    const std::string name = node.kind().toUnqualString();
    if (name != "view" && name != "reshape") return;
    ::torch::jit::Node* const sizes = node.inputs()[1]->node();
    if (sizes->inputs().empty()) return;
    const auto value = ::torch::jit::toIValue(sizes->inputs()[0]);
    if (value && value->isInt() && value->toInt() > 0) rows = value->toInt();
  });
  return rows;
}

std::int64_t classes_of(const ScriptModule& script, const Shape& sample, const std::string& path) {
  const std::unique_ptr<nn::Module> network = adapt(script);
  network->eval();
  Shape one, two;
  std::string failure;
  try {
    one = output_shape(*network, 1, sample);
    two = output_shape(*network, 2, sample);
  } catch (const Error& error) {
    failure = last_line(error.what());
  }
  const bool fits = failure.empty() && one.rank() == 2 && two == one.with(0, 2);
  std::int64_t rows = fits ? 0 : fixed_rows(script);
  try {
    if (rows > 0 && output_shape(*network, rows, sample).rank() != 2) rows = 0;
  } catch (const Error&) {
    rows = 0;
  }
  require<UsageError>(rows == 0, path, ": takes batches of ", rows, rows == 1 ? " sample" : " samples",
                      " only, as it was traced: give view() and "
                      "reshape() -1 for dimension 0, or use torch.jit.script(model).save(FILE)");
  require<UsageError>(failure.empty(), path, ": fails on samples of ", sample[0], "x", sample[1], "x", sample[2],
                      " (--input, --image-size): ", failure);
  require<UsageError>(fits, path, ": gives ", one, " for a sample and ", two, " for two, expected (N, classes)");
  return one[1];
}

/// A trace keeps the mode in which it was made, whatever train() and eval() say later: as a constant.
void warn_of_mode(const ScriptModule& script, const std::string& path) {
  std::set<std::string> fixed[2];  // operators that always evaluate, and that always train
  for_each_operator(script, [&](::torch::jit::Node& node) {
    const std::string name = node.kind().toUnqualString();
    if (name != "batch_norm" && name.find("dropout") == std::string::npos) return;
    if (node.owningBlock()->owningNode() != nullptr) return;  // within an `if` of the network's own
    const auto& arguments = node.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "train" && arguments[i].name() != "training") continue;
      const auto value = ::torch::jit::toIValue(node.inputs()[i]);
      if (value && value->isBool()) fixed[value->toBool()].insert(name);
    }
  });
  for (const bool trains : {true, false}) {
    std::string names;
    for (const std::string& name : fixed[trains]) names += (names.empty() ? "" : " and ") + name;
    if (!names.empty())
      std::cerr << concat("warning: ", printable(path), ": evaluation and training run ", names, " as ",
                          trains ? "training" : "evaluation", " does: was traced in ", trains ? "train()" : "eval()",
                          " mode, or has a constant flag. Use torch.jit.script(model).save(FILE)\n");
  }
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
  duet::torch::warn_of_mode(script, path);
  return &networks
              .insert({key,
                       {.sample_shape = *sample,
                        .classes = duet::torch::classes_of(script, *sample, path),
                        .make = [script](const duet::Shape&, std::int64_t) -> std::unique_ptr<duet::nn::Module> {
                          return duet::torch::adapt(script);
                        }}})
              .first->second;
}
