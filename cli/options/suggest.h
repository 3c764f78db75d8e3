// Which name was meant by one that is not known.
#pragma once

#include <string>
#include <vector>

namespace duet::cli {

/// ", did you mean train?": the known name that is nearest to `word` by letters inserted, left out, replaced or swapped
/// with their neighbours, or that begins with it; empty where none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace duet::cli
