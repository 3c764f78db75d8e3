// The input or output of a model: a variable, lists and dictionaries of them, or anything that is passed on untouched.
#pragma once

#include <any>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/error.h"

namespace duet::nn {

class Value;
using List = std::vector<Value>;
/// Keys in the order in which they were given.
using Dict = std::vector<std::pair<std::string, Value>>;

/// Cheap to copy: lists, dictionaries and opaque objects are shared.
class Value {
 public:
  Value() = default;                                                             // nothing, PyTorch's None
  Value(Variable variable) : content_(std::move(variable)) {}                    // NOLINT(google-explicit-constructor)
  Value(const Tensor& tensor) : content_(Variable(tensor)) {}                    // NOLINT(google-explicit-constructor)
  Value(List list) : content_(std::make_shared<const List>(std::move(list))) {}  // NOLINT(google-explicit-constructor)
  Value(Dict dict) : content_(std::make_shared<const Dict>(std::move(dict))) {}  // NOLINT(google-explicit-constructor)
  /// Anything else; handed to every replica as it is.
  static Value opaque(std::any object) {
    Value value;
    value.content_ = std::make_shared<const std::any>(std::move(object));
    return value;
  }

  bool is_none() const { return std::holds_alternative<std::monostate>(content_); }
  bool is_variable() const { return std::holds_alternative<Variable>(content_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(content_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(content_); }
  bool is_opaque() const { return std::holds_alternative<std::shared_ptr<const std::any>>(content_); }

  /// Each throws ShapeError, naming what the value is, when it is something else.
  const Variable& variable() const { return as<Variable>("a tensor"); }
  const List& list() const { return *as<std::shared_ptr<const List>>("a list"); }
  const Dict& dict() const { return *as<std::shared_ptr<const Dict>>("a dict"); }
  const std::any& object() const { return *as<std::shared_ptr<const std::any>>("an opaque object"); }
  /// "tensor", "list", "dict", "object" or "nothing".
  const char* kind() const {
    constexpr const char* kNames[] = {"nothing", "tensor", "list", "dict", "object"};
    return kNames[content_.index()];
  }

 private:
  template <class T>
  const T& as(const char* expected) const {
    require<ShapeError>(std::holds_alternative<T>(content_), "got a ", kind(), ", expected ", expected);
    return std::get<T>(content_);
  }

  std::variant<std::monostate, Variable, std::shared_ptr<const List>, std::shared_ptr<const Dict>,
               std::shared_ptr<const std::any>>
      content_;
};

/// Calls visit(variable) for each tensor of a value, depth first.
template <class Visit>
void for_each_tensor(const Value& value, Visit&& visit) {
  if (value.is_variable()) visit(value.variable());
  if (value.is_list())
    for (const Value& item : value.list()) for_each_tensor(item, visit);
  if (value.is_dict())
    for (const auto& [key, item] : value.dict()) for_each_tensor(item, visit);
}

/// Calls visit(variable, path) likewise, with the place of each tensor in the value: "input[1]" for `path` "input".
template <class Visit>
void for_each_named_tensor(const Value& value, const std::string& path, Visit&& visit) {
  if (value.is_variable()) visit(value.variable(), path);
  if (value.is_list())
    for (std::size_t i = 0; i < value.list().size(); ++i)
      for_each_named_tensor(value.list()[i], path + "[" + std::to_string(i) + "]", visit);
  if (value.is_dict())
    for (const auto& [key, item] : value.dict()) for_each_named_tensor(item, path + "." + key, visit);
}

/// The first tensor of a value that has the stamp of a batch, or without one the first, or null.
inline const Variable* first_tensor(const Value& value) {
  const Variable *first = nullptr, *stamped = nullptr;
  for_each_tensor(value, [&](const Variable& variable) {
    if (first == nullptr) first = &variable;
    if (stamped == nullptr && variable.defined() && variable.value().stamp().stamped()) stamped = &variable;
  });
  return stamped != nullptr ? stamped : first;
}
inline const Variable* first_tensor(const Variable& variable) { return &variable; }

/// The value with visit(variable) in the place of each of its tensors, visited in the same order; all else is shared.
template <class Visit>
Value map_tensors(const Value& value, Visit&& visit) {
  if (value.is_variable()) return visit(value.variable());
  if (value.is_list()) {
    List list;
    for (const Value& item : value.list()) list.push_back(map_tensors(item, visit));
    return list;
  }
  if (value.is_dict()) {
    Dict dict;
    for (const auto& [key, item] : value.dict()) dict.emplace_back(key, map_tensors(item, visit));
    return dict;
  }
  return value;
}

}  // namespace duet::nn
