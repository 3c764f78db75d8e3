// JSON of structs: `void fields(auto& io, T& value)` lists the fields of one in their order, with io(name, member,
// rule), for JsonWriter and for JsonReader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/error.h"

extern template class nlohmann::basic_json<nlohmann::ordered_map>;  // instantiated once, in json_fields.cpp

namespace duet::cli {

using Json = nlohmann::ordered_json;

inline constexpr double kLargestNumber = 1e15;  // limit of all numbers that times are computed from
inline constexpr int kDeepest = 32;             // nesting depth

/// Parses `text`; the result is_discarded() if it is not JSON. Throws DataError for lists nested so deeply that walking
/// them would take all of the stack.
Json parsed_json(const std::string& text);

/// A value in an error's text, cut where it is long.
std::string shown(const Json& value);

/// What a field that is read must keep.
struct Rule {
  double least = std::numeric_limits<double>::lowest(), most = std::numeric_limits<double>::max();
  bool (*fits)(const std::string&) = nullptr;  // a text
  const char* expected = "";                   // such a text
  bool later = false;                          // older files have none
  bool infinite = false;                       // null is infinity, which JSON has not
};
inline constexpr Rule kRows{.least = 1, .most = kLargestNumber};  // rows of all devices: their sum does not overflow
inline constexpr Rule kAmount{.least = 0, .most = kLargestNumber}, kShare{.least = 0, .most = 1};

template <class T, template <class...> class Kind>
inline constexpr bool is_a = false;
template <template <class...> class Kind, class... Of>
inline constexpr bool is_a<Kind<Of...>, Kind> = true;

template <class T, class Io>
concept HasFields = requires(Io& io, T& value) {
  fields(io, value);
};

struct JsonWriter {
  template <class T>
  void operator()(const char* name, const T& value, const Rule& = {}) {
    json[name] = json_of(value);
  }
  void enter(const char*) {}
  void check(const std::string&, const auto&, const Rule&) {}

  /// Takes a copy, because fields(), which reads, too, needs a value that it may change.
  template <class T>
  static Json json_of(T value) {
    JsonWriter io;
    if constexpr (is_a<T, std::optional>) {
      if (value) io.json = json_of(*value);
    } else if constexpr (HasFields<T, JsonWriter>) {
      fields(io, value);
    } else if constexpr (is_a<T, std::vector>) {
      io.json = Json::array();
      for (const auto& item : value) io.json.push_back(json_of(item));
    } else {
      io.json = value;
    }
    return io.json;
  }

  Json json;
};

/// Throws DataError that names field, value and what was expected.
class JsonReader {
 public:
  explicit JsonReader(const Json& json, std::string place = "") : json_(&json) { enter(std::move(place)); }

  template <class T>
  void operator()(const std::string& name, T& value, const Rule& rule = {}) {
    const bool given = json_->is_object() && json_->contains(name);
    require<DataError>(given || rule.later, "results: field '", path(name), "' is missing");
    if (given) read(json_->at(name), name, value, rule);
  }
  /// From here on errors name fields by their place in the file: "model.links[0].ranks".
  void enter(std::string place) {
    place_ = std::move(place);
    if (!place_.empty() && !json_->is_object())
      throw DataError(concat("results: ", place_, " is ", shown(*json_), ", expected an object"));
  }

  template <class T>
  void check(const std::string& name, const T& value, const Rule& rule) const {
    if constexpr (std::is_same_v<T, std::string>) {
      if (rule.fits && !rule.fits(value)) refuse(shown(value), name, rule.expected);
    } else if constexpr (!std::is_same_v<T, bool>) {
      const auto number = static_cast<double>(value);
      if (number >= rule.least && number <= rule.most) return;
      const auto least = [&] { return concat(static_cast<T>(rule.least)); };
      const auto most = [&] { return concat(static_cast<T>(rule.most)); };
      const bool both = !place_.empty() && rule.most < kLargestNumber;
      refuse(both ? concat(number) : concat(value), name,
             both                  ? least() + " to " + most()
             : number < rule.least ? least() + " or more"
                                   : "at most " + most());
    }
  }

 private:
  std::string path(const std::string& name) const { return place_.empty() ? name : place_ + "." + name; }
  [[noreturn]] void refuse(const std::string& value, const std::string& name, const std::string& expected) const {
    throw DataError(concat("results: ", place_.empty() ? "field '" + name + "'" : path(name), " is ", value,
                           ", expected ", expected));
  }

  template <class T>
  void read(const Json& item, const std::string& name, T& value, const Rule& rule) const {
    if constexpr (is_a<T, std::optional>) {
      value.reset();
      if (typename T::value_type inner{}; !item.is_null()) {
        read(item, name, inner, rule);
        value = std::move(inner);
      }
    } else if constexpr (HasFields<T, JsonReader>) {
      JsonReader io(item, place_.empty() ? "" : path(name));
      fields(io, value);
    } else if constexpr (is_a<T, std::vector>) {
      if (!item.is_array()) refuse(shown(item), name, "a list");
      value.clear();
      for (const Json& one : item) read_item(one, name, value, rule);
    } else if (rule.infinite && item.is_null()) {
      value = std::numeric_limits<T>::infinity();
    } else {
      if (const std::string expected = why_not<T>(item); !expected.empty()) refuse(shown(item), name, expected);
      value = item.get<T>();
      check(name, value, rule);
    }
  }
  template <class T>
  void read_item(const Json& item, const std::string& name, std::vector<T>& values, const Rule& rule) const {
    T value{};
    const bool none = std::is_floating_point_v<T> && item.is_null();  // infinite or not a number
    if (HasFields<T, JsonReader> || !place_.empty()) {
      read(item, concat(name, "[", values.size(), "]"), value, rule);
    } else if constexpr (!HasFields<T, JsonReader>) {
      require<DataError>(none || why_not<T>(item).empty(), "results: field '", name, "' holds ", shown(item),
                         ", expected ", std::is_floating_point_v<T> ? "numbers" : "texts");
      value = none ? std::numeric_limits<T>::quiet_NaN() : item.get<T>();
    }
    values.push_back(std::move(value));
  }

  /// What is expected in place of `item`, which is no T as it is: a number with a fraction is no whole number, a truth
  /// value no number. Empty where it is one.
  template <class T>
  static std::string why_not(const Json& item) {
    if constexpr (std::is_same_v<T, bool>) {
      return item.is_boolean() ? "" : "true or false";
    } else if constexpr (std::is_same_v<T, std::string>) {
      return item.is_string() ? "" : "a text";
    } else if constexpr (std::is_floating_point_v<T>) {
      return item.is_number() ? "" : "a number";
    } else {
      const bool fits = item.is_number_unsigned()  ? std::in_range<T>(item.get<std::uint64_t>())
                        : item.is_number_integer() ? std::in_range<T>(item.get<std::int64_t>())
                                                   : false;
      using Limits = std::numeric_limits<T>;
      return fits ? "" : concat("a whole number from ", Limits::min(), " to ", Limits::max());
    }
  }

  const Json* json_;
  std::string place_;
};

/// On one line, without its end; and on several.
std::string line_of(const Json& json);
std::string text_of(const Json& json);

/// Parses what another process of duet has measured; `what` names it in errors.
template <class T>
T read_json(const std::string& text, const char* what) {
  const Json json = parsed_json(text);
  require<DataError>(!json.is_discarded(), "results: not JSON, expected ", what);
  T value;
  JsonReader io(json);
  fields(io, value);
  return value;
}

}  // namespace duet::cli
