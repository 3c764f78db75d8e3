// Steps whose sums are those of 8 blocks of the global batch, with the same bits on 1, 2, 4 and 8 ranks.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"
#include "lib/error.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "torch/device_order.h"
#include "torch/flat_gradients.h"
#include "torch/module_synchroniser.h"
#include "torch/run_seeds.h"

namespace duet::torch {

/// Seeds LibTorch's default generators, of the CPU and of the module's device, for each block of a step, after which
/// they go on as before.
class BlockSeeds {
 public:
  /// Throws UsageError where a wrapper of this process has such seeds already.
  explicit BlockSeeds(std::uint64_t seed) : seed_(seed) {
    require<UsageError>(!taken().exchange(true),
                        "block_seed: another wrapper of this process seeds LibTorch's default generator already; run "
                        "the ranks as processes");
  }
  ~BlockSeeds() { taken() = false; }
  BlockSeeds(const BlockSeeds&) = delete;
  BlockSeeds& operator=(const BlockSeeds&) = delete;

  /// One step's.
  class Step {
   public:
    Step(std::uint64_t seed, const at::Device& device) : seed_(seed) {
      if (!device.is_cpu()) own_.emplace(device);
    }
    /// `number`: of the block among those of all steps.
    void block(std::uint64_t number) {
      const std::uint64_t word = Philox(seed_, number).word();
      cpu_.seed(word);
      if (own_) own_->seed(word);
    }

   private:
    std::uint64_t seed_;
    SeededGenerator cpu_{at::kCPU};
    std::optional<SeededGenerator> own_;  // for the module's device, where that is not the CPU
  };
  std::uint64_t seed() const { return seed_; }

 private:
  static std::atomic<bool>& taken() {
    static std::atomic<bool> taken{false};
    return taken;
  }
  std::uint64_t seed_;
};

/// The blocks of one rank: 8 / ranks of the global batch, one after the other.
class BlockSteps {
 public:
  /// Throws UsageError for another number of blocks than 8, and of ranks than 1, 2, 4 and 8.
  explicit BlockSteps(ModuleSynchroniser& module) : module_(module) {
    const int ranks = module.group().size();
    require<UsageError>(module.options().blocks == kBlocks, "blocks is ", module.options().blocks, ", expected 0 or ",
                        kBlocks);
    require<UsageError>(kBlocks % ranks == 0, kBlocks, " blocks cannot be shared out among ", ranks,
                        " ranks: use 1, 2, 4 or 8");
    require<UsageError>(module.options().rule == ddp::GradientRule::torch,
                        "with blocks all rows of the global batch count alike: leave out GradientRule::rows");
    require<UsageError>(std::string_view(module.group().backend()) != "nccl",
                        "blocks: NCCL adds up in an order of its own, so that bits would depend on the ranks; use shm, "
                        "tcp, gloo or mpi");
    require<UsageError>(!module.options().static_graph,
                        "static_graph is for backward(): with blocks use find_unused_parameters");
    own_ = kBlocks / ranks;
    for (int block = 1; block < own_; ++block) others_.emplace_back(module.layout_, gradient_memory(module.layout_));
    if (module.options().block_seed) seeds_ = std::make_unique<BlockSeeds>(*module.options().block_seed);
  }

  /// Runs loss_of(begin, end), the sum of the losses of these of the rank's rows, and its backward for each block that
  /// has rows, and puts the gradient of the mean over all ranks' rows into the parameters' gradients. Returns this
  /// rank's part of that mean. Throws UsageError on every rank unless each has its own 8 / ranks blocks of the rows.
  double run(std::int64_t rows, FunctionRef<at::Tensor(std::int64_t begin, std::int64_t end)> loss_of) {
    const std::int64_t global = global_rows(rows), first = block_begin(first_block(), global);
    const std::int64_t done = module_.options().steps_before + module_.steps();
    module_.synchroniser_.backward_begins();
    module_.forward_begins();
    module_.forward_ended();
    used_.assign(module_.accumulated_.size(), 0);
    std::vector<at::Tensor> buffers;  // after the first block, whose statistics count
    double sum = 0;
    const Lasting::Hold in_block = module_.in_block_.hold();
    std::optional<BlockSeeds::Step> seeds;
    if (seeds_) seeds.emplace(seeds_->seed(), module_.layout_.device());
    for (int block = 0; block < own_; ++block) {
      const int number = first_block() + block;
      if (seeds) seeds->block(static_cast<std::uint64_t>(done * kBlocks + number));
      const std::int64_t begin = block_begin(number, global) - first, end = block_begin(number + 1, global) - first;
      for (std::size_t i = 0; i < used_.size(); ++i) module_.gradient(i) = at::Tensor();
      if (begin < end) {
        const at::Tensor loss = loss_of(begin, end) / static_cast<double>(global);
        require<UsageError>(loss.dim() == 0, "the loss of a block is ", shape_text(loss), ", expected one number");
        loss.backward();
        sum += loss.item<double>();
      }
      take_gradients(block);
      if (block == 0) buffers = copies(module_.buffers_);
    }
    seeds.reset();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers.size(); ++i) module_.buffers_[i].copy_(buffers[i]);
    for (int step = 1; step < own_; step *= 2)
      for (int block = 0; block + step < own_; block += 2 * step) memory(block).add(memory(block + step));
    // A rank without rows adds zeros to what the others use.
    const bool all = rows == 0 && !module_.options().find_unused_parameters;
    const DuetWork work(module_.layout_.device());
    module_.synchroniser_.backward_ended([&](int slot) { return all || used_[static_cast<std::size_t>(slot)] != 0; });
    work.before_torch();
    module_.take_sums();
    return sum;
  }

 private:
  int first_block() const { return module_.group().rank() * own_; }
  FlatGradients& memory(int block) {
    return block == 0 ? module_.gradients_ : others_[static_cast<std::size_t>(block - 1)];
  }

  static std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : tensors) list.push_back(tensor.detach().clone());
    return list;
  }

  std::int64_t global_rows(std::int64_t rows) {
    ddp::ProcessGroup& group = module_.group();
    const c10::DeviceGuard guard(module_.layout_.device());
    std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
    group.all_gather(std::span(&rows, 1), std::span(all)).wait();
    std::int64_t global = 0;
    for (const std::int64_t rank_rows : all) global += rank_rows;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto at = static_cast<std::int64_t>(rank) * own_;
      const std::int64_t expected = block_begin(at + own_, global) - block_begin(at, global);
      require<UsageError>(all[rank] == expected, "rank ", rank, " has ", all[rank], " of the ", global,
                          " rows of the global batch, expected its blocks' ", expected,
                          ": block i of n rows is [i n / 8, (i + 1) n / 8)");
    }
    require<UsageError>(global > 0, "the global batch has no rows");
    return global;
  }

  void take_gradients(int block) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < used_.size(); ++i) {
      const at::Tensor& gradient = module_.gradient(i);
      at::Tensor to = memory(block)[i];
      if (gradient.defined()) {
        require<UsageError>(gradient.layout() == at::kStrided, "the gradient of ", module_.layout_.parameters()[i].name,
                            " is sparse: duet sums dense ones");
        to.copy_(gradient);
        used_[i] = 1;
      } else {
        to.zero_();
      }
    }
  }

  ModuleSynchroniser& module_;
  int own_ = 0;                        // blocks of this rank
  std::vector<FlatGradients> others_;  // gradients of the blocks after the first
  std::vector<char> used_;             // by parameter: by any block of this rank
  std::unique_ptr<BlockSeeds> seeds_;
};

}  // namespace duet::torch
