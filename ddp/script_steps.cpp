#include "ddp/script_steps.h"

#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::ddp {

std::unique_ptr<ScriptSteps> make_script_steps(const ScriptStepsOptions& options, ProcessGroup& group) {
  using Make = ScriptSteps* (*)(const ScriptStepsOptions* options, ProcessGroup* group);
  static const LoadedModule module = load_torch_module("duet_torch_steps");
  require<DataError>(module.symbol != nullptr, "no steps of LibTorch: ", module.error);
  return std::unique_ptr<ScriptSteps>(reinterpret_cast<Make>(module.symbol)(&options, &group));
}

}  // namespace duet::ddp
