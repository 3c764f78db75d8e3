#include "ddp/gather_texts.h"

#include <algorithm>

namespace duet::ddp {

std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text) {
  const auto size = static_cast<std::size_t>(group.size());
  std::int64_t own = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(size);
  group.all_gather(std::span<std::int64_t>(&own, 1), std::span<std::int64_t>(lengths)).wait();
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::uint8_t> padded(longest), all(longest * size);
  std::copy(text.begin(), text.end(), padded.begin());
  group.all_gather(std::span<std::uint8_t>(padded), std::span<std::uint8_t>(all)).wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    texts.emplace_back(begin, begin + lengths[rank]);
  }
  return texts;
}

}  // namespace duet::ddp
