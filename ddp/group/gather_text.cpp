#include "ddp/group/gather_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>

#include "lib/error.h"

namespace duet::ddp {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(group.size()));
  std::int64_t own_length = static_cast<std::int64_t>(text.size());
  group.all_gather(std::span(&own_length, 1), std::span(lengths)).wait();
  // Padded to the longest.
  std::vector<std::uint8_t> own(text.begin(), text.end());
  own.resize(static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end())));
  std::vector<std::uint8_t> all(own.size() * lengths.size());
  group.all_gather(std::span(own), std::span(all)).wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * own.size());
    texts.emplace_back(begin, begin + lengths[rank]);
  }
  return texts;
}

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
