// Numbers, bytes, errors and signals as text.
#pragma once

#include <string.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

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

/// Control characters as \n, \t or \x1b; all else stays as it is, UTF-8 too.
inline std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // In UTF-8 the control characters above 0x7f are two bytes.
    const bool high = byte == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80;
    if (byte >= 0x20 && byte != 0x7f && !high)
      out += text[i];
    else if (byte == '\n')
      out += "\\n";
    else if (byte == '\t')
      out += "\\t";
    else
      out += "\\x" + to_hex(std::as_bytes(std::span(&text[high ? ++i : i], 1)));
  }
  return out;
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
