// Numbers in texts from elsewhere: environment, files, peers.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace duet {

/// The whole of `text` as a decimal number, in every locale: without blanks and '+', within the range of `T`. Nothing
/// where it is not one.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return {};
  return number;
}

}  // namespace duet
