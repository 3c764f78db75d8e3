#include "lib/nn/containers.h"

#include <string>
#include <utility>

#include "lib/error.h"

namespace duet::nn {

void Sequential::append(std::unique_ptr<Module> child) {
  register_module(std::to_string(children_.size()), *child);
  layers_.emplace_back(*child);
  children_.push_back(std::move(child));
}

Variable Sequential::forward(Context& context, const Variable& x) const { return chain(context, x, layers_); }

Variable ModuleList::forward(Context&, const Variable&) const {
  throw UsageError("ModuleList has no forward: call its children one by one");
}

}  // namespace duet::nn
