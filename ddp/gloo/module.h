// The one door between libduet and its Gloo module.
#pragma once

#include "ddp/gloo_group.h"

namespace duet::ddp {

/// The caller owns the transport.
using GlooConnect = Transport* (*)(Store& store, int rank, int size, const GlooOptions& options);
inline constexpr const char* kGlooConnectName = "duet_gloo_connect";

}  // namespace duet::ddp
