// DistributedDataParallel: one process per rank, each with the whole model and a shard of every batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/comm_hook.h"
#include "ddp/group/process_group.h"
#include "lib/base/lasting.h"
#include "lib/nn/module.h"

namespace duet::ddp {

class ModuleHooks;

/// How gradients of ranks become one.
///
/// `rows`: the gradient of the mean over all ranks' rows. Where the loss of a batch that the loader has stamped divided
/// by the rows of the global batch (lib/ops/losses.h), gradients are added up, on CPU with the bits of one device for
/// any number of ranks up to the number of the batch's blocks (lib/blocks.h). All other losses count as means over the
/// rank's own rows, which are dimension 0 of the first tensor of forward's input that has a stamp, or without one of
/// the first: the ranks exchange how many those are when backward begins, and gradients are weighted by them
/// (ddp/rank_weights.h). A sum of both kinds throws UsageError, and so does a function of such a mean that is not
/// linear. A term of the loss that is computed from parameters alone, such as a penalty, counts once: backward adds its
/// gradient to the sum over the ranks. Ranks with batches of their own draw the same dropout masks, as each counts its
/// rows from 0.
///
/// `torch`: gradients are multiplied by 1 / world size before they are added up, as PyTorch does, however many rows
/// each rank has. UsageError for a loss that was divided by the rows of the global batch.
///
/// Where a sampler divided the batches among ranks, they compare stamps in the first collective of backward: steps,
/// sizes, the order of samples, and whether each row is there once. Ranks whose loaders disagree all throw: CommError
/// "the ranks disagree", or UsageError where they exchange their rows, as within join(). Replays of a recorded step are
/// not checked, and of several wrappers in one backward the last one's batches only.
enum class GradientRule { rows, torch };

struct DistributedDataParallelOptions {
  GradientRule rule = GradientRule::rows;
  /// Sizes in bytes, 1 or more, at which buckets are closed, the last repeats. Empty: PyTorch's 1 MiB, then 25 MiB.
  std::vector<std::size_t> bucket_limits{};
  /// Parameters that the loss of a rank does not reach count as zeros there instead of being an error; those that the
  /// loss of no rank reaches have no gradient, as with one device. One small all_reduce a step.
  bool find_unused_parameters = false;
  /// Every step of a rank uses the parameters that its first one used. The others count as zeros, and no bucket waits
  /// for the end of backward to find that out. A graph that changes is an error that names the parameter.
  bool static_graph = false;
  /// Before each forward in training, rank 0's buffers (running statistics) go to all ranks.
  bool broadcast_buffers = true;
  /// In every K-th synchronised step all ranks compare hashes of their parameters; 0: never. backward then throws
  /// CommError on every rank that names the ranks whose parameters are not rank 0's, and the first such parameter. Not
  /// within join(); steps cannot be recorded with it. Steps of an elastic job are those of the job.
  std::int64_t compare_parameters_every = 0;
  /// Ranks may step by gradients that were not reduced, as for local SGD under no_sync(), and otherwise than the
  /// others. Without it, step() throws UsageError there, and backward CommError on every rank if two ranks differ since
  /// the last reduction in their number of forwards (of batches that no sampler divided) or of step() (unless the
  /// program has written values), or in an optimizer, rate, momentum, decay or clip norm. Not within join(), nor in
  /// the first step after it or after a recovery.
  bool local_steps = false;
  /// Communicates gradients in place of all_reduce: ddp/comm_hook.h. The same kind on all ranks.
  std::shared_ptr<CommHook> comm_hook{};
  /// In an elastic job, which does a step again where a rank is lost: a batch may have several forwards, backwards and
  /// updates, of any optimizers and wrappers, as a GAN's has. When a step begins, all values and optimizers' states are
  /// copied for that, and the step is complete when the next batch comes, or the pass ends. Without it one update is
  /// the end of a step, and a second one throws UsageError. No effect in other jobs.
  bool undo = false;
};

/// forward passes straight through. In backward, each gradient that is complete enters the Reducer, which sends full
/// buckets while the rest of backward runs; backward returns when all ranks hold the same gradients. A rank that owns
/// several subtrees of the blocks runs the module on each of them, one after the other, and its gradients are complete
/// with the last; a loss in the module must then be one that is divided by the rows of the global batch, and backward
/// throws UsageError if it comes to such a run by a Variable that forward has kept elsewhere. Prints a warning the
/// first time that a parameter has several uses in one backward. In an elastic job that may continue with fewer ranks
/// that, and what else would make results depend on their number (docs/explanation/reproducibility.md), throws
/// UsageError. Over NCCL a step may be recorded (lib/backend/step_graph.h) and replayed, by all ranks alike: forward
/// and backward throw UsageError where the host has a part in it, as where ranks exchange their rows. What a comm_hook
/// does on the host, it then does once. The module and the group must outlive this. Used by one thread at a time.
class DistributedDataParallel : public nn::Module {
 public:
  /// Checks that all ranks have the same parameters and copies rank 0's values and buffers to all, and the seed of its
  /// model's context, the key of dropout. Throws CommError on every rank if they differ, naming the first difference;
  /// UsageError for a module without parameters.
  DistributedDataParallel(nn::Module& module, ProcessGroup& group, const DistributedDataParallelOptions& options = {});
  ~DistributedDataParallel() override;

  Variable forward(nn::Context& context, const Variable& x) const override;
  nn::Value forward(nn::Context& context, const nn::Value& input) const override;
  nn::Module& module() { return module_; }
  ProcessGroup& group() { return group_; }
  /// Synchronised steps so far; recording one does not count.
  std::int64_t steps() const;

  /// While it or a copy of it lives, backward accumulates gradients on this rank only. The next backward without it
  /// reduces what has accumulated: `auto guard = net.no_sync();`, or `NoSync guard;` and an assignment where that
  /// depends on the step. It may outlive this.
  using NoSync = Lasting::Hold;
  [[nodiscard]] NoSync no_sync();

  /// For loops whose batches no loader delivers that ranks share, in programs that may be an elastic job:
  ///
  ///     for (const auto& [images, labels] : batches) do {
  ///         opt.zero_grad();
  ///         ops::nll_loss(net(images), labels).backward();
  ///         opt.step();
  ///       } while (net.redo());
  ///
  /// True where the step just done was void, as a rank was lost: the body does it again, with the same batch. A process
  /// that replaces the lost one goes through the batches from the first on, without effect up to the step of the
  /// others. Of several wrappers one is asked. False in other jobs, and for a batch that has not gone forward. Throws
  /// UsageError where a loader gives batches again, and in a step without an update.
  [[nodiscard]] bool redo();
  /// Whether the others have the step of the batch that begins now: `if (net.is_done()) continue;` at the begin of the
  /// body of such a loop spares the new process what it would compute without effect. Throws UsageError as redo() does.
  [[nodiscard]] bool is_done();

  /// Runs `body`, in which ranks may train different numbers of steps: those that have ended contribute gradients of
  /// zero to the steps of the others, and in the end get the parameters of a rank that trained the most steps
  /// (torch/distributed/algorithms/join.py). Under GradientRule::torch gradients are still divided by the number of all
  /// ranks, under GradientRule::rows the mean is over the rows of the ranks that train. Optimizers' states stay as they
  /// are. All ranks call it; forward and backward alternate in it. What `body` throws passes through, and leaves the
  /// group out of step.
  void join(const std::function<void()>& body);

 protected:
  std::string type_name() const override { return "DistributedDataParallel"; }

 private:
  template <class T>
  T run(nn::Context& context, const T& input) const;

  nn::Module& module_;
  ProcessGroup& group_;
  std::unique_ptr<ModuleHooks> hooks_;
};

}  // namespace duet::ddp
