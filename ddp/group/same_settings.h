// Ranks that train together must have been asked for the same.
#pragma once

#include <span>
#include <string>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// A name as a person knows it, "--lr", and what this rank was given, "0.05".
struct Setting {
  std::string name, value;
};

/// Compares all ranks' settings with rank 0's. All ranks call it, with the same names in the same order. Throws
/// CommError on every rank, with the first that differs: "the ranks disagree: --lr is 0.1 on rank 1, --lr is 0.05 on
/// rank 0".
void require_same_settings(ProcessGroup& group, std::span<const Setting> settings);

}  // namespace duet::ddp
