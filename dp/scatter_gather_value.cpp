// scatter and gather of nested values.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dp/scatter_gather.h"
#include "lib/error.h"

namespace duet::dp {
namespace {

/// The first tensor found in a value, with its path in the value for messages.
struct Found {
  std::string path;
  std::int64_t size = -1;
};

/// Checks that all tensors have one size of `dim`.
void find_size(const nn::Value& value, int dim, const std::string& path, Found& found) {
  if (value.is_variable()) {
    const Shape& shape = value.variable().shape();
    require<ShapeError>(shape.rank() > dim, "scatter: ", path, " has shape ", shape, ", which has no dimension ", dim);
    if (found.size < 0) found = {path, shape[dim]};
    require<ShapeError>(shape[dim] == found.size, "scatter: ", path, " has ", shape[dim], " rows, but ", found.path,
                        " has ", found.size);
  } else if (value.is_list()) {
    for (std::size_t i = 0; i < value.list().size(); ++i)
      find_size(value.list()[i], dim, path + "[" + std::to_string(i) + "]", found);
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) find_size(item, dim, path + "." + key, found);
  }
}

/// Cuts all tensors, in the order in which map_tensors visits them.
void cut(const nn::Value& value, std::span<const Device> devices, std::span<const std::int64_t> sizes, int dim,
         PooledVector<PooledVector<Variable>>& pieces) {
  if (value.is_variable()) {
    pieces.push_back(scatter(value.variable(), devices, sizes, dim));
  } else if (value.is_list()) {
    for (const nn::Value& item : value.list()) cut(item, devices, sizes, dim, pieces);
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) cut(item, devices, sizes, dim, pieces);
  }
}

}  // namespace

PooledVector<nn::Value> scatter(const nn::Value& value, std::span<const Device> devices, int dim, Split split) {
  Found found;
  find_size(value, dim, "input", found);
  if (found.size < 0) return PooledVector<nn::Value>(devices.size(), value);
  const PooledVector<std::int64_t> sizes = piece_sizes(found.size, static_cast<int>(devices.size()), split);
  PooledVector<PooledVector<Variable>> pieces;
  cut(value, devices, sizes, dim, pieces);
  PooledVector<nn::Value> values;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::size_t next = 0;
    values.push_back(nn::map_tensors(value, [&](const Variable&) { return pieces[next++][i]; }));
  }
  return values;
}

nn::Value gather(std::span<const nn::Value> pieces, Device device, int dim) {
  require<ShapeError>(!pieces.empty(), "gather: expected at least one tensor to gather from");
  const nn::Value& first = pieces[0];
  for (const nn::Value& piece : pieces)
    require<ShapeError>(std::string_view(piece.kind()) == first.kind(), "gather: got a ", piece.kind(),
                        ", but expected a ", first.kind());
  if (first.is_variable()) {
    PooledVector<Variable> variables;
    for (const nn::Value& piece : pieces) variables.push_back(piece.variable());
    return gather(std::span<const Variable>(variables), device, dim);
  }
  const auto gather_item = [&](auto item_of) {
    PooledVector<nn::Value> items;
    for (const nn::Value& piece : pieces) items.push_back(item_of(piece));
    return gather(std::span<const nn::Value>(items), device, dim);
  };
  if (first.is_list()) {
    nn::List list;
    for (const nn::Value& piece : pieces)
      require<ShapeError>(piece.list().size() == first.list().size(), "gather: lists of ", piece.list().size(), " and ",
                          first.list().size(), " items");
    for (std::size_t i = 0; i < first.list().size(); ++i)
      list.push_back(gather_item([i](const nn::Value& piece) { return piece.list()[i]; }));
    return list;
  }
  if (first.is_dict()) {
    nn::Dict dict;
    for (const nn::Value& piece : pieces)
      require<ShapeError>(piece.dict().size() == first.dict().size(),
                          "gather: all dicts must have the same number of keys, got ", piece.dict().size(), " and ",
                          first.dict().size());
    for (const auto& [name, item] : first.dict()) {
      const std::string& key = name;
      dict.emplace_back(key, gather_item([&key](const nn::Value& piece) {
                          for (const auto& [other, value] : piece.dict())
                            if (other == key) return value;
                          throw ShapeError(concat("gather: no key '", key, "' in one of the dicts"));
                        }));
    }
    return dict;
  }
  return first;
}

}  // namespace duet::dp
