// Text from elsewhere on one line: names of files and tensors may hold any character.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/hex.h"

namespace duet {

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

}  // namespace duet
