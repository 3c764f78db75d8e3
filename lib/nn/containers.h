// Modules made of modules.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/nn/chain.h"
#include "lib/nn/module.h"

namespace duet::nn {

/// torch.nn.Sequential: children "0", "1", ... run one after the other, as chain() runs them.
class Sequential : public Module {
 public:
  /// Constructs a child of type M at the end. Throws UsageError after the model's values were made.
  template <class M, class... Args>
  M& add(Args&&... args) {
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *child;
    append(std::move(child));
    return reference;
  }
  std::size_t size() const { return children_.size(); }
  const Module& operator[](std::size_t i) const { return *children_.at(i); }
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string type_name() const override { return "Sequential"; }

 private:
  void append(std::unique_ptr<Module> child);
  std::vector<std::unique_ptr<Module>> children_;
  std::vector<LayerRef> layers_;  // the same
};

/// torch.nn.ModuleList: holds children, has no forward of its own.
class ModuleList : public Sequential {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string type_name() const override { return "ModuleList"; }
  bool merges_equal_children() const override { return true; }
};

}  // namespace duet::nn
