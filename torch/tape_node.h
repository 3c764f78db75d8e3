// LibTorch's tape of a module as one node of duet's.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/autograd/node.h"
#include "lib/autograd/saved_tensor.h"
#include "lib/backend/backend.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/tensor.h"
#include "torch/device_order.h"
#include "torch/device_threads.h"
#include "torch/module_instance.h"
#include "torch/module_parts.h"
#include "torch/tensor_view.h"

namespace duet::torch {

/// LibTorch's own text without its stack trace.
template <class Task>
auto with_duet_errors(Task&& task) {
  try {
    return task();
  } catch (const c10::Error& error) {
    throw UsageError(concat("LibTorch: ", error.what_without_backtrace()));
  }
}

/// One forward of LibTorch on some rows of the batch.
struct TorchRun {
  Blocks::Range rows;
  at::Tensor input, output;
};

/// Backward of all runs of one forward.
class TorchNode final : public Node {
 public:
  /// `saved`: what LibTorch's own tape has views of; it does not know what duet writes.
  TorchNode(std::shared_ptr<BoundInstance> instance, std::vector<TorchRun> runs, const Blocks& blocks, Device device,
            std::vector<SavedTensor> saved)
      : instance_(std::move(instance)),
        runs_(std::move(runs)),
        blocks_(blocks),
        device_(device),
        saved_(std::move(saved)) {}
  const char* name() const override { return "LibTorch"; }
  void reached() override {
    for (const SavedTensor& saved : saved_) saved.require_unmodified(name());
  }
  void release() override {
    runs_.clear();
    saved_.clear();
    instance_.reset();
  }

  void backward(const Gradients& gradients) override {
    if (!gradients.outputs[0].defined()) return;
    with_duet_errors([&] {
      TorchWork work(device_);
      run_backward(gradients, work);
      work.end();
    });
  }

 private:
  using Found = std::vector<at::Tensor>;  // by edge; undefined where there is none

  void run_backward(const Gradients& gradients, const TorchWork& work) {
    set_threads(device_);
    std::vector<Found> leaves(runs_.size());
    for (std::size_t i = 0; i < runs_.size(); ++i) leaves[i] = gradients_of(runs_[i], gradients);
    const at::NoGradGuard no_grad;
    const at::Tensor input = input_gradient(leaves);
    for (int i = 0; i < blocks_.addition_count; ++i) {
      const auto [to, from] = blocks_.addition(i);
      for (std::size_t edge = 1; edge < gradients.edges.size(); ++edge)
        add(leaves[static_cast<std::size_t>(to)][edge], leaves[static_cast<std::size_t>(from)][edge]);
    }
    leaves[0][0] = input;
    for (std::size_t edge = 0; edge < gradients.edges.size(); ++edge) {
      if (leaves[0][edge].defined())
        gradients.place(edge, shape_of(leaves[0][edge]), device_);
      else
        gradients.inputs[edge] = Tensor();  // else the place would count as a gradient
    }
    work.after_duet();
    for (std::size_t edge = 0; edge < gradients.edges.size(); ++edge) {
      const at::Tensor& sum = leaves[0][edge];
      if (!sum.defined()) continue;
      at::Tensor place = torch_view(gradients.inputs[edge], at::kFloat, sum.sizes());
      const bool adds_zero = blocks_.add_zero && edge > 0;
      adds_zero ? at::add_out(place, sum, 0.0F) : place.copy_(sum);
    }
  }

  Found gradients_of(const TorchRun& run, const Gradients& gradients) const {
    Found found(gradients.edges.size());
    if (!run.output.defined()) return found;
    std::vector<at::Tensor> inputs;
    std::vector<std::size_t> edges;
    for (std::size_t edge = 0; edge < gradients.edges.size(); ++edge) {
      if (!gradients.wanted(edge)) continue;
      inputs.push_back(edge == 0 ? run.input : instance_->parameters()[edge - 1]);
      edges.push_back(edge);
    }
    const at::Tensor gradient = rows_view(gradients.outputs[0], run.rows.begin, run.rows.end);
    const auto all = ::torch::autograd::grad({run.output}, inputs, {gradient.view_as(run.output)}, {}, false,
                                             /*allow_unused=*/true);
    for (std::size_t i = 0; i < edges.size(); ++i) found[edges[i]] = all[i];
    return found;
  }

  /// The input's gradient in all rows; undefined where no row got one.
  at::Tensor input_gradient(const std::vector<Found>& leaves) const {
    std::vector<at::Tensor> rows;
    bool any = false;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!runs_[i].input.defined()) continue;
      any = any || leaves[i][0].defined();
      rows.push_back(leaves[i][0].defined() ? leaves[i][0] : at::zeros_like(runs_[i].input));
    }
    return any ? at::cat(rows, 0) : at::Tensor();
  }

  static void add(at::Tensor& to, const at::Tensor& from) {
    if (!from.defined()) return;
    to = to.defined() ? at::add(to, from) : from;
  }

  std::shared_ptr<BoundInstance> instance_;
  std::vector<TorchRun> runs_;
  Blocks blocks_;
  Device device_;
  std::vector<SavedTensor> saved_;
};

}  // namespace duet::torch
