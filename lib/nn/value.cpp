#include "lib/nn/value.h"

#include "lib/error.h"

namespace duet::nn {

const char* Value::kind() const {
  constexpr const char* kNames[] = {"nothing", "tensor", "list", "dict", "object"};
  return kNames[content_.index()];
}

const Variable& Value::variable() const {
  require<ShapeError>(is_variable(), "got a ", kind(), ", expected a tensor");
  return std::get<Variable>(content_);
}

const List& Value::list() const {
  require<ShapeError>(is_list(), "got a ", kind(), ", expected a list");
  return *std::get<std::shared_ptr<const List>>(content_);
}

const Dict& Value::dict() const {
  require<ShapeError>(is_dict(), "got a ", kind(), ", expected a dict");
  return *std::get<std::shared_ptr<const Dict>>(content_);
}

const std::any& Value::object() const {
  require<ShapeError>(is_opaque(), "got a ", kind(), ", expected an opaque object");
  return *std::get<std::shared_ptr<const std::any>>(content_);
}

const Variable* first_tensor(const Value& value) {
  const Variable* first = nullptr;
  for_each_tensor(value, [&](const Variable& variable) { first = first ? first : &variable; });
  return first;
}

}  // namespace duet::nn
