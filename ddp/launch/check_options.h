// What a launcher refuses before it starts anything.
#pragma once

#include "ddp/launch/launch.h"

namespace duet::ddp {

/// Throws UsageError for options that are out of range, or do not go together.
void check(const LaunchOptions& options);

}  // namespace duet::ddp
