#include "train/measure/json_fields.h"

#include <cstddef>
#include <string>

template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace duet::cli {

Json parsed_json(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    require<DataError>(depth <= kDeepest, "results: nesting is more than ", kDeepest, " deep");
    return true;
  };
  return Json::parse(text, shallow, false);
}

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true);  // only ASCII, so that no character is cut
  if (text.size() > kLongest) text.replace(kLongest, text.size(), "...");
  return text;
}

std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string text_of(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace duet::cli
