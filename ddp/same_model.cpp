#include "ddp/same_model.h"

#include <algorithm>

#include "ddp/group/gather_text.h"
#include "ddp/store/store.h"
#include "lib/base/sha256.h"
#include "lib/error.h"

namespace duet::ddp {

void require_same_model(ProcessGroup& group, const std::vector<std::string>& parameters) {
  std::string text;
  for (const std::string& parameter : parameters) text += parameter + "\n";
  const std::vector<std::string> texts = all_gather_texts(group, text);
  const std::vector<std::string> first = lines_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> lines = lines_of(texts[rank]);
    require<CommError>(lines.size() == first.size(), "DDP expects same model across all ranks, but Rank 0 has ",
                       first.size(), " params, while rank ", rank, " has inconsistent ", lines.size(), " params.");
    for (std::size_t i = 0; i < lines.size(); ++i) {
      require<CommError>(lines[i] == first[i], "DDP expects same model across all ranks, but params[", i, "] is ",
                         first[i], " on rank 0 and ", lines[i], " on rank ", rank);
    }
  }
}

void require_same_values(ProcessGroup& group, std::int64_t step, const std::vector<NamedBytes>& parameters) {
  std::string text;
  for (const NamedBytes& parameter : parameters) text += sha256_hex(parameter.bytes) + "\n";
  const std::vector<std::string> texts = all_gather_texts(group, text);
  std::vector<int> others;
  std::size_t first = parameters.size();
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    others.push_back(static_cast<int>(rank));
    const std::vector<std::string> hashes = lines_of(texts[rank]), expected = lines_of(texts[0]);
    const auto [hash, same] = std::mismatch(hashes.begin(), hashes.end(), expected.begin(), expected.end());
    first = std::min(first, static_cast<std::size_t>(hash - hashes.begin()));
  }
  require<CommError>(others.empty(), "parameters differ from those of rank 0 in step ", step, ", on ",
                     rank_names(others), "; the first is ", first < parameters.size() ? parameters[first].name : "");
}

}  // namespace duet::ddp
