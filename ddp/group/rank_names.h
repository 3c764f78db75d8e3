// Ranks in texts, and by keys of a store.
#pragma once

#include <string>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp {

/// "rank 1", "ranks 1, 3"; empty for none.
std::string rank_names(const std::vector<int>& ranks);
/// "PREFIX/0", "PREFIX/1", ...
std::vector<std::string> rank_keys(const std::string& prefix, int size);
/// The ranks whose key of rank_keys() is not set; none if the store is lost.
std::vector<int> ranks_without_key(Store& store, const std::vector<std::string>& keys);

}  // namespace duet::ddp
