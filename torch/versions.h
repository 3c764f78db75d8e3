// All that differs between the versions of LibTorch, from 1.13 on.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

namespace duet::torch {

/// The node of the tape that adds up a parameter's gradient: held by a shared_ptr before 2.9, by an intrusive_ptr
/// since.
using GradAccumulator = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// A c10::Stream as its vendor's type; nothing before LibTorch could tell it (pytorch#171040).
template <class Stream>
std::optional<void*> native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); })
    return stream.native_handle();
  else
    return std::nullopt;
}

}  // namespace duet::torch
