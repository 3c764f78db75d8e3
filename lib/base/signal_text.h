// Signals in texts.
#pragma once

#include <string.h>

#include <string>

namespace duet {

/// "signal 15 (SIGTERM)".
inline std::string signal_text(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + " (SIG" + (name ? name : "?") + ")";
}

}  // namespace duet
