// Settings that are hardly meant, for warnings before a run begins.
#pragma once

#include <string>
#include <vector>

#include "lib/base/threads.h"
#include "train/options/options.h"

namespace duet::cli {

/// Returns a sentence for each setting of such a training that is hardly meant: more threads than cores, more loader
/// threads than cores, a learning rate above 10.
std::vector<std::string> unlikely_settings(const Training& training, int devices, int cores);
/// Prints them as warnings to stderr, once for this process and those that it starts.
void warn_of_unlikely(const Training& training, int devices, int cores = usable_cores());

}  // namespace duet::cli
