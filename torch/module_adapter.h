// A module of LibTorch as a network of duet's: whatever runs duet's networks, runs it. DataParallel,
// DistributedDataParallel, optimizers, checkpoints, `duet train|compare|bench step --model FILE.so`.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"
#include "lib/backend/blocks.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/ops/ops.h"
#include "lib/tensor.h"
#include "torch/module_parts.h"
#include "torch/tensors.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

struct ModuleAdapterOptions {
  /// Forward and backward run for each of the 8 blocks of the global batch by itself, and gradients are added up by
  /// duet's tree: then 1, 2, 4 and 8 devices end with the same bits, at the price of smaller kernels. Batch norm takes
  /// its statistics of a block, and dropout draws from LibTorch's generator, which devices share.
  bool equal_bits = false;
};

/// One instance of the module, on which one tape at a time computes.
class ModuleInstance {
 public:
  virtual ~ModuleInstance() = default;
  virtual ModuleTree tree() const = 0;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void train(bool on) = 0;
};

/// Makes an instance; all of them have the same tensors and, of those that are no parameters or buffers, values.
using MakeInstance = std::function<std::unique_ptr<ModuleInstance>()>;

namespace detail {

/// An instance, and where its tensors' memory was last.
class BoundInstance {
 public:
  explicit BoundInstance(std::unique_ptr<ModuleInstance> instance) : instance_(std::move(instance)) {
    append_tensors(instance_->tree(), parameters_, buffers_);
  }
  /// Lets it compute with these values, in place.
  void bind(const std::vector<Variable>& values, const std::vector<Tensor>& buffers, bool training) {
    for (std::size_t i = 0; i < values.size(); ++i) place(parameters_[i], values[i].value().raw());
    for (std::size_t i = 0; i < buffers.size(); ++i) place(buffers_[i], buffers[i].raw());
    instance_->train(training);
  }
  at::Tensor forward(const at::Tensor& x) { return instance_->forward(x); }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::vector<at::Tensor>& buffers() { return buffers_; }

 private:
  static void place(at::Tensor& tensor, void* memory) {
    if (tensor.numel() > 0 && tensor.data_ptr() != memory)
      tensor.set_data(at::from_blob(memory, tensor.sizes(), tensor.options().requires_grad(false)));
  }

  std::unique_ptr<ModuleInstance> instance_;
  std::vector<at::Tensor> parameters_, buffers_;
};

/// Instances that no tape holds. Thread-safe.
class InstancePool {
 public:
  InstancePool(MakeInstance make, std::unique_ptr<ModuleInstance> first) : make_(std::move(make)) {
    free_.push_back(std::make_unique<BoundInstance>(std::move(first)));
  }
  /// One that comes back when its last user goes.
  static std::shared_ptr<BoundInstance> take(const std::shared_ptr<InstancePool>& pool) {
    std::unique_ptr<BoundInstance> taken;
    {
      const std::lock_guard lock(pool->mutex_);
      if (!pool->free_.empty()) {
        taken = std::move(pool->free_.back());
        pool->free_.pop_back();
      }
      pool->free_.reserve(++pool->out_ + pool->free_.size());  // giving back must not throw
    }
    if (!taken) taken = std::make_unique<BoundInstance>(pool->make_());
    return {taken.release(), [pool](BoundInstance* instance) {
              const std::lock_guard lock(pool->mutex_);
              pool->free_.emplace_back(instance);
              --pool->out_;
            }};
  }

 private:
  MakeInstance make_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<BoundInstance>> free_;
  std::size_t out_ = 0;
};

/// LibTorch's own text without its stack trace.
template <class Task>
auto with_duet_errors(Task&& task) {
  try {
    return task();
  } catch (const c10::Error& error) {
    throw UsageError(concat("LibTorch: ", error.what_without_backtrace()));
  }
}

/// The calling thread computes with as many threads as duet's devices do.
inline void set_threads(Device device) {
  thread_local int threads = 0;
  const int wanted = backend(device.kind).threads_per_device();
  if (std::exchange(threads, wanted) != wanted) at::set_num_threads(wanted);
}

inline at::Tensor view_of(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  const at::ScalarType type = tensor.dtype() == DType::i64 ? at::kLong : at::kFloat;
  std::vector<std::int64_t> sizes(tensor.shape().begin(), tensor.shape().end());
  const std::int64_t row = tensor.shape().count_from(1) * static_cast<std::int64_t>(size_of(tensor.dtype()));
  sizes.at(0) = end - begin;
  return at::from_blob(static_cast<std::byte*>(tensor.raw()) + begin * row, sizes, at::TensorOptions(type));
}

/// One forward of LibTorch on some rows of the batch.
struct TorchRun {
  Blocks::Range rows;
  at::Tensor input, output;
};

/// Backward of all runs of one forward.
class TorchNode final : public Node {
 public:
  TorchNode(std::shared_ptr<BoundInstance> instance, std::vector<TorchRun> runs, const Blocks& blocks, Device device)
      : instance_(std::move(instance)), runs_(std::move(runs)), blocks_(blocks), device_(device) {}
  const char* name() const override { return "LibTorch"; }
  void release() override {
    runs_.clear();
    instance_.reset();
  }

  void backward(const Gradients& gradients) override {
    if (!gradients.outputs[0].defined()) return;
    with_duet_errors([&] { run_backward(gradients); });
  }

 private:
  using Found = std::vector<at::Tensor>;  // by edge; undefined where there is none

  void run_backward(const Gradients& gradients) {
    set_threads(device_);
    std::vector<Found> leaves(runs_.size());
    for (std::size_t i = 0; i < runs_.size(); ++i) leaves[i] = gradients_of(runs_[i], gradients);
    const at::NoGradGuard no_grad;
    if (gradients.wanted(0)) put_input_gradient(leaves, gradients);
    for (int i = 0; i < blocks_.addition_count; ++i) {
      const auto [to, from] = blocks_.addition(i);
      for (std::size_t edge = 1; edge < gradients.edges.size(); ++edge)
        add(leaves[static_cast<std::size_t>(to)][edge], leaves[static_cast<std::size_t>(from)][edge]);
    }
    for (std::size_t edge = 1; edge < gradients.edges.size(); ++edge) {
      const at::Tensor& sum = leaves[0][edge];
      if (!sum.defined()) continue;
      const at::Tensor& parameter = instance_->parameters()[edge - 1];
      const Tensor& to = gradients.place(edge, shape_of(parameter), device_);
      const at::Tensor place = at::from_blob(to.raw(), parameter.sizes(), at::TensorOptions(at::kFloat));
      blocks_.add_zero ? at::add_out(const_cast<at::Tensor&>(place), sum, 0.0F) : place.copy_(sum);
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
    const at::Tensor gradient = view_of(gradients.outputs[0], run.rows.begin, run.rows.end);
    const auto all = ::torch::autograd::grad({run.output}, inputs, {gradient.view_as(run.output)}, std::nullopt, false,
                                             /*allow_unused=*/true);
    for (std::size_t i = 0; i < edges.size(); ++i) found[edges[i]] = all[i];
    return found;
  }

  void put_input_gradient(const std::vector<Found>& leaves, const Gradients& gradients) const {
    const Tensor& like = gradients.outputs[0];
    Shape shape;
    for (const TorchRun& run : runs_)
      if (run.input.defined() && shape.rank() == 0) shape = shape_of(run.input).with(0, like.size(0));
    const Tensor& to = gradients.place(0, shape, device_);
    for (std::size_t i = 0; i < runs_.size(); ++i)
      if (leaves[i][0].defined()) view_of(to, runs_[i].rows.begin, runs_[i].rows.end).copy_(leaves[i][0]);
  }

  static void add(at::Tensor& to, const at::Tensor& from) {
    if (!from.defined()) return;
    to = to.defined() ? at::add(to, from) : from;
  }

  std::shared_ptr<BoundInstance> instance_;
  std::vector<TorchRun> runs_;
  Blocks blocks_;
  Device device_;
};

}  // namespace detail

/// Takes one tensor (N, ...), Float or of i64, and gives one (N, ...) Float. Its parameters and buffers are duet's, and
/// LibTorch computes with them in place, so that optimizers, replicas and checkpoints of both sides see the same
/// values; names are LibTorch's. Devices that train at the same time have an instance of the module each. All gradients
/// arrive at the end of its backward: ddp hides no communication behind it, which duet::torch::DistributedDataParallel
/// does. Errors of LibTorch are UsageErrors with its text.
class ModuleAdapter : public ModulePart {
 public:
  explicit ModuleAdapter(const MakeInstance& make, const ModuleAdapterOptions& options = {})
      : ModuleAdapter(make, make(), options) {}

  using nn::Module::forward;
  Variable forward(nn::Context& context, const Variable& input) const override {
    return name_errors([&] { return detail::with_duet_errors([&] { return run(context, ops::to_plain(input)); }); });
  }

 protected:
  bool own_sums_by_blocks() const override { return options_.equal_bits; }

 private:
  ModuleAdapter(const MakeInstance& make, std::unique_ptr<ModuleInstance> first, const ModuleAdapterOptions& options)
      : ModulePart(first->tree()),
        options_(options),
        pool_(std::make_shared<detail::InstancePool>(make, std::move(first))) {}

  Variable run(nn::Context& context, const Variable& x) const {
    require<DeviceError>(x.device().kind == DeviceKind::cpu, "LibTorch computes on CPU devices here, got ", x.device());
    require<ShapeError>(x.shape().rank() >= 1 && (x.value().dtype() == DType::f32 || x.value().dtype() == DType::i64),
                        "got ", x.shape(), " ", name(x.value().dtype()), ", expected (N, ...) of f32 or i64");
    detail::set_threads(x.device());
    std::vector<Variable> values;
    std::vector<Tensor> buffers;
    append_values(context, values, buffers);
    bool recorded = x.requires_grad();
    for (const Variable& value : values) recorded = recorded || value.requires_grad();
    recorded = recorded && grad_enabled();
    std::shared_ptr<detail::BoundInstance> instance = detail::InstancePool::take(pool_);
    instance->bind(values, buffers, context.training);
    const Blocks blocks = blocks_of_run(x.value());
    Tensor result;
    std::vector<detail::TorchRun> runs = run_all(*instance, x, blocks, recorded, result);
    if (!recorded) return Variable(result);
    const auto node = make_pooled<detail::TorchNode>(std::move(instance), std::move(runs), blocks, x.device());
    node->add_edge(x.edge());
    for (const Variable& value : values) node->add_edge(value.edge());
    return Variable(result, node);
  }

  /// The batch as one block, or as its 8.
  Blocks blocks_of_run(const Tensor& x) const {
    if (options_.equal_bits) return blocks_of(x);
    Blocks whole;
    whole.ranges[1] = x.size(0);
    whole.leaf_count = 1;
    return whole;
  }

  /// Of several blocks the running statistics of the first count, as of several devices those of the first do.
  static std::vector<detail::TorchRun> run_all(detail::BoundInstance& instance, const Variable& x, const Blocks& blocks,
                                               bool recorded, Tensor& result) {
    const at::AutoGradMode mode(recorded);
    std::vector<detail::TorchRun> runs;
    std::vector<at::Tensor> first;
    for (int i = 0; i < blocks.leaf_count; ++i) {
      detail::TorchRun& run = runs.emplace_back(detail::TorchRun{blocks.leaf(i), {}, {}});
      if (run.rows.rows() == 0 && blocks.leaf_count > 1) continue;
      run.input = detail::view_of(x.value(), run.rows.begin, run.rows.end).requires_grad_(x.requires_grad());
      run.output = instance.forward(run.input);
      put(run, x.value(), result);
      if (blocks.leaf_count == 1 || !first.empty()) continue;
      for (const at::Tensor& buffer : instance.buffers()) first.push_back(buffer.detach().clone());
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < first.size(); ++i) instance.buffers()[i].copy_(first[i]);
    return runs;
  }

  /// Copies a run's output to its rows of the result, which the first run makes.
  static void put(const detail::TorchRun& run, const Tensor& x, Tensor& result) {
    const at::Tensor& output = run.output;
    require<ShapeError>(output.dim() >= 1 && output.size(0) == run.rows.rows() && output.scalar_type() == at::kFloat,
                        "it gives ", shape_text(output), " for ", run.rows.rows(), " rows, expected (", run.rows.rows(),
                        ", ...) Float");
    if (!result.defined()) {
      result = empty(shape_of(output).with(0, x.size(0)));
      result.set_stamp(x.stamp());
    }
    const at::NoGradGuard no_grad;
    detail::view_of(result, run.rows.begin, run.rows.end).copy_(output);
  }

  ModuleAdapterOptions options_;
  std::shared_ptr<detail::InstancePool> pool_;
};

namespace detail {

template <class Module>
class InstanceOf final : public ModuleInstance {
 public:
  explicit InstanceOf(std::shared_ptr<Module> module) : module_(std::move(module)) {}
  ModuleTree tree() const override { return TreeWalk().walk(*module_); }
  at::Tensor forward(const at::Tensor& x) override {
    if constexpr (std::same_as<Module, ScriptModule>) {
      const at::IValue output = call(*module_, x);
      require<UsageError>(output.isTensor(), "it gives ", output.tagKind(), ", expected one tensor");
      return output.toTensor();
    } else {
      return call(*module_, x);
    }
  }
  void train(bool on) override { module_->train(on); }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace detail

/// Of what `make` makes, a module, holder or shared_ptr: `adapt([] { return Net(); })`. LibTorch's generator is seeded
/// with `seed` before each call, so that all instances begin alike.
template <class Make>
std::unique_ptr<ModuleAdapter> adapt(Make make, std::uint64_t seed = 0, const ModuleAdapterOptions& options = {}) {
  using Made = decltype(make());
  using Module = ModuleOf<Made>;
  return std::make_unique<ModuleAdapter>(
      [make, seed]() -> std::unique_ptr<ModuleInstance> {
        ::torch::manual_seed(seed);
        const std::shared_ptr<Made> made(new Made(make()));  // a module by value lives as long as the instance
        return std::make_unique<detail::InstanceOf<Module>>(std::shared_ptr<Module>(made, shared_module(*made).get()));
      },
      options);
}

/// Of a TorchScript module, of which each instance is a copy.
inline std::unique_ptr<ModuleAdapter> adapt(const ScriptModule& script, const ModuleAdapterOptions& options = {}) {
  return std::make_unique<ModuleAdapter>(
      [script]() -> std::unique_ptr<ModuleInstance> {
        return std::make_unique<detail::InstanceOf<ScriptModule>>(std::make_shared<ScriptModule>(script.clone()));
      },
      options);
}

}  // namespace duet::torch
