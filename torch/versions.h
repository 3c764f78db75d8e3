// All that differs between the versions of LibTorch, from 1.13 on.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace duet::torch {

/// The node of the tape that adds up a parameter's gradient: held by a shared_ptr before 2.9, by an intrusive_ptr
/// since.
using GradAccumulator = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

}  // namespace duet::torch
