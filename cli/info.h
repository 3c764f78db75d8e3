// What duet info says, for the folders that duet compare shares.
#pragma once

#include <string>

#include "train/system/machine.h"

namespace duet::cli {

/// The machine, its devices, the program's build and its libraries, as JSON. Makes contexts on all GPUs, because that
/// is how free memory is asked for.
std::string info_json(const Machine& machine);

}  // namespace duet::cli
