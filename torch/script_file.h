// TorchScript files.
#pragma once

#include <torch/script.h>

#include <algorithm>
#include <string>

#include "lib/error.h"
#include "lib/io/file_format.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// Throws DataError that names the file.
inline ScriptModule load_script(const std::string& path) {
  try {
    return ::torch::jit::load(path, at::kCPU);
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    std::string format = describe_file(path, FileContent::script);
    // Every archive of TorchScript has it.
    if (format.empty() && text.find("constants.pkl") != std::string::npos) format = "of torch.save";
    require<DataError>(format.empty(), path, ": expected TorchScript, torch.jit.script(model).save(FILE), but it is ",
                       format);
    text.resize(std::min({text.size(), text.find('\n'), text.find(". This is an internal miniz error")}));
    throw DataError(concat(path, ": cannot load TorchScript: ", text));
  }
}

}  // namespace duet::torch
