// The commands of the program `duet`; each returns its exit code or throws.
#pragma once

#include "cli/options.h"

namespace duet::cli {

int info(const InfoOptions& options);

}  // namespace duet::cli
