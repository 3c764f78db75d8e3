// Fields of results.json by name.
#pragma once

#include <nlohmann/json.hpp>

#include "lib/error.h"

namespace duet::cli {

/// Throws DataError that names a field which is missing.
inline const nlohmann::ordered_json& at(const nlohmann::ordered_json& from, const char* field) {
  require<DataError>(from.is_object() && from.contains(field), "results: field '", field, "' is missing");
  return from.at(field);
}

/// Throws DataError with the field's value where it is no T, too.
template <class T>
void read(const nlohmann::ordered_json& from, const char* field, T& value) {
  const nlohmann::ordered_json& item = at(from, field);
  try {
    value = item.get<T>();
  } catch (const nlohmann::ordered_json::exception& error) {
    throw DataError(concat("results: field '", field, "' is ", item.dump(), ": ", error.what()));
  }
}

}  // namespace duet::cli
