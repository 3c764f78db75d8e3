// Settings of DistributedDataParallel for LibTorch modules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/comm_hook.h"
#include "ddp/distributed_data_parallel.h"

namespace duet::torch {

/// Options like those of ddp::DistributedDataParallel, the same on all ranks.
struct DistributedDataParallelOptions {
  /// `torch`: gradients are divided by the number of ranks, as PyTorch does. `rows`: each rank's loss is the mean over
  /// its own rows, which are dimension 0 of the first tensor that forward gets, and gradients are weighted by how many
  /// those are, which the ranks exchange in every backward. With no_sync(), batches whose gradients were then dropped
  /// count as accumulated unless zero_grad() sets gradients to none.
  ddp::GradientRule rule = ddp::GradientRule::torch;
  /// Sizes in bytes, 1 or more, at which buckets are closed, the last repeats. Empty: PyTorch's 1 MiB, then 25 MiB.
  std::vector<std::size_t> bucket_limits{};
  /// Parameters that the loss of a rank does not reach count as zeros there instead of being an error. One small
  /// all_reduce a step.
  bool find_unused_parameters = false;
  /// Every step of a rank uses the parameters that its first one used; the others count as zeros.
  bool static_graph = false;
  /// Before each forward in training, rank 0's buffers go to all ranks.
  bool broadcast_buffers = true;
  /// In every K-th step all ranks compare hashes of their parameters; 0: never. backward then throws CommError on every
  /// rank that names the ranks whose parameters are not rank 0's, and the first such parameter.
  std::int64_t compare_parameters_every = 0;
  /// Ranks may go forward different numbers of times between two reductions. Without it, backward throws CommError on
  /// every rank that names two ranks and the numbers. Steps of LibTorch's optimizers are not compared.
  bool local_steps = false;
  /// Communicates gradients in place of all_reduce: ddp/comm_hook.h. What it asks of a GPU belongs on the stream of
  /// duet's device (Backend::stream), with which LibTorch's streams are ordered.
  std::shared_ptr<ddp::CommHook> comm_hook{};
  /// 8, 16 or 32: steps are made by backward_in_blocks(), which gives the same bits on any number of ranks up to that,
  /// on GPUs on a number that divides it. 0: by backward(). Not over NCCL, which adds up in an order of its own.
  int blocks = 0;
  /// With blocks: LibTorch's default generators, of the CPU and of the module's device, are seeded for each block, from
  /// this, the step and the block, so that dropout draws the same masks on any number of ranks. The generator is one
  /// for the whole process, so at most one wrapper of a process can have it.
  std::optional<std::uint64_t> block_seed{};
  /// With block_seed: steps that the training had done before, where it goes on from a checkpoint.
  std::int64_t steps_before = 0;
};

}  // namespace duet::torch
