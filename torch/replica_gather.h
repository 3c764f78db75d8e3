// One node of LibTorch's tape over the tapes of all replicas.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/error.h"
#include "torch/tensors.h"

namespace duet::torch {

using ReplicaTask = std::function<void(std::size_t replica)>;

/// One forward of all replicas, kept for its backward.
struct ReplicaStep : ::torch::CustomClassHolder {
  struct Replica {
    std::vector<at::Tensor> parameters, inputs;  // leaves of its own tape; inputs: those that require a gradient
    std::vector<at::Tensor> outputs;
  };
  std::vector<Replica> replicas;
  std::vector<NamedTensorRef> parameters;  // the module's
  std::vector<std::int64_t> versions;      // theirs, as forward read them
  std::vector<at::Device> input_devices;   // where the inputs that require a gradient were before they were cut
  /// Runs task(i) for the first `count` replicas, side by side.
  std::function<void(std::size_t count, const ReplicaTask& task)> run;

  /// A scalar counts as one row, as torch::nn::parallel::gather has it.
  static at::Tensor as_rows(const at::Tensor& output) { return output.dim() == 0 ? output.view({1}) : output; }

  void require_same_outputs() const {
    for (const Replica& replica : replicas)
      require<UsageError>(replica.outputs.size() == replicas[0].outputs.size(), "a replica gave ",
                          replica.outputs.size(), " tensors where the first one gave ", replicas[0].outputs.size());
  }

  /// All replicas' outputs, each joined along dimension 0.
  std::vector<at::Tensor> joined() const {
    std::vector<at::Tensor> list;
    for (std::size_t output = 0; output < replicas[0].outputs.size(); ++output) {
      std::vector<at::Tensor> pieces;
      for (const Replica& replica : replicas)
        pieces.push_back(as_rows(replica.outputs.at(output)).to(replicas[0].outputs.at(output).device()));
      list.push_back(at::cat(pieces, 0));
    }
    return list;
  }

  /// The gradients of replica i's leaves, from those of the joined outputs.
  std::vector<at::Tensor> backward(std::size_t i, const std::vector<at::Tensor>& gradients) const {
    const Replica& own = replicas[i];
    std::vector<at::Tensor> outputs, of_outputs, leaves = own.parameters;
    leaves.insert(leaves.end(), own.inputs.begin(), own.inputs.end());
    for (std::size_t output = 0; output < own.outputs.size(); ++output) {
      if (!own.outputs[output].requires_grad()) continue;
      std::int64_t begin = 0;
      for (std::size_t before = 0; before < i; ++before) begin += as_rows(replicas[before].outputs[output]).size(0);
      const at::Tensor rows = as_rows(own.outputs[output]);
      outputs.push_back(own.outputs[output]);
      of_outputs.push_back(
          gradients[output].narrow(0, begin, rows.size(0)).view_as(own.outputs[output]).to(rows.device()));
    }
    if (outputs.empty()) return std::vector<at::Tensor>(leaves.size());
    return ::torch::autograd::grad(outputs, leaves, of_outputs, {}, false, true);
  }

  void require_unchanged() const {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      require<UsageError>(parameters[i].value._version() == versions[i], parameters[i].name,
                          " was changed between DataParallel's forward and its backward, which needs its old values");
  }
};

/// Its inputs are the module's parameters and the inputs of forward that require gradients, its outputs the joined
/// ones. Backward runs the replicas' tapes side by side, and adds up the parameters' gradients in the order of the tree
/// ((0+1)+(2+3))+..., so that they reach the module's parameters as from one device.
struct ReplicaGather : ::torch::autograd::Function<ReplicaGather> {
  static ::torch::autograd::variable_list forward(::torch::autograd::AutogradContext* context,
                                                  const c10::intrusive_ptr<ReplicaStep>& step,
                                                  at::TensorList /*leaves*/) {
    context->saved_data["step"] = at::IValue::make_capsule(step);
    return step->joined();
  }

  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   const ::torch::autograd::variable_list& gradients) {
    const auto capsule = context->saved_data["step"].toCapsule();
    auto& step = dynamic_cast<ReplicaStep&>(*capsule);
    step.require_unchanged();
    require<UsageError>(
        !at::GradMode::is_enabled(),
        "DataParallel's gradients have no graph of their own: backward with create_graph is not for it");
    const std::size_t count = step.replicas.size(), parameters = step.parameters.size();
    std::vector<std::vector<at::Tensor>> parts(count);
    step.run(count, [&](std::size_t i) { parts[i] = step.backward(i, gradients); });
    for (std::size_t apart = 1; apart < count; apart *= 2)
      for (std::size_t i = 0; i + apart < count; i += 2 * apart)
        for (std::size_t p = 0; p < parameters; ++p)
          add(parts[i][p], parts[i + apart][p], step.replicas[i].parameters[p].device());
    ::torch::autograd::variable_list all{at::Tensor()};  // the gradient of `step`: none
    all.insert(all.end(), parts[0].begin(), parts[0].begin() + static_cast<std::ptrdiff_t>(parameters));
    for (std::size_t input = parameters; input < parts[0].size(); ++input) all.push_back(joined(step, parts, input));
    return all;
  }

 private:
  static void add(at::Tensor& sum, const at::Tensor& other, const at::Device& device) {
    if (!other.defined()) return;
    const at::Tensor here = other.to(device);
    sum = sum.defined() ? sum + here : here;
  }

  static at::Tensor joined(const ReplicaStep& step, const std::vector<std::vector<at::Tensor>>& parts,
                           std::size_t leaf) {
    std::vector<at::Tensor> pieces;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t input = leaf - step.parameters.size();
      const at::Tensor piece =
          parts[i][leaf].defined() ? parts[i][leaf] : at::zeros_like(step.replicas[i].inputs[input]);
      pieces.push_back(piece.to(step.input_devices[input]));
    }
    return at::cat(pieces, 0);
  }
};

}  // namespace duet::torch
