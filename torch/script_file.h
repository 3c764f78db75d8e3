// TorchScript files.
#pragma once

#include <torch/script.h>

#include <algorithm>
#include <string>

#include "lib/error.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// Throws DataError that names the file.
inline ScriptModule load_script(const std::string& path) {
  try {
    return ::torch::jit::load(path, at::kCPU);
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    // Every archive of TorchScript has it; torch.save and torch.export write others.
    require<DataError>(text.find("constants.pkl") == std::string::npos, path,
                       ": is of torch.save or torch.export, expected TorchScript: torch.jit.script(model).save(FILE)");
    text.resize(std::min({text.size(), text.find('\n'), text.find(". This is an internal miniz error")}));
    throw DataError(concat(path, ": cannot load TorchScript: ", text));
  }
}

}  // namespace duet::torch
