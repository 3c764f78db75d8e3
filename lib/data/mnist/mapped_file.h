// Files as memory, read by the kernel when they are touched, and by all processes of a host in the same pages.
#pragma once

#include <filesystem>
#include <memory>

#include "lib/tensor.h"

namespace duet::data {

/// All bytes of a regular file that is not empty, as storage of the CPU that keeps the mapping alive; undefined (null)
/// for anything else, or where the file system cannot map it. Writes to it stay with this process. The file must not
/// shrink while it is mapped; a replaced or removed one may.
std::shared_ptr<Storage> map_file(const std::filesystem::path& path);

}  // namespace duet::data
