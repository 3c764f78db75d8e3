// Steps whose sums are those of the blocks of the global batch, with the same bits on any number of ranks.
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
#include "ddp/group/tree_parts.h"
#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"
#include "lib/base/recovery.h"
#include "lib/blocks.h"
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

/// The blocks that one rank owns of the global batch, one after the other: see Note [Owners] in lib/blocks.h.
class BlockSteps {
 public:
  /// Throws UsageError for another number of blocks than 8, 16 or 32, and for more ranks than blocks.
  explicit BlockSteps(ModuleSynchroniser& module)
      : module_(module), blocks_(module.options().blocks), rank_(module.group().rank()), ranks_(module.group().size()) {
    require<UsageError>(is_block_count(blocks_), "blocks is ", blocks_, ", expected 0, 8, 16 or 32");
    require<UsageError>(ranks_ <= blocks_, blocks_, " blocks cannot be shared out among ", ranks_, " ranks",
                        ranks_ <= kMostBlocks ? ": use more blocks" : "");
    require<UsageError>(blocks_ % ranks_ == 0 || module.layout_.device().is_cpu(), blocks_,
                        " blocks are shared out among ", ranks_,
                        " ranks on CPUs only: on GPUs use a number of ranks that divides them");
    require<UsageError>(module.options().rule == ddp::GradientRule::torch,
                        "with blocks all rows of the global batch count alike: leave out GradientRule::rows");
    require<UsageError>(std::string_view(module.group().backend()) != "nccl",
                        "blocks: NCCL adds up in an order of its own, so that bits would depend on the ranks; use shm, "
                        "tcp, gloo or mpi");
    require<UsageError>(!module.options().static_graph,
                        "static_graph is for backward(): with blocks use find_unused_parameters");
    if (blocks_ % ranks_ != 0) share_parts();
    if (module.options().block_seed) seeds_ = std::make_unique<BlockSeeds>(*module.options().block_seed);
  }

  /// Runs loss_of(begin, end), the sum of the losses of these of the rank's rows, and its backward for each block that
  /// has rows, and puts the gradient of the mean over all ranks' rows into the parameters' gradients. Returns this
  /// rank's part of that mean. Throws UsageError on every rank unless each has the rows of its own blocks.
  double run(std::int64_t rows, FunctionRef<at::Tensor(std::int64_t begin, std::int64_t end)> loss_of) {
    if (module_.step_may_begin() && blocks_ % ranks_ != 0) share_parts();
    const std::optional<std::int64_t> known = global_rows(rows);
    if (!known) {
      Recovery::instance().recover_if_void();
      return 0;
    }
    const std::int64_t global = *known, first = share_begin(rank_, ranks_, global, blocks_);
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
    sums_.clear();
    for (int block = first_block(rank_); block < first_block(rank_ + 1); ++block) {
      if (seeds) seeds->block(static_cast<std::uint64_t>(done * blocks_ + block));
      const std::int64_t begin = block_begin(block, global, blocks_) - first;
      const std::int64_t end = block_begin(block + 1, global, blocks_) - first;
      for (std::size_t i = 0; i < used_.size(); ++i) module_.gradient(i) = at::Tensor();
      if (begin < end) {
        const at::Tensor loss = loss_of(begin, end) / static_cast<double>(global);
        require<UsageError>(loss.dim() == 0, "the loss of a block is ", shape_text(loss), ", expected one number");
        loss.backward();
        sum += loss.item<double>();
      }
      take_gradients(block);
      if (block == first_block(rank_)) buffers = copies(module_.buffers_);
    }
    seeds.reset();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers.size(); ++i) module_.buffers_[i].copy_(buffers[i]);
    // A rank without rows adds zeros to what the others use.
    const bool all = rows == 0 && !module_.options().find_unused_parameters;
    const DuetWork work(module_.layout_.device());
    module_.end_backward([&](int slot) { return all || used_[static_cast<std::size_t>(slot)] != 0; }, work);
    return sum;
  }

 private:
  int first_block(int rank) const { return rank * blocks_ / ranks_; }
  /// Memory for the sum of subtree number `i` of those that are not complete.
  FlatGradients& memory(std::size_t i) {
    while (i > others_.size()) others_.emplace_back(module_.layout_, gradient_memory(module_.layout_));
    return i == 0 ? module_.gradients_ : others_[i - 1];
  }

  /// Memory for the sums of this rank's subtrees where some rank has several: where ranks share it, all of them ask for
  /// as much as the one with the most.
  void share_parts() {
    others_.clear();
    ddp::TreeOrder order;
    order.set(ranks_, blocks_);
    std::vector<void*> places;
    for (int part = 1; part < order.most_parts(); ++part)
      others_.emplace_back(module_.layout_, gradient_memory(module_.layout_, &module_.group()));
    for (int part = 1; part < order.parts_of(rank_); ++part)
      places.push_back(memory(static_cast<std::size_t>(part))[0].data_ptr());
    module_.synchroniser_.reducer().set_parts(blocks_, module_.gradients_[0].data_ptr(), places);
  }

  /// Adds the sums on top where they are the two halves of a subtree; in the end one is left for each that the rank
  /// owns.
  void add_halves() {
    while (sums_.size() > 1) {
      const Subtree right = sums_.back(), left = sums_[sums_.size() - 2];
      if (left.blocks != right.blocks || left.first % (2 * left.blocks) != 0) return;
      memory(sums_.size() - 2).add(memory(sums_.size() - 1));
      sums_.pop_back();
      sums_.back().blocks *= 2;
    }
  }

  static std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& tensor : tensors) list.push_back(tensor.detach().clone());
    return list;
  }

  /// Nothing in a void step of an elastic job.
  std::optional<std::int64_t> global_rows(std::int64_t rows) {
    ddp::ProcessGroup& group = module_.group();
    const c10::DeviceGuard guard(module_.layout_.device());
    std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
    group.all_gather(std::span(&rows, 1), std::span(all)).wait();
    if (Recovery::instance().is_void()) return {};
    std::int64_t global = 0;
    for (const std::int64_t rank_rows : all) global += rank_rows;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto begin = [&](std::size_t of) {
        return share_begin(static_cast<std::int64_t>(of), ranks_, global, blocks_);
      };
      const std::int64_t expected = begin(rank + 1) - begin(rank);
      require<UsageError>(all[rank] == expected, "rank ", rank, " has ", all[rank], " of the ", global,
                          " rows of the global batch, expected its blocks' ", expected,
                          ": block i of n rows is [i n / ", blocks_, ", (i + 1) n / ", blocks_, ")");
    }
    require<UsageError>(global > 0, "the global batch has no rows");
    return global;
  }

  void take_gradients(int block) {
    const at::NoGradGuard no_grad;
    sums_.push_back({block, 1});
    FlatGradients& gradients = memory(sums_.size() - 1);
    for (std::size_t i = 0; i < used_.size(); ++i) {
      const at::Tensor& gradient = module_.gradient(i);
      at::Tensor to = gradients[i];
      if (gradient.defined()) {
        require<UsageError>(gradient.layout() == at::kStrided, "the gradient of ", module_.layout_.parameters()[i].name,
                            " is sparse: duet sums dense ones");
        to.copy_(gradient);
        used_[i] = 1;
      } else {
        to.zero_();
      }
    }
    add_halves();
  }

  ModuleSynchroniser& module_;
  int blocks_, rank_, ranks_;
  std::vector<FlatGradients> others_;  // see memory()
  std::vector<Subtree> sums_;          // of the step that runs, by memory
  std::vector<char> used_;             // by parameter: by any block of this rank
  std::unique_ptr<BlockSeeds> seeds_;
};

}  // namespace duet::torch
