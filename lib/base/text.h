// Numbers, bytes, errors and signals as text.
#pragma once

#include <string.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace duet {

/// 60000 -> "60,000".
inline std::string grouped(std::int64_t number) {
  const std::string digits = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

/// Formats a number as Python's repr prints a float: shortest digits, an exponent only below 1e-4 or from 1e16.
template <std::floating_point T>
std::string python_float(T value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  const T size = std::fabs(value);
  const bool exponent = size != 0 && (size < static_cast<T>(1e-4) || size >= static_cast<T>(1e16));
  char text[32];
  const auto format = exponent ? std::chars_format::scientific : std::chars_format::fixed;
  const std::string shown(text, std::to_chars(text, text + sizeof text, value, format).ptr);
  return exponent || shown.find('.') != std::string::npos ? shown : shown + ".0";
}

/// Two lower-case hexadecimal digits for each byte.
inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte >> 4)];
    text += kDigits[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

/// Bytes of the first character in UTF-8; 0 if it is a control character (C0, DEL, C1), or isn't UTF-8: terminals take
/// a byte such as 0x9b for the start of a command.
inline std::size_t shown_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = at(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  unsigned code = first & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (at(i) & 0x3f);
  }
  const unsigned least = bytes == 2 ? 0xa0 : bytes == 3 ? 0x800 : 0x10000;  // shorter forms spell the others
  return code >= least && code < 0x110000 && code >> 11 != 0x1b ? bytes : 0;
}

/// Makes text of a file or of another process safe to show on a terminal: control characters and bytes that aren't
/// UTF-8 become \n, \t or \x1b, unless they are among those of `kept`.
inline std::string printable(std::string_view text, std::string_view kept = "") {
  std::string out;
  for (std::size_t bytes; !text.empty(); text.remove_prefix(bytes)) {
    bytes = shown_bytes(text);
    if (bytes == 0 && kept.find(text[0]) != kept.npos) bytes = 1;
    if (bytes > 0) {
      out += text.substr(0, bytes);
      continue;
    }
    bytes = 1;
    out += text[0] == '\n' ? "\\n" : text[0] == '\t' ? "\\t" : "\\x" + to_hex(std::as_bytes(std::span(text.data(), 1)));
  }
  return out;
}

/// "1", "1 and 2", "1, 2 and 4", or with another word before the last. Of more than `most`: "a, b, c and 4 more".
inline std::string listed(std::vector<std::string> items, const std::string& last = "and",
                          std::size_t most = SIZE_MAX) {
  if (items.size() > most) {
    const std::string others = std::to_string(items.size() - most) + " more";
    items.resize(most);
    items.push_back(others);
  }
  std::string all;
  for (std::size_t i = 0; i < items.size(); ++i)
    all += (i == 0 ? "" : i + 1 < items.size() ? ", " : " " + last + " ") + items[i];
  return all;
}

/// "Too many open files (errno 24)".
inline std::string errno_text(int number) {
  return std::generic_category().message(number) + " (errno " + std::to_string(number) + ")";
}

/// Streams errno_text(errno) as errno is when it is written. An argument such as strerror(errno) may be evaluated
/// before the call that fails in the same expression, as in require(::pipe(...) == 0, ...).
struct LastErrno {};
inline constexpr LastErrno last_errno;
inline std::ostream& operator<<(std::ostream& out, LastErrno) {
  const int number = errno;
  return out << errno_text(number);
}

/// "signal 15 (SIGTERM)".
inline std::string signal_text(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + " (SIG" + (name ? name : "?") + ")";
}

}  // namespace duet
