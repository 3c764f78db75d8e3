// Parses command lines, and returns what the program prints.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lib/error.h"
#include "train/options/options.h"

namespace duet_test {

/// The message of the usage error that a command line causes; empty when it is fine.
inline std::string complaint(const std::vector<std::string>& arguments) {
  try {
    duet::cli::parse(arguments);
  } catch (const duet::UsageError& error) {
    return error.what();
  }
  return "";
}

inline std::string printed(const std::vector<std::string>& arguments) {
  return std::get<duet::cli::Printed>(duet::cli::parse(arguments)).text;
}

}  // namespace duet_test
