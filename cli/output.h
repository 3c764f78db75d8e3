// Files that the user names for results.
#pragma once

#include <cstdio>
#include <string>

namespace duet::cli {

/// Throws DataError that names the option unless `path` can be written: before work that would be lost. Empty: none is
/// wanted.
void require_output(const char* option, const std::string& path);

/// Writes the file whole or not at all; what is there and no regular file, such as a pipe, is written to. Throws
/// DataError.
void write_output(const std::string& path, const std::string& text);

/// What --json names: a file, "-" for the standard output, or "" for none.
bool to_stdout(const std::string& json);
void require_json_output(const std::string& json);
void write_json(const std::string& json, const std::string& text);
/// Where text for people goes: standard error where JSON goes to the standard output.
std::FILE* text_stream(const std::string& json);

}  // namespace duet::cli
