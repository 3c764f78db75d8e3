// DistributedDataParallel for LibTorch modules: PyTorch's C++ frontend has none.
//
// Include <torch/torch.h> before. In programs that use this, `using namespace duet` makes the name `torch` ambiguous.
#pragma once

#include <ATen/ATen.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/base/lasting.h"
#include "lib/error.h"
#include "torch/block_steps.h"
#include "torch/ddp_options.h"
#include "torch/elastic.h"
#include "torch/module_synchroniser.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// One process or thread per rank, each with the whole module, which `Module` is the class of: any class derived from
/// torch::nn::Module, or torch::jit::Module. Forward passes straight through, with any inputs and outputs. In backward,
/// each gradient that is complete goes to the group, bucket by bucket, while the rest of backward runs; backward
/// returns when all ranks hold the same gradients. These lie in one piece of memory, which the group sums without
/// copies where the ranks share memory: a parameter's grad() is a part of it. The parameters stay as they are.
///
/// For tensors in the host's memory or on one GPU, which is the group's where that is of backend nccl; needs a LibTorch
/// that has c10::Stream::native_handle() there. Gradients are complete for what is asked of the stream that was current
/// where backward was called. Ranks that are threads of one process need a GPU each: LibTorch has one thread per GPU
/// for backward. The module and the group must outlive this. Used by one thread at a time, which must be the one that
/// runs backward. After a backward that threw, the next one starts afresh; if it threw on some ranks only, the ranks
/// are out of step.
template <AnyModuleType Module>
class DistributedDataParallel {
 public:
  /// `module`: a module holder (what TORCH_MODULE makes), a shared_ptr or a reference to a module, or a TorchScript
  /// module. Checks that all ranks have the same parameters and copies rank 0's values and buffers to all. Throws
  /// CommError on every rank if they differ, naming the first difference; UsageError for a module without parameters
  /// that require a gradient, or with such that cannot be summed; DeviceError for tensors on several
  /// devices, and on a GPU where duet or LibTorch cannot.
  template <ModuleHandle Given>
  DistributedDataParallel(Given&& module, ddp::ProcessGroup& group, const DistributedDataParallelOptions& options = {})
      : module_(shared_module(module)),
        synchroniser_(std::make_unique<ModuleSynchroniser>(tensors_of(*module_), group, options)) {
    if (options.blocks != 0) blocks_ = std::make_unique<BlockSteps>(*synchroniser_);
  }

  /// What the module's own forward returns. A TorchScript module's inputs become its list of values.
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    if (at::GradMode::is_enabled()) synchroniser_->follow_parameters();  // backward may follow in eval(), too
    if (!module_->is_training() || !at::GradMode::is_enabled()) return call(*module_, std::forward<Inputs>(inputs)...);
    synchroniser_->step_may_begin();
    const bool synchronises = synchroniser_->synchronises();
    if (synchronises) synchroniser_->forward_begins();
    const std::int64_t rows = rows_of(inputs...);
    auto output = call(*module_, std::forward<Inputs>(inputs)...);
    if (synchronises) synchroniser_->forward_ended();
    synchroniser_->weigh(output, rows);
    return output;
  }
  at::IValue forward(std::vector<at::IValue> inputs) requires std::same_as<Module, ScriptModule> {
    return forward<std::vector<at::IValue>>(std::move(inputs));
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  Module& module() { return *module_; }
  Module* operator->() { return module_.get(); }
  ddp::ProcessGroup& group() { return synchroniser_->group(); }

  /// While it or a copy of it lives, backward accumulates gradients on this rank only. The next backward without it
  /// reduces what has accumulated: `auto guard = net.no_sync();`, or `NoSync guard;` and an assignment where that
  /// depends on the step. It may outlive this.
  using NoSync = Lasting::Hold;
  [[nodiscard]] NoSync no_sync() { return synchroniser_->no_sync(); }

  /// For loops of elastic jobs: `do { if (net.is_done()) continue; ... optimizer.step(); } while (net.redo());`. See
  /// ddp::DistributedDataParallel, of which is_done() is needed here, and may be left out there. LibTorch's generator
  /// of the CPU is seeded for each such body. Throws UsageError as that does.
  bool is_done() { return synchroniser_->loop() != nullptr && synchroniser_->loop()->is_done(); }
  bool redo() { return synchroniser_->loop() != nullptr && synchroniser_->loop()->redo(); }

  /// Runs `body`, in which ranks may train different numbers of steps: see ddp::DistributedDataParallel::join.
  void join(const std::function<void()>& body) { synchroniser_->join(body); }

  /// A step with the option blocks: forward and backward of this rank's rows, one block of the global batch after the
  /// other, in place of backward(). `sum_of_losses` gets the block's rows of all of `batch`, runs this wrapper, and
  /// returns the sum of the rows' losses: with `-> Tensor { return nll_loss(net(x), y, {}, Reduction::Sum); }`.
  /// Replaces the parameters' gradients by those of the mean over all ranks' rows, with the same bits on any number of
  /// ranks up to the number of blocks B; returns this rank's part of that mean, the ranks' parts add up to it. Rank r
  /// of W has blocks [r B / W, (r + 1) B / W), each rounded down, of the n rows of the global batch, of which block i
  /// is rows [i n / B, (i + 1) n / B), as duet::samplers::BlockedBatches gives them. Batch norm takes statistics of
  /// each block, and its running ones are those of block 0. Throws UsageError for other rows, and without the option.
  template <class SumOfLosses, class... Tensors>
  double backward_in_blocks(const SumOfLosses& sum_of_losses, const Tensors&... batch) {
    static_assert(sizeof...(batch) > 0);
    require<UsageError>(blocks_ != nullptr, "backward_in_blocks() needs the option blocks");
    const auto loss_of = [&](std::int64_t begin, std::int64_t end) -> at::Tensor {
      return sum_of_losses(batch.narrow(0, begin, end - begin)...);
    };
    return blocks_->run(rows_of(batch...), loss_of);
  }

 private:
  std::shared_ptr<Module> module_;
  std::unique_ptr<ModuleSynchroniser> synchroniser_;
  std::unique_ptr<BlockSteps> blocks_;  // null: without the option
};

template <ModuleHandle Given>
DistributedDataParallel(Given&&, ddp::ProcessGroup&) -> DistributedDataParallel<ModuleOf<Given>>;
template <ModuleHandle Given>
DistributedDataParallel(Given&&, ddp::ProcessGroup&, const DistributedDataParallelOptions&)
    -> DistributedDataParallel<ModuleOf<Given>>;

}  // namespace duet::torch
