// Whether all ranks have the same model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// Compares descriptions of the parameters, "conv1.weight [32, 1, 3, 3]", in their order. All ranks call it. Throws
/// CommError on every rank that names the first difference from rank 0.
void require_same_model(ProcessGroup& group, const std::vector<std::string>& parameters);

/// A parameter's values in the host's memory.
struct NamedBytes {
  std::string name;
  std::span<const std::byte> bytes;
};

/// Compares hashes of the parameters, bit by bit. All ranks call it. Throws CommError on every rank that names the
/// ranks whose parameters are not rank 0's, the first such parameter, and `step`.
void require_same_values(ProcessGroup& group, std::int64_t step, const std::vector<NamedBytes>& parameters);

}  // namespace duet::ddp
