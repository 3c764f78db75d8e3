// Names a file's format by its first bytes, for errors about unexpected files.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace duet {

/// Bytes that describe_format() looks at.
inline constexpr std::size_t kFormatFront = 512;

/// What a reader expects: a safetensors file, into which others can be converted, TorchScript, or something else.
enum class FileContent { tensors, script, other };

/// Returns "an HTML page; download the file again" for a file that begins with these bytes: its format, and what to do
/// with it if there is anything. Empty if the format is unknown or the one expected.
std::string describe_format(std::span<const std::byte> front, FileContent expected = FileContent::other);

/// Reads the first bytes of a regular file and describes them as above. Empty if they can't be read.
std::string describe_file(const std::string& path, FileContent expected = FileContent::other);

}  // namespace duet
