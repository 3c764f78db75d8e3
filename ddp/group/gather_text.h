// Texts, or any bytes, of ranks. All of them are collectives: all ranks call them.
#pragma once

#include <string>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// The root's text, on all ranks.
std::string broadcast_text(ProcessGroup& group, const std::string& text, int root = 0);
/// Every rank's text, in rank order, on the root; nothing elsewhere.
std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& text, int root = 0);
/// As gather_texts, on all ranks.
std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text);
/// A text's lines, each of which ends with a line feed. No collective.
std::vector<std::string> lines_of(const std::string& text);

}  // namespace duet::ddp
