// Results for others: a folder that names neither user, host nor folders; and results that others have sent.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compare/results.h"
#include "train/options/options.h"
#include "train/system/machine.h"

namespace duet::cli {

/// Texts that say who ran a comparison, and where, each with what takes its place.
struct PrivateNames {
  std::vector<std::pair<std::string, std::string>> paths;  // or the begins of some
  std::vector<std::pair<std::string, std::string>> words;
};
/// The user's names and home, the host's names, and the paths that the options name.
PrivateNames private_names(const CompareOptions& options);
/// `text` without these names, and with nothing but the last part of other paths that begin with /, ~ or a dot.
std::string without(const PrivateNames& names, const std::string& text);

/// Throws DataError unless `folder` can be made, or is there and empty.
void require_new_folder(const std::string& folder);
/// Makes the folder of --share, whole or not at all: results.json, index.html, info.json and command.txt. Throws
/// DataError, also if it is there by now and not empty.
void share(const CompareOptions& options, const Results& results, const Machine& machine,
           const std::string& command_line);

/// Returns the results.json of a folder, or the file that `place` names.
std::string results_file(const std::string& place);
/// Reads results.json; errors name the file.
Results read_results(const std::string& file);

}  // namespace duet::cli
