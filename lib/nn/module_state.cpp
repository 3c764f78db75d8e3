// The state and the text of modules.
#include <cstddef>
#include <string>
#include <vector>

#include "lib/error.h"
#include "lib/nn/module.h"

namespace duet::nn {

std::vector<NamedTensor> Module::state_dict() {
  std::vector<NamedTensor> state;
  context().store->require_whole_values();
  append_state("", context(), state);
  return state;
}

void Module::append_state(const std::string& prefix, const Context& own, std::vector<NamedTensor>& state) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    state.push_back(
        {prefix + parameters_[i].name, own.store->value(range_.first_slot + static_cast<int>(i) - own.first_slot)});
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    state.push_back({prefix + buffers_[i].name, own.buffer(range_.first_buffer + static_cast<int>(i))});
  for (const Child& part : children_) child(part).append_state(prefix + part.name + ".", own, state);
}

void Module::load_state_dict(const std::vector<NamedTensor>& state) {
  const std::vector<NamedTensor> own = state_dict();
  const auto find = [](const std::vector<NamedTensor>& list, const std::string& name) -> const Tensor* {
    for (const NamedTensor& item : list)
      if (item.name == name) return &item.tensor;
    return nullptr;
  };
  for (const NamedTensor& given : state)
    require<DataError>(find(own, given.name) != nullptr, "this model has no tensor '", given.name, "'");
  for (const NamedTensor& mine : own) {
    const Tensor* const given = find(state, mine.name);
    if (given == nullptr && is_optional(mine.name)) continue;
    require<DataError>(given != nullptr, "no tensor '", mine.name, "', which this model needs");
    require<DataError>(given->shape() == mine.tensor.shape() && given->dtype() == mine.tensor.dtype(), "tensor '",
                       mine.name, "' has shape ", given->shape(), " ", name(given->dtype()), ", this model expects ",
                       mine.tensor.shape(), " ", name(mine.tensor.dtype()));
  }
  for (const NamedTensor& mine : own)
    if (const Tensor* const given = find(state, mine.name)) copy(*given, mine.tensor);
}

std::string Module::str() const {
  std::string text;
  append_text(text, 0);
  return text;
}

void Module::append_text(std::string& text, int indent) const {
  text += type_name() + "(" + details();
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::vector<std::string> parts(children_.size());
  for (std::size_t i = 0; i < parts.size(); ++i) child(children_[i]).append_text(parts[i], indent + 2);
  for (std::size_t first = 0, last; first < parts.size(); first = last + 1) {
    last = first;
    while (merges_equal_children() && last + 1 < parts.size() && parts[last + 1] == parts[first]) ++last;
    text += "\n" + margin + "  (" + children_[first].name;
    if (last > first) text += "-" + children_[last].name;
    text += "): " + (last > first ? std::to_string(last - first + 1) + " x " : "") + parts[first];
  }
  text += children_.empty() ? ")" : "\n" + margin + ")";
}

}  // namespace duet::nn
