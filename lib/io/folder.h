// Folders, with what the system says where it cannot tell or make one. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace duet {

/// Whether there is a folder, or a link to one, of this name. Throws DataError where that cannot be found out.
bool is_folder(const std::string& path);

/// Makes a folder, with its parents, unless it is there. Throws DataError that names it.
void make_folder(const std::string& path);

/// Names of what is in a folder, in any order. Throws DataError where it cannot be listed to its end.
std::vector<std::string> list_folder(const std::string& path);

/// The folder that holds `path`; "." for a bare name.
std::string folder_of(const std::string& path);

}  // namespace duet
