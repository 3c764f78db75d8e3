// The environment of this process.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace duet {

/// Nothing where the variable is not set, or empty. Must not run while another thread changes the environment.
inline std::optional<std::string> environment_variable(const std::string& name) {
  const char* const text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return {};
  return text;
}

}  // namespace duet
