// All that differs between the versions of LibTorch, from 1.13 on.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace duet::torch {

/// The node of the tape that adds up a parameter's gradient: held by a shared_ptr before 2.9, by an intrusive_ptr
/// since.
using GradAccumulator = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// Names a parameter's state in an optimizer: its address, of which 1.13 makes a text.
template <class Optimizer>
auto optimizer_key(const Optimizer& optimizer, const at::Tensor& parameter) {
  using Key = typename std::remove_cvref_t<decltype(optimizer.state())>::key_type;
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return Key(parameter.unsafeGetTensorImpl());
  }
}

/// A c10::Stream as its vendor's type; nothing before LibTorch could tell it (pytorch#171040).
template <class Stream>
std::optional<void*> native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); })
    return stream.native_handle();
  else
    return std::nullopt;
}

}  // namespace duet::torch
