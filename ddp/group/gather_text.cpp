#include "ddp/group/gather_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace duet::ddp {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Texts of the ranks as collectives carry them: padded to the longest.
struct Padded {
  Padded(ProcessGroup& group, const std::string& text) : lengths(static_cast<std::size_t>(group.size())) {
    std::int64_t own_length = static_cast<std::int64_t>(text.size());
    group.all_gather(std::span(&own_length, 1), std::span(lengths)).wait();
    own.resize(static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end())));
    std::copy(text.begin(), text.end(), own.begin());
  }
  std::vector<std::string> cut(const Bytes& all) const {
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * own.size());
      texts.emplace_back(begin, begin + lengths[rank]);
    }
    return texts;
  }
  std::vector<std::int64_t> lengths;
  Bytes own;
};

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string broadcast_text(ProcessGroup& group, const std::string& text, int root) {
  std::int64_t length = static_cast<std::int64_t>(text.size());
  group.broadcast(std::span(&length, 1), root).wait();
  Bytes bytes(text.begin(), text.end());
  bytes.resize(static_cast<std::size_t>(length));
  group.broadcast(std::span(bytes), root).wait();
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& text, int root) {
  Padded padded(group, text);
  Bytes all(group.rank() == root ? padded.own.size() * padded.lengths.size() : 0);
  group.gather(std::span(padded.own), std::span(all), root).wait();
  return group.rank() == root ? padded.cut(all) : std::vector<std::string>();
}

std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text) {
  Padded padded(group, text);
  Bytes all(padded.own.size() * padded.lengths.size());
  group.all_gather(std::span(padded.own), std::span(all)).wait();
  return padded.cut(all);
}

}  // namespace duet::ddp
