// Training steps of a TorchScript network by LibTorch's own kernels and optimizer: what `duet compare --vs-torch` times
// beside PyTorch's DistributedDataParallel in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ddp/group/process_group.h"
#include "lib/base/module_loader.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet::ddp {

/// What the ranks do with their gradients: nothing; duet::torch::DistributedDataParallel; one all_reduce per parameter
/// after backward, and a division by their number.
enum class ScriptSync : std::uint8_t { none, wrapper, averaged };

struct ScriptStepsOptions {
  std::string file{};  // path of a file that torch.jit.save wrote
  ScriptSync sync = ScriptSync::wrapper;
  bool nll_loss = false;  // else cross_entropy
  int threads = 1;        // CPU threads per rank
  Shape sample_shape{};   // (channels, rows, columns)
  std::int64_t classes = 10;
  std::int64_t images = 0;  // drawn, the same number on each rank
  std::int64_t rows = 0;    // batch size per rank
};

/// Times of one step on this rank, in microseconds, and its loss.
struct ScriptStepTimes {
  double whole = 0, forward = 0, backward = 0;  // forward: with the loss
  double exposed = 0;                           // communication that backward did not hide
  double communication = 0;                     // hidden or not
  double loss = 0;
};

/// This rank's network, images and optimizer. Used by one thread.
class ScriptSteps {
 public:
  virtual ~ScriptSteps() = default;
  /// The next step. Without `synchronises`, gradients stay this rank's (no_sync()), and so its parameters become.
  virtual ScriptStepTimes run(bool synchronises = true) = 0;
  virtual double drawing_us() const = 0;    // time that drawing the images took, before the first step
  virtual const char* version() const = 0;  // LibTorch's
};

/// By the module libduet_torch. The group must outlive the steps. Throws DataError that says why there is no such
/// module, or that names a file which is not TorchScript; UsageError for fewer images than all ranks' rows.
inline std::unique_ptr<ScriptSteps> make_script_steps(const ScriptStepsOptions& options, ProcessGroup& group) {
  using Make = ScriptSteps* (*)(const ScriptStepsOptions* options, ProcessGroup* group);
  static const LoadedModule module = load_torch_module("duet_torch_steps");
  require<DataError>(module.symbol != nullptr, "no steps of LibTorch: ", module.error);
  return std::unique_ptr<ScriptSteps>(reinterpret_cast<Make>(module.symbol)(&options, &group));
}

}  // namespace duet::ddp
