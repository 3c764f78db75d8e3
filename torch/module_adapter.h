// A module of LibTorch as a network of duet's: whatever runs duet's networks, runs it. DataParallel,
// DistributedDataParallel, optimizers, checkpoints, `duet train|compare --model FILE.so`.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/autograd/saved_tensor.h"
#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/ops/ops.h"
#include "lib/pool.h"
#include "lib/tensor.h"
#include "torch/device_order.h"
#include "torch/module_instance.h"
#include "torch/module_parts.h"
#include "torch/run_seeds.h"
#include "torch/tape_node.h"
#include "torch/tensor_view.h"
#include "torch/tensors.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

struct ModuleAdapterOptions {
  /// Forward and backward run for each block of the global batch by itself, and gradients are added up by duet's tree:
  /// then any number of devices ends with the same bits, at the price of smaller kernels. Batch norm takes
  /// its statistics of a block. Dropout is seeded by block; CPU devices that are threads of one process share
  /// LibTorch's generator, so that it differs from run to run there.
  bool equal_bits = false;
};

/// Takes one tensor (N, ...), Float or of i64, and gives one (N, ...) Float, on CPUs, or on GPUs where LibTorch has
/// c10::Stream::native_handle(), else a DeviceError. Its parameters and buffers are duet's, and LibTorch computes with
/// them in place, so that optimizers, replicas and checkpoints of both sides see the same values; names are LibTorch's.
/// Devices that train at the same time have an instance of the module each. All gradients arrive at the end of its
/// backward: ddp hides no communication behind it, which duet::torch::DistributedDataParallel does. A forward in
/// training seeds LibTorch's default generator of the device from the model's seed, the step, the first row and how
/// often the batch was forwarded before. Errors of LibTorch are UsageErrors with its text.
class ModuleAdapter : public ModulePart {
 public:
  explicit ModuleAdapter(const MakeInstance& make, const ModuleAdapterOptions& options = {})
      : ModuleAdapter(make, make(), options) {}

  using nn::Module::forward;
  Variable forward(nn::Context& context, const Variable& input) const override {
    return name_errors([&] { return with_duet_errors([&] { return run(context, ops::to_plain(input)); }); });
  }

 protected:
  bool own_sums_by_blocks() const override { return options_.equal_bits; }

 private:
  ModuleAdapter(const MakeInstance& make, std::unique_ptr<ModuleInstance> first, const ModuleAdapterOptions& options)
      : ModulePart(first->tree()), options_(options), pool_(std::make_shared<InstancePool>(make, std::move(first))) {}

  Variable run(nn::Context& context, const Variable& x) const {
    require<ShapeError>(x.shape().rank() >= 1 && (x.value().dtype() == DType::f32 || x.value().dtype() == DType::i64),
                        "got ", x.shape(), " ", name(x.value().dtype()), ", expected (N, ...) of f32 or i64");
    set_threads(x.device());
    std::vector<Variable> values;
    std::vector<Tensor> buffers;
    append_values(context, values, buffers);
    bool recorded = x.requires_grad();
    for (const Variable& value : values) recorded = recorded || value.requires_grad();
    recorded = recorded && grad_enabled();
    TorchWork work(x.device());
    std::shared_ptr<BoundInstance> instance = InstancePool::take(pool_, torch_device(x.device()));
    instance->bind(values, buffers, torch_device(x.device()), training());
    const Blocks blocks = blocks_of_run(x.value());
    const RunSeeds seeds = next_seeds(context, x.value());
    const at::AutoGradMode mode(recorded);
    Tensor result;
    std::vector<TorchRun> runs = run_all(*instance, x, blocks, seeds, work, result);
    work.end();
    if (!recorded) return Variable(result);
    std::vector<SavedTensor> saved = {{x, "input"}};
    for (const Variable& value : values) saved.emplace_back(value, "parameter");
    const auto node =
        make_pooled<TorchNode>(std::move(instance), std::move(runs), blocks, x.device(), std::move(saved));
    node->add_edge(x.edge());
    for (const Variable& value : values) node->add_edge(value.edge());
    return Variable(result, node);
  }

  RunSeeds next_seeds(nn::Context& context, const Tensor& x) const {
    const at::Device device = torch_device(x.device());
    const std::uint32_t number = layer(context);
    if (!training()) return RunSeeds(device);
    return {context.next_seed(number, x), context.step_of(x), number, x.stamp().first, device};
  }

  /// The batch as one block, or as its own.
  Blocks blocks_of_run(const Tensor& x) const {
    if (options_.equal_bits) return blocks_of(x);
    Blocks whole;
    whole.ranges[1] = x.size(0);
    whole.leaf_count = 1;
    return whole;
  }

  /// Runs each block by itself; the first block's running statistics count, as the first of several devices' do.
  static std::vector<TorchRun> run_all(BoundInstance& instance, const Variable& x, const Blocks& blocks,
                                       const RunSeeds& seeds, const TorchWork& work, Tensor& result) {
    std::vector<TorchRun> runs;
    std::vector<at::Tensor> first;
    for (int i = 0; i < blocks.leaf_count; ++i) {
      TorchRun& run = runs.emplace_back(TorchRun{blocks.leaf(i), {}, {}});
      if (run.rows.rows() == 0 && blocks.leaf_count > 1) continue;
      run.input = rows_view(x.value(), run.rows.begin, run.rows.end).requires_grad_(x.requires_grad());
      seeds.begin_rows(run.rows.begin);
      run.output = instance.forward(run.input);
      put(run, x.value(), work, result);
      if (blocks.leaf_count == 1 || !first.empty()) continue;
      for (const at::Tensor& buffer : instance.buffers()) first.push_back(buffer.detach().clone());
    }
    const at::NoGradGuard no_grad;
    // Not as a change: a batch norm's tape holds its running statistics, though backward in training does not read
    // them.
    for (std::size_t i = 0; i < first.size(); ++i) instance.buffers()[i].variable_data().copy_(first[i]);
    return runs;
  }

  /// Copies a run's output to its rows of the result, which the first run makes.
  static void put(const TorchRun& run, const Tensor& x, const TorchWork& work, Tensor& result) {
    const at::Tensor& output = run.output;
    require<ShapeError>(output.dim() >= 1 && output.size(0) == run.rows.rows() && output.scalar_type() == at::kFloat,
                        "it gives ", shape_text(output), " for ", run.rows.rows(), " rows, expected (", run.rows.rows(),
                        ", ...) Float");
    if (!result.defined()) {
      result = empty(shape_of(output).with(0, x.size(0)), DType::f32, x.device());
      result.set_stamp(x.stamp());
      work.after_duet();
    }
    const at::NoGradGuard no_grad;
    rows_view(result, run.rows.begin, run.rows.end).copy_(output);
  }

  ModuleAdapterOptions options_;
  std::shared_ptr<InstancePool> pool_;
};

/// Adapts what `make` makes on the CPU, a module, holder or shared_ptr: `adapt([] { return Net(); })`. LibTorch's
/// generator has this seed in each call, so that all instances begin alike. Calls are made one after the other, in the
/// threads of the devices. For GPUs it must be the program's first use of LibTorch, unless that links libtorch_cuda.
template <class Make>
std::unique_ptr<ModuleAdapter> adapt(Make make, std::uint64_t seed = 0, const ModuleAdapterOptions& options = {}) {
  using Made = decltype(make());
  using Module = ModuleOf<Made>;
  why_no_torch_cuda();  // which loads it
  return std::make_unique<ModuleAdapter>(
      [make, seed]() -> std::unique_ptr<ModuleInstance> {
        SeededGenerator generator(at::kCPU);
        generator.seed(seed);
        const std::shared_ptr<Made> made(new Made(make()));  // a module by value lives as long as the instance
        return std::make_unique<InstanceOf<Module>>(std::shared_ptr<Module>(made, shared_module(*made).get()));
      },
      options);
}

/// Adapts a TorchScript module, of which each instance is a copy.
inline std::unique_ptr<ModuleAdapter> adapt(const ScriptModule& script, const ModuleAdapterOptions& options = {}) {
  return std::make_unique<ModuleAdapter>(
      [script]() -> std::unique_ptr<ModuleInstance> {
        return std::make_unique<InstanceOf<ScriptModule>>(std::make_shared<ScriptModule>(script.deepcopy()));
      },
      options);
}

}  // namespace duet::torch
