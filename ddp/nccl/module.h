// The interface between libduet and its NCCL module.
#pragma once

#include <memory>

#include "ddp/nccl/load.h"

namespace duet::ddp {

/// The caller owns the group.
using NcclConnect = ProcessGroup* (*)(std::shared_ptr<Store> store, int rank, int size, const NcclOptions& options);
inline constexpr const char* kNcclConnectName = "duet_nccl_connect";

}  // namespace duet::ddp
