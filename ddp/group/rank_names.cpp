#include "ddp/group/rank_names.h"

#include "lib/error.h"

namespace duet::ddp {

std::string rank_names(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += concat(text.empty() ? "" : ", ", rank);
  return ranks.empty() ? "" : concat(ranks.size() > 1 ? "ranks " : "rank ", text);
}

std::vector<std::string> rank_keys(const std::string& prefix, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(concat(prefix, "/", rank));
  return keys;
}

std::vector<int> ranks_without_key(Store& store, const std::vector<std::string>& keys) {
  std::vector<int> ranks;
  try {
    for (std::size_t rank = 0; rank < keys.size(); ++rank)
      if (!store.check({keys[rank]})) ranks.push_back(static_cast<int>(rank));
  } catch (const CommError&) {
    return {};
  }
  return ranks;
}

}  // namespace duet::ddp
