#include "ddp/group/call_log.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {

void CallLog::add(const Call& call) {
  const std::uint64_t before = count_ == 0 ? 0 : entry(count_ - 1).chain;
  const CallHeader header = header_of(call, count_);
  kept_[static_cast<std::size_t>(count_ % kKept)] = {header, before * 0x100000001b3 + tag_of(header, 0)};
  ++count_;
}

std::string CallLog::text() {
  const std::uint64_t begin = std::max(sent_before_, count_ - std::min(count_, kKept));
  const std::uint64_t numbers[] = {begin, count_, count_ == 0 ? 0 : entry(count_ - 1).chain};
  std::string text(reinterpret_cast<const char*>(numbers), sizeof numbers);
  for (std::uint64_t i = begin; i < count_; ++i)
    text.append(reinterpret_cast<const char*>(&entry(i).header), sizeof(CallHeader));
  sent_before_ = std::exchange(sent_, count_);
  return text;
}

CallLog::PeerLog CallLog::read(const std::string& text) {
  PeerLog log;
  std::uint64_t numbers[3];
  if (text.size() < sizeof numbers || (text.size() - sizeof numbers) % sizeof(CallHeader) != 0) return log;
  std::memcpy(numbers, text.data(), sizeof numbers);
  log.last.resize((text.size() - sizeof numbers) / sizeof(CallHeader));
  if (numbers[0] + log.last.size() != numbers[1]) return {};
  for (std::size_t i = 0; i < log.last.size(); ++i)
    std::memcpy(&log.last[i], text.data() + sizeof numbers + i * sizeof(CallHeader), sizeof(CallHeader));
  log.begin = numbers[0];
  log.count = numbers[1];
  log.chain = numbers[2];
  return log;
}

std::string CallLog::difference(const std::vector<std::string>& texts, int own) const {
  std::vector<PeerLog> others(texts.size());
  std::optional<std::uint64_t> first;  // collective whose headers differ
  std::optional<int> unknown;          // a rank with which one differs that is no longer sent
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (static_cast<int>(rank) == own) continue;
    const PeerLog& other = others[rank] = read(texts[rank]);
    const std::uint64_t both = std::min(count_, other.count);
    std::uint64_t i = std::max(count_ - std::min(count_, kKept), other.begin);
    while (i < both && *other.find(i) == entry(i).header) ++i;
    const bool comparable = other.count > 0 && other.count <= count_ && count_ - other.count < kKept;
    if (i < both)
      first = std::min(i, first.value_or(i));
    else if (comparable && entry(other.count - 1).chain != other.chain)
      unknown = static_cast<int>(rank);
  }
  if (!first && unknown) return concat("the ranks disagree: a call of rank ", own, " was not that of rank ", *unknown);
  if (!first) return {};
  std::vector<RankHeader> known;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const bool self = static_cast<int>(rank) == own;
    const CallHeader* const header = self ? &entry(*first).header : others[rank].find(*first);
    if (header != nullptr) known.push_back({static_cast<int>(rank), *header});
  }
  return disagreement(known);
}

}  // namespace duet::ddp
