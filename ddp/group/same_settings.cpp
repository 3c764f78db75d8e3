#include "ddp/group/same_settings.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ddp/group/gather_text.h"
#include "lib/error.h"

namespace duet::ddp {

void require_same_settings(ProcessGroup& group, std::span<const Setting> settings) {
  if (group.size() == 1) return;
  std::string text;
  for (const auto& [name, value] : settings) text += name + " is " + value + "\n";
  const std::vector<std::string> texts = all_gather_texts(group, text);
  const std::vector<std::string> first = lines_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const std::vector<std::string> lines = lines_of(texts[rank]);
    const auto both = static_cast<std::ptrdiff_t>(std::min(lines.size(), first.size()));
    const auto [there, here] = std::mismatch(lines.begin(), lines.begin() + both, first.begin());
    require<CommError>(there != lines.begin() + both, "the ranks disagree: rank ", rank, " has ", lines.size(),
                       " settings, rank 0 ", first.size());
    throw CommError(concat("the ranks disagree: ", *there, " on rank ", rank, ", ", *here, " on rank 0"));
  }
}

}  // namespace duet::ddp
