// Numbers and lists as text for display, independent of the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/text.h"

namespace duet::cli {

/// Said of a run whose only step is the first, which is not timed.
inline constexpr const char* kNothingToTime = "one step an epoch: nothing to time";

/// 1234.5678, 2 digits -> "1234.57".
std::string fixed(double value, int digits);
/// Shortest text that reads back as the same number.
std::string shortest(double value);
/// Seconds with three significant digits: "0.184", "5.87", "124".
std::string seconds(double value);
/// "1", "1 and 2", "1, 2 and 4", or with another word before the last.
std::string listed(const std::vector<std::string>& items, const char* last = "and");
/// As Python's repr prints a float: shortest digits, an exponent only below 1e-4 or from 1e16.
std::string python_float(double value);
/// Number of characters (code points) of UTF-8 text, for columns.
std::size_t width(const std::string& text);
/// Text at one side of a column of so many characters; longer text stays whole.
std::string flush_left(const std::string& text, std::size_t column);
std::string flush_right(const std::string& text, std::size_t column);

/// Describes a network: "resnet18, 11,181,642 parameters (44.7 MB of gradients)".
std::string network_text(const std::string& name, std::int64_t parameters);

}  // namespace duet::cli
