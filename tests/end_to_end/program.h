// Runs the program `duet` as from a shell.
#pragma once

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "compare/results.h"
#include "train/system/files.h"

namespace duet_test {

using Arguments = std::vector<std::string>;

/// Options of a small training or comparison: 6 steps an epoch.
inline const Arguments kSmallLinear = {"--data",  "synthetic", "--train-images", "333",   "--test-images", "20",
                                       "--batch", "64",        "--model",        "linear"};

inline Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct Ran {
  int status = 0;  // exit code, or 128 + the signal that ended it
  std::string out, err;
};

/// Waits for the program's end. The program is $DUET_PROGRAM.
Ran duet(const std::vector<std::string>& arguments);
/// The same, after the child process has called `prepare`; exit code 126 where that returns false.
Ran duet(const std::vector<std::string>& arguments, const std::function<bool()>& prepare);
/// Starts it, sends a signal once a file matches the pattern, and waits.
Ran duet_interrupted(const std::vector<std::string>& arguments, const std::string& pattern, int signal);

/// The same, once `ready` holds.
Ran duet_interrupted(const std::vector<std::string>& arguments, const std::function<bool()>& ready, int signal);
/// Whether pseudo-terminals can be made here: a container may have no /dev/pts.
bool has_terminals();
/// Runs it with a terminal as its standard streams; all that the terminal got is in `out`.
Ran duet_in_terminal(const std::vector<std::string>& arguments, const char* locale = "C.UTF-8",
                     unsigned short columns = 100);

/// Whether a file matches the pattern.
bool there(const std::string& pattern);
/// Names of files in a folder that begin with `start`.
std::vector<std::string> files_in(const std::string& folder, const std::string& start = "");
/// SHA-256 of the parameters, of the record that --result left.
inline std::string hash_of(const std::string& result) {
  return duet::cli::run_from_json(duet::cli::read_file(result)).parameters_sha256;
}
/// Of a program's stderr: the lines but warnings, such as that devices share cores.
inline std::string without_warnings(const std::string& text) {
  std::istringstream all(text);
  std::string kept;
  for (std::string line; std::getline(all, line);)
    if (!line.starts_with("warning: ")) kept += line + "\n";
  return kept;
}
inline int lines(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }
/// Processes whose command line holds `text`.
int processes_with(const std::string& text);

}  // namespace duet_test
