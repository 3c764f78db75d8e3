// Instances of one module of LibTorch: as many as there are tapes at a time.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/error.h"
#include "lib/tensor.h"
#include "torch/module_parts.h"
#include "torch/tensor_view.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// One instance of the module, on which one tape at a time computes.
class ModuleInstance {
 public:
  virtual ~ModuleInstance() = default;
  virtual ModuleTree tree() const = 0;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void train(bool on) = 0;
  /// Moves all its tensors, which stay the same objects.
  virtual void to(const at::Device& device) = 0;
};

/// Makes an instance; all of them have the same tensors and, of those that are no parameters or buffers, values.
using MakeInstance = std::function<std::unique_ptr<ModuleInstance>()>;

/// An instance of a module of one of the kinds in torch/wrapped_module.h.
template <class Module>
class InstanceOf final : public ModuleInstance {
 public:
  explicit InstanceOf(std::shared_ptr<Module> module) : module_(std::move(module)) {}
  ModuleTree tree() const override { return TreeWalk().walk(*module_); }
  at::Tensor forward(const at::Tensor& x) override {
    if constexpr (std::same_as<Module, ScriptModule>) {
      const at::IValue output = run_script(x);
      require<UsageError>(output.isTensor(), "it gives ", output.tagKind(), ", expected one tensor");
      return output.toTensor();
    } else {
      return call(*module_, x);
    }
  }
  void train(bool on) override { module_->train(on); }
  void to(const at::Device& device) override { move_to(*module_, device); }

 private:
  /// TorchScript's interpreter throws what a script raises, and in 1.13 what an operator throws, as no c10::Error.
  at::IValue run_script(const at::Tensor& x) {
    try {
      return call(*module_, x);
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      throw UsageError(concat("LibTorch: ", error.what()));
    }
  }

  std::shared_ptr<Module> module_;
};

/// An instance, and where its tensors' memory was last.
class BoundInstance {
 public:
  explicit BoundInstance(std::unique_ptr<ModuleInstance> instance) : instance_(std::move(instance)) {
    append_tensors(instance_->tree(), parameters_, buffers_);
  }
  /// Makes it compute with these values, in place, on their device.
  void bind(const std::vector<Variable>& values, const std::vector<Tensor>& buffers, const at::Device& device,
            bool training) {
    if (device != device_) instance_->to(device);
    device_ = device;
    for (std::size_t i = 0; i < values.size(); ++i) place(parameters_[i], values[i].value());
    for (std::size_t i = 0; i < buffers.size(); ++i) place(buffers_[i], buffers[i]);
    instance_->train(training);
  }
  at::Tensor forward(const at::Tensor& x) { return instance_->forward(x); }
  const at::Device& device() const { return device_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::vector<at::Tensor>& buffers() { return buffers_; }

 private:
  static void place(at::Tensor& tensor, const Tensor& memory) {
    if (tensor.numel() > 0 && tensor.data_ptr() != memory.raw())
      tensor.set_data(torch_view(memory, tensor.scalar_type(), tensor.sizes()));
  }

  std::unique_ptr<ModuleInstance> instance_;
  std::vector<at::Tensor> parameters_, buffers_;
  at::Device device_{at::kCPU};
};

/// Instances that no tape holds. Thread-safe.
class InstancePool {
 public:
  InstancePool(MakeInstance make, std::unique_ptr<ModuleInstance> first) : make_(std::move(make)) {
    free_.push_back(std::make_unique<BoundInstance>(std::move(first)));
  }
  /// One that comes back when its last user goes; if it can be, one that was on this device last.
  static std::shared_ptr<BoundInstance> take(const std::shared_ptr<InstancePool>& pool, const at::Device& device) {
    std::unique_ptr<BoundInstance> taken;
    {
      const std::lock_guard lock(pool->mutex_);
      const auto here = std::find_if(pool->free_.begin(), pool->free_.end(),
                                     [&](const auto& instance) { return instance->device() == device; });
      if (here != pool->free_.end()) std::iter_swap(here, pool->free_.end() - 1);
      if (!pool->free_.empty()) {
        taken = std::move(pool->free_.back());
        pool->free_.pop_back();
      }
      pool->free_.reserve(++pool->out_ + pool->free_.size());  // giving back must not throw
    }
    if (!taken) {
      const std::lock_guard lock(pool->make_mutex_);
      taken = std::make_unique<BoundInstance>(pool->make_());
    }
    return {taken.release(), [pool](BoundInstance* instance) {
              const std::lock_guard lock(pool->mutex_);
              pool->free_.emplace_back(instance);
              --pool->out_;
            }};
  }

 private:
  MakeInstance make_;
  std::mutex make_mutex_;  // for make_, which draws from LibTorch's one generator
  std::mutex mutex_;       // for what follows
  std::vector<std::unique_ptr<BoundInstance>> free_;
  std::size_t out_ = 0;
};

}  // namespace duet::torch
