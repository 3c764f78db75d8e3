// TorchScript files.
#pragma once

#include <torch/script.h>

#include <string>

#include "lib/error.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// Throws DataError that names the file.
inline ScriptModule load_script(const std::string& path) {
  try {
    return ::torch::jit::load(path, at::kCPU);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw DataError(concat(path, ": cannot load TorchScript: ", text.substr(0, text.find('\n'))));
  }
}

}  // namespace duet::torch
