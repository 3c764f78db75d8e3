// Texts, or any bytes, of ranks. All of them are collectives: all ranks call them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// Every rank's text, in rank order, on all ranks.
std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text);
/// A text's lines, each of which ends with a line feed. No collective.
std::vector<std::string> lines_of(const std::string& text);

/// A name as the user gave it, "--lr", and this rank's value, "0.05".
struct Setting {
  std::string name, value;
};

/// Compares all ranks' settings with rank 0's. All ranks call it, with the same names in the same order. Throws
/// CommError on every rank, with the first that differs: "the ranks disagree: --lr is 0.1 on rank 1, --lr is 0.05 on
/// rank 0".
void require_same_settings(ProcessGroup& group, std::span<const Setting> settings);

}  // namespace duet::ddp
