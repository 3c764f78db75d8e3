// duet's errors as PyTorch's.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "lib/error.h"

namespace duet::torch {

/// Runs task. duet's UsageError becomes c10::ValueError (ValueError in Python), all else of duet
/// c10::DistBackendError (torch.distributed.DistBackendError, which is a RuntimeError), with duet's text.
template <class Task>
decltype(auto) with_torch_errors(Task&& task) {
  try {
    return std::forward<Task>(task)();
  } catch (const UsageError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const Error& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

}  // namespace duet::torch
