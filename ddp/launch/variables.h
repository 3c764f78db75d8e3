// Environment variables by which a launcher passes options to ranks.
#pragma once

namespace duet::ddp {

inline constexpr const char* kJoinTimeoutVariable = "DUET_JOIN_TIMEOUT_MS";
inline constexpr const char* kTimeoutVariable = "DUET_TIMEOUT_MS";

}  // namespace duet::ddp
