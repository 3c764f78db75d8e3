// Numbers that variables of the environment give a test.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "lib/parse_number.h"

namespace duet_test {

inline std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : duet::parse_number<std::uint64_t>(text).value();
}

}  // namespace duet_test
