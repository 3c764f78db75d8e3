// What all commands of the program have in common on the command line.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace duet::cli {

/// Adds --json, which means the same in every command: see cli/system/output.h. `what` it is that JSON holds.
void add_json(CLI::App& app, std::string& json, const std::string& what);

/// The arguments as the parser takes them: `help COMMAND` as `COMMAND --help`, and `--json` without a file as
/// `--json=-`. Throws UsageError with the nearest one for a command that is none of `commands`.
std::vector<std::string> spelled_out(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& commands);

/// ", did you mean --epochs?" after a failed parse that left an option over; empty where no known one is near.
std::string hint_for_unknown_option(CLI::App& app);

}  // namespace duet::cli
