#pragma once

#include <string>

namespace duet_test {

/// Returns the text of the `E` that `call` throws, empty if it throws nothing.
template <class E, class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace duet_test
