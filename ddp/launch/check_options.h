// What a launcher refuses before it starts anything.
#pragma once

#include "ddp/launch/launch.h"

namespace duet::ddp {

/// The options, with rank 0's address as parse_host() returns it. Throws UsageError for options that are out of range,
/// or do not go together.
LaunchOptions checked(LaunchOptions options);

}  // namespace duet::ddp
