// What LibTorch's autograd calls during backward.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/error.h"
#include "torch/tensors.h"
#include "torch/versions.h"

namespace duet::torch {

/// Makes calls from LibTorch's threads take turns, and ends them by close(): threads of a backward that threw may still
/// run, and graphs outlive the wrapper.
class HookGate {
 public:
  /// Not after close().
  template <class Task>
  void call_if_open(Task&& task) {
    const std::lock_guard lock(mutex_);
    if (open_) task();
  }
  /// Throws UsageError after close().
  template <class Task>
  void call(Task&& task) {
    const std::lock_guard lock(mutex_);
    require<UsageError>(open_, "backward runs through a DistributedDataParallel that was destroyed");
    task();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  bool is_open() {
    const std::lock_guard lock(mutex_);
    return open_;
  }

 private:
  std::mutex mutex_;
  bool open_ = true;
};

/// Calls ready(i) when parameter i's gradient is complete, while the gate is open: in the thread that called
/// backward(), or, for parameters on a GPU, in LibTorch's thread of that device, on whose current stream the gradient
/// is computed. Hooks stay where they are, as another thread may be running them; they go with the graphs that lead to
/// them.
class GradientHooks {
 public:
  /// The parameters must outlive this. Throws UsageError that names one whose gradient another one waits for: it would
  /// be summed twice.
  GradientHooks(const std::vector<NamedTensorRef>& parameters, std::shared_ptr<HookGate> gate,
                std::function<void(std::size_t)> ready)
      : parameters_(parameters), gate_(std::move(gate)), ready_(std::move(ready)), accumulators_(parameters.size()) {
    renew();
  }
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Before a forward: torch::load() and conversions give parameters new accumulators, which have no hooks yet.
  void renew() {
    std::vector<GradAccumulator> fresh(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].value.requires_grad()) continue;
      // Parameters hold their accumulators weakly.
      GradAccumulator now = ::torch::autograd::impl::grad_accumulator(parameters_[i].value);
      if (now == accumulators_[i]) continue;
      for (const auto& other : std::as_const(*now).post_hooks()) {
        const auto* const hook = dynamic_cast<const Hook*>(other.get());
        require<UsageError>(hook == nullptr || !hook->gate->is_open(), parameters_[i].name,
                            " is wrapped already: only one DistributedDataParallel at a time can sum its gradients");
      }
      fresh[i] = std::move(now);
    }
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (!fresh[i]) continue;
      fresh[i]->add_post_hook(std::make_unique<Hook>(gate_, ready_, i));
      accumulators_[i] = std::move(fresh[i]);
    }
  }

 private:
  struct Hook final : ::torch::autograd::utils::LambdaPostHook {
    Hook(const std::shared_ptr<HookGate>& own, const std::function<void(std::size_t)>& ready, std::size_t i)
        : LambdaPostHook([own, ready, i](const ::torch::autograd::variable_list& outputs,
                                         const ::torch::autograd::variable_list&) {
            own->call_if_open([&] { ready(i); });
            return outputs;
          }),
          gate(own) {}
    std::shared_ptr<HookGate> gate;
  };

  const std::vector<NamedTensorRef>& parameters_;
  std::shared_ptr<HookGate> gate_;
  std::function<void(std::size_t)> ready_;
  std::vector<GradAccumulator> accumulators_;
};

/// Follows one backward at a time to its end.
class BackwardEnd {
 public:
  /// Within a backward: ended() is called when it has computed all gradients, in any of LibTorch's threads, where the
  /// streams of the caller of backward() are current and come after all gradients. If backward throws first, it is not
  /// called.
  void expect(std::function<void()> ended) {
    run_ = std::make_shared<std::atomic<bool>>(false);
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [run = std::shared_ptr<Run>(new Run{run_}), ended = std::move(ended)] {
          *run->over = true;
          ended();
        });
  }
  /// Whether the backward runs that expect() was called in.
  bool expected() const { return run_ && !*run_; }

 private:
  /// Goes with the engine's last copy of the callback, also where that was never called.
  struct Run {
    std::shared_ptr<std::atomic<bool>> over;
    ~Run() { *over = true; }
  };
  std::shared_ptr<std::atomic<bool>> run_;  // LibTorch's threads let go of a backward that threw
};

}  // namespace duet::torch
