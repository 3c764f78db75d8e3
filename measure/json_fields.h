// Fields of results.json by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/error.h"

namespace duet::cli {

inline constexpr double kLargestNumber = 1e15;  // of any that times are computed from
inline constexpr int kDeepest = 32;             // nesting depth

/// Parses `text`; the result is_discarded() if it is not JSON. Throws DataError for lists nested so deeply that walking
/// them would take all of the stack.
inline nlohmann::ordered_json parsed_json(const std::string& text) {
  using Json = nlohmann::ordered_json;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    require<DataError>(depth <= kDeepest, "results: nesting is more than ", kDeepest, " deep");
    return true;
  };
  return Json::parse(text, shallow, false);
}

/// A value in an error's text, cut where it is long.
inline std::string shown(const nlohmann::ordered_json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true);  // of ASCII alone, so that no character is cut
  if (text.size() > kLongest) text.replace(kLongest, text.size(), "...");
  return text;
}

/// Throws DataError that names a field which is missing.
inline const nlohmann::ordered_json& at(const nlohmann::ordered_json& from, const char* field) {
  require<DataError>(from.is_object() && from.contains(field), "results: field '", field, "' is missing");
  return from.at(field);
}

/// Throws DataError with the field's value where it lies outside.
template <class T>
void require_within(const std::string& field, T value, T least, T most = std::numeric_limits<T>::max()) {
  require<DataError>(value >= least, "results: field '", field, "' is ", value, ", expected ", least, " or more");
  require<DataError>(value <= most, "results: field '", field, "' is ", value, ", expected at most ", most);
}

/// The list of that name. Throws DataError where it is none.
inline const nlohmann::ordered_json& list_at(const nlohmann::ordered_json& from, const char* field) {
  const nlohmann::ordered_json& item = at(from, field);
  require<DataError>(item.is_array(), "results: field '", field, "' is ", shown(item), ", expected a list");
  return item;
}

/// Why `item` is no T as it is, "expected ...": a number with a fraction is no whole number, a truth value no number.
/// Empty where it is one.
template <class T>
std::string why_not(const nlohmann::ordered_json& item) {
  if constexpr (std::is_same_v<T, bool>) {
    return item.is_boolean() ? "" : "expected true or false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return item.is_string() ? "" : "expected a text";
  } else if constexpr (std::is_floating_point_v<T>) {
    return item.is_number() ? "" : "expected a number";
  } else {
    const bool fits = item.is_number_unsigned()  ? std::in_range<T>(item.get<std::uint64_t>())
                      : item.is_number_integer() ? std::in_range<T>(item.get<std::int64_t>())
                                                 : false;
    using Limits = std::numeric_limits<T>;
    return fits ? "" : concat("expected a whole number from ", Limits::min(), " to ", Limits::max());
  }
}

/// Throws DataError with the field's value where it is no T, too.
template <class T>
void read(const nlohmann::ordered_json& from, const char* field, T& value) {
  const nlohmann::ordered_json& item = at(from, field);
  const std::string why = why_not<T>(item);
  require<DataError>(why.empty(), "results: field '", field, "' is ", shown(item), ", ", why);
  value = item.get<T>();
}

inline void read(const nlohmann::ordered_json& from, const char* field, std::vector<std::string>& values) {
  values.clear();
  for (const nlohmann::ordered_json& item : list_at(from, field)) {
    require<DataError>(item.is_string(), "results: field '", field, "' holds ", shown(item), ", expected texts");
    values.push_back(item.get<std::string>());
  }
}

}  // namespace duet::cli
