// Layers that run one after the other, by fused operators where these cover them; modules made of modules.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/nn/module.h"

namespace duet::nn {

using LayerRef = std::reference_wrapper<const Module>;

/// Runs layers one after the other: what Sequential::forward does, for a network whose layers are members of its own.
///   return chain(context, x, {conv_, pool_, relu_, flatten_, fc_, log_softmax_});
/// Layers without values (ReLU, pools, Flatten, LogSoftmax) need no registration.
///
/// These runs of layers are one operator each (Context::fuse):
///   Conv2d with a bias and without groups, MaxPool2d whose windows tile, ReLU, and Dropout if there is one
///     (ops::conv_pool_relu); also with ReLU before MaxPool2d;
///   Linear, ReLU, and Dropout if there is one (ops::linear_relu_dropout);
///   Linear, LogSoftmax (ops::linear_log_softmax);
///   BatchNorm2d or SyncBatchNorm, ReLU (BatchNorm2d::forward_relu).
/// A subclass of a layer runs its own forward.
Variable chain(Context& context, const Variable& x, std::span<const LayerRef> layers);
inline Variable chain(Context& context, const Variable& x, std::initializer_list<LayerRef> layers) {
  return chain(context, x, std::span<const LayerRef>(layers.begin(), layers.size()));
}

/// torch.nn.Sequential: children "0", "1", ... run one after the other, as chain() runs them.
///   nn::Sequential net(std::make_unique<nn::Linear>(4, 8), std::make_unique<nn::ReLU>());
class Sequential : public Module {
 public:
  Sequential() = default;
  /// Children that exist, in this order.
  template <std::derived_from<Module>... Layers>
  explicit Sequential(std::unique_ptr<Layers>... layers) {
    (append(std::move(layers)), ...);
  }
  /// Layers do not move: they are made where they stay.
  template <std::derived_from<Module>... Layers>
  requires(sizeof...(Layers) > 0) explicit Sequential(Layers&&...) {
    static_assert(sizeof...(Layers) == 0,
                  "write nn::Sequential(std::make_unique<nn::Linear>(4, 2), std::make_unique<nn::ReLU>())");
  }
  /// Constructs a child of type M at the end. Throws UsageError after the model's values were made.
  template <class M, class... Args>
  M& add(Args&&... args) {
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *child;
    append(std::move(child));
    return reference;
  }
  /// Appends a child that exists.
  void append(std::unique_ptr<Module> child);
  std::size_t size() const { return children_.size(); }
  const Module& operator[](std::size_t i) const { return *children_.at(i); }
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 private:
  std::vector<std::unique_ptr<Module>> children_;
  std::vector<LayerRef> layers_;  // references to children_
};

/// torch.nn.ModuleList: holds children, has no forward of its own.
class ModuleList : public Sequential {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  bool merges_equal_children() const override { return true; }
};

}  // namespace duet::nn
