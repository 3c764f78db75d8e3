// Texts, or any bytes, of ranks, and whether all ranks have the same. All of them are collectives: all ranks call them.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// Compares descriptions of the parameters, "conv1.weight [32, 1, 3, 3]", in their order. All ranks call it. Throws
/// CommError on every rank that names the first difference from rank 0.
void require_same_model(ProcessGroup& group, const std::vector<std::string>& parameters);

/// Adds a line "HASH NAME". No collective.
void add_hash(std::string& lines, std::span<const std::byte> bytes, const std::string& name);
/// Returns the name in the first such line that differs between the ranks' texts; empty: none does. No collective.
std::string first_unlike(const std::vector<std::string>& texts);
/// Compares such lines, of the parameters. All ranks call it. Throws CommError on every rank that names the ranks whose
/// parameters are not rank 0's, the first such parameter, and `step`. No effect in a void step.
void require_same_values(ProcessGroup& group, std::int64_t step, const std::string& lines);

}  // namespace duet::ddp
