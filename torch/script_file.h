// TorchScript files.
#pragma once

#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>

#include <string>

#include "lib/error.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// For duet's own programs, which run it without LibTorch's compiler: the wheels have none, and that of Debian 13's 2.6
/// does not come back from some networks. Throws DataError that names the file.
inline ScriptModule load_script(const std::string& path) {
  ::torch::jit::setTensorExprFuserEnabled(false);
  try {
    return ::torch::jit::load(path, at::kCPU);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw DataError(concat(path, ": not a TorchScript file: ", text.substr(0, text.find('\n'))));
  }
}

}  // namespace duet::torch
