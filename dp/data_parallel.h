// DataParallel: one process, one thread per device, one model.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/replicate.h"
#include "dp/scatter_gather.h"
#include "lib/base/trace.h"
#include "lib/nn/module.h"
#include "lib/nn/value.h"
#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet::dp {

struct DataParallelOptions {
  /// The first holds the model. Empty: cpu:0 alone.
  std::vector<Device> devices;
  /// Where outputs are gathered; the first device unless set.
  std::optional<Device> output_device = {};
  /// The dimension along which inputs are cut and outputs joined.
  int dim = 0;
  Refresh replicas = Refresh::persistent;
  /// Computed in each replica from its output and its piece of the second input, so that outputs are not gathered: the
  /// model is then called with a list {input, target} and gives the loss. Losses are weighted by rows.
  std::function<Variable(const Variable& output, const Tensor& target)> loss = nullptr;
  /// False: the four steps leave no events in the trace (lib/base/trace.h).
  bool traced = true;
};

/// Cuts each batch into one piece per device, runs the module on all pieces in parallel, and joins the outputs on the
/// output device. Backward runs the replicas' tapes in parallel and sums their gradients on the first device, and on
/// all devices that keep parameters of their own (torch/nn/parallel/data_parallel.py). A batch stamped by the loader is
/// cut into whole blocks, so that on CPU the sum has the bits of one device for any number of them up to the number of
/// blocks (lib/blocks.h), and with few rows some pieces are empty; others are cut as PyTorch's chunk does, and few rows
/// use fewer replicas. A device that owns several subtrees of the blocks runs the module on each, which must then
/// compute row by row: results have the rows of the input, or are a loss or mean over them, which becomes that of the
/// whole batch. With one device that has one piece the module is called directly. Beside a stamped batch, tensors
/// without a stamp go whole to each device unless they have as many rows. Prints a warning the first time that such
/// ones are cut, and that a parameter has several uses in one forward. backward throws UsageError if it comes to a
/// replica by a Variable that forward has kept elsewhere.
///
/// The module must outlive this. Used by one thread at a time; that thread is the first device's.
class DataParallel : public nn::Module {
 public:
  /// Throws UsageError for a device named twice, DeviceError for one that does not exist.
  DataParallel(nn::Module& module, const DataParallelOptions& options);

  Variable forward(nn::Context& context, const Variable& x) const override;
  nn::Value forward(nn::Context& context, const nn::Value& input) const override;
  nn::Module& module() { return module_; }

  /// See Replicas; without persistent replicas on devices of their own there is nothing to compare.
  void require_same_replicas() const { replicas_->require_same_values(); }

 private:
  /// `from`: what the pieces were cut from, of which `count` rows are here.
  nn::Value run_replicas(const std::shared_ptr<Replicas>& replicas, nn::Context& context,
                         const PooledVector<nn::Value>& pieces, const CutBatch& from, std::int64_t count) const;
  /// The replicas for this cut.
  std::shared_ptr<Replicas> replicas_for(const Cut& cut, const Rows& batch) const;
  const char* traced(const char* name) const { return options_.traced ? name : nullptr; }
  nn::Value join(const PooledVector<nn::Value>& outputs, const CutBatch& from) const;

  nn::Module& module_;
  DataParallelOptions options_;
  Replicas::Forward forward_;           // runs the module, and the loss if that is computed in the replicas
  bool owns_blocks_;                    // devices are CPUs, and the module's sums those of blocks
  std::shared_ptr<Replicas> replicas_;  // one on each device
  mutable std::vector<std::shared_ptr<Replicas>> pieces_;  // by cut in which some device has several
  mutable std::atomic<bool> said_{false}, said_rows_{false};
};

}  // namespace duet::dp
