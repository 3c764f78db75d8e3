// What the fuzz targets share: the fuzzer's bytes as values, and the one answer that bad input may get.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>

#include "lib/error.h"

namespace duet_fuzz {

/// Takes values off the front of the fuzzer's bytes; zeros and empty texts once they are used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }

  template <class T>
  T take() {
    T value{};
    const std::size_t bytes = std::min(sizeof value, left_.size());
    if (bytes > 0) std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }
  std::size_t below(std::size_t limit) { return take<std::uint16_t>() % limit; }
  bool flag() { return (take<std::uint8_t>() & 1) != 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *std::next(values.begin(), take<std::uint8_t>() % static_cast<std::ptrdiff_t>(values.size()));
  }
  /// As many bytes as the value of the next byte.
  std::string text() { return bytes(take<std::uint8_t>()); }
  std::string rest() { return bytes(left_.size()); }
  /// Up to the next `end`, or all that is left.
  std::string text_to(std::uint8_t end) {
    const auto at = std::find(left_.begin(), left_.end(), end);
    std::string text(left_.begin(), at);
    left_ = left_.subspan(std::min(left_.size(), text.size() + 1));
    return text;
  }

 private:
  std::string bytes(std::size_t count) {
    const auto front = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(front.size());
    return {front.begin(), front.end()};
  }

  std::span<const std::uint8_t> left_;
};

/// Whether `action` ends without an error of duet's family. Every other exception ends the fuzzer: a finding.
template <class Action>
bool accepted(Action&& action) {
  try {
    action();
    return true;
  } catch (const duet::Error&) {
    return false;
  }
}

/// Ends the fuzzer unless the condition holds.
inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "expected: %s\n", what);
  std::abort();
}

}  // namespace duet_fuzz
