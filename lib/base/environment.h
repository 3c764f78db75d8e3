// The environment of this process: variables, and files of the system.
#pragma once

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace duet {

/// Nothing where the variable is not set, or empty. Must not run while another thread changes the environment.
inline std::optional<std::string> environment_variable(const std::string& name) {
  const char* const text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return {};
  return text;
}

/// Whether this process speaks for its job: it is rank 0 by the variables of launchers, or they name no rank.
inline bool is_first_rank() {
  for (const char* const name : {"RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK", "PMI_RANK",
                                 "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "SLURM_PROCID"})
    if (const auto rank = environment_variable(name)) return *rank == "0";
  return true;
}

/// The first line of a file; empty if it cannot be read.
inline std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace duet
