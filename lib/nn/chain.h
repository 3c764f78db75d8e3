// Layers that run one after the other, by fused operators where these cover them.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>

#include "lib/nn/module.h"

namespace duet::nn {

using LayerRef = std::reference_wrapper<const Module>;

/// Runs layers one after the other: what Sequential::forward does, for a network whose layers are members of its own.
///   return chain(context, x, {conv_, pool_, relu_, flatten_, fc_, log_softmax_});
/// ReLU, MaxPool2d, Flatten and LogSoftmax have no values and need no registration.
///
/// These runs of layers are one operator each (Context::fuse):
///   Conv2d with a bias, MaxPool2d whose windows tile, ReLU, and Dropout if there is one (ops::conv_pool_relu); also
///     with ReLU before MaxPool2d;
///   Linear, ReLU, and Dropout if there is one (ops::linear_relu_dropout);
///   Linear, LogSoftmax (ops::linear_log_softmax).
/// A subclass of a layer runs its own forward.
Variable chain(Context& context, const Variable& x, std::span<const LayerRef> layers);
inline Variable chain(Context& context, const Variable& x, std::initializer_list<LayerRef> layers) {
  return chain(context, x, std::span<const LayerRef>(layers.begin(), layers.size()));
}

}  // namespace duet::nn
