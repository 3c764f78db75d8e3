#include "ddp/group/compare_ranks.h"

#include <algorithm>
#include <sstream>

#include "ddp/store/store.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
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

void add_hash(std::string& lines, std::span<const std::byte> bytes, const std::string& name) {
  lines += concat(mixed_bytes(bytes), " ", name, "\n");
}

std::string first_unlike(const std::vector<std::string>& texts) {
  const std::vector<std::string> expected = lines_of(texts[0]);
  auto first = expected.end();
  for (const std::string& text : texts) {
    const std::vector<std::string> lines = lines_of(text);
    first = std::min(first, std::mismatch(expected.begin(), expected.end(), lines.begin(), lines.end()).first);
  }
  return first == expected.end() ? "" : first->substr(first->find(' ') + 1);
}

void require_same_values(ProcessGroup& group, std::int64_t step, const std::string& lines) {
  const std::vector<std::string> texts = all_gather_texts(group, lines);
  if (Recovery::instance().is_void()) return;
  std::vector<int> others;
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) others.push_back(static_cast<int>(rank));
  require<CommError>(others.empty(), "parameters differ from those of rank 0 in step ", step, ", on ",
                     rank_names(others), "; the first is ", first_unlike(texts));
}

}  // namespace duet::ddp
