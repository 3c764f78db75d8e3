// Programs in Python that a test runs: DUET_PYTHON, or python3.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

namespace duet_test {

inline std::string python() {
  const char* given = std::getenv("DUET_PYTHON");
  return given ? given : "python3";
}

/// Runs a file with the folder as its argument; what it writes to stderr is shown where a check fails.
inline bool run_python_file(const std::string& file, const std::string& folder) {
  const std::string command = "'" + python() + "' '" + file + "' '" + folder + "' 2>'" + folder + "/errors'";
  const int status = std::system(command.c_str());
  UNSCOPED_INFO(read_text(folder + "/errors"));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Runs a program; the text may use the folder as sys.argv[1].
inline bool run_python(const std::string& program, const std::string& folder) {
  write_text(folder + "/program.py", program);
  return run_python_file(folder + "/program.py", folder);
}

inline bool python_has(const std::string& modules) {
  const std::string command = "'" + python() + "' -c 'import " + modules + "' 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

}  // namespace duet_test
