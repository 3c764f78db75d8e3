// A place in the source, for messages.
#pragma once

namespace duet {

/// std::source_location, which clang 14 does not have with GCC's library.
struct SourceLocation {
  const char* file;
  int line;
  const char* function;
  static constexpr SourceLocation current(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                                          const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

}  // namespace duet
