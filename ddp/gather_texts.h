// Texts of all ranks.
#pragma once

#include <string>
#include <vector>

#include "ddp/process_group.h"

namespace duet::ddp {

/// Every rank's text, in rank order, on all ranks. A collective: all ranks call it.
std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text);

}  // namespace duet::ddp
