#include "ddp/group/call_header.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "ddp/store/store.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

std::uint64_t hash(const void* data, std::size_t bytes, std::uint64_t start) {  // FNV-1a
  std::uint64_t value = start;
  for (std::size_t i = 0; i < bytes; ++i) {
    value ^= static_cast<const unsigned char*>(data)[i];
    value *= 0x100000001b3;
  }
  return value;
}

/// Compares two headers without their rows.
bool same_call(const CallHeader& one, const CallHeader& other) {
  static_assert(offsetof(CallHeader, batch) == 32, "all bytes before the batch are numbers");
  return std::memcmp(&one, &other, offsetof(CallHeader, batch)) == 0;
}

constexpr const char* kSamplers =
    ": give each rank's sampler the number of ranks, its own rank, and the data, seed and batch size of all others";

/// A number of a BatchMark that all ranks have alike where they know it, that is where it is not 0.
struct Common {
  std::uint64_t BatchMark::*number;
  const char *name, *advice;
};
constexpr std::array<Common, 2> kCommon = {{
    {&BatchMark::values, ", parameters ",
     ": a program has written parameters on some ranks only, or from values that a process which replaces a lost rank "
     "lacks; write them on all ranks, in an elastic job in elastic::unit() and from values of elastic::state()"},
    {&BatchMark::drawn, ", earlier dropout ",
     ": on some ranks dropout has drawn for this batch in a forward that others have not called; call it on all ranks, "
     "or in eval()"},
}};

bool differ(const CallHeader& one, const CallHeader& other, const Common& common) {
  const std::uint64_t own = one.batch.*common.number, others = other.batch.*common.number;
  return own != 0 && others != 0 && own != others;
}

}  // namespace

CallHeader header_of(const Call& call, std::uint64_t sequence) {
  const Buffer& common = common_buffer(call);
  CallHeader header;
  header.sequence = sequence;
  header.count = common.count;
  header.root = call.root;
  header.tag = call.tag;
  header.op = static_cast<std::uint8_t>(call.op);
  header.dtype = static_cast<std::uint8_t>(common.dtype);
  header.reduce = static_cast<std::uint8_t>(call.reduce);
  header.blocks = static_cast<std::uint8_t>(call.parts.blocks);
  header.batch = call.batch;
  return header;
}

bool Agreement::same(const CallHeader& one, const CallHeader& other) {
  const std::uint64_t whole = one.batch.whole, others = other.batch.whole;
  return same_call(one, other) && (whole == 0 || others == 0 || whole == others) &&
         std::ranges::none_of(kCommon, [&](const Common& common) { return differ(one, other, common); });
}

void Agreement::add(const CallHeader& header) {
  if (!std::exchange(any_, true)) first_ = header;
  same_ = same_ && same(header, first_);
  if (first_.batch.whole == 0) first_.batch.whole = header.batch.whole;
  for (const auto& [number, name, advice] : kCommon)
    if (first_.batch.*number == 0) first_.batch.*number = header.batch.*number;
  cover_ += header.batch.cover;
}

std::string describe(Collective op, std::int64_t count, DType dtype, ReduceOp reduce, int root,
                     const std::string& number) {
  const std::string text = name(op) + number;
  if (op == Collective::barrier) return text;
  const bool towards = op == Collective::reduce || op == Collective::gather || op == Collective::send;
  return concat(text, " of ", count, " ", dtype, reduces(op) ? concat(" (", name(reduce), ")") : "",
                has_root(op) ? concat(towards ? " to rank " : " from rank ", root) : "");
}

std::string describe(const CallHeader& header) {
  const auto op = static_cast<Collective>(header.op);
  std::string text =
      describe(op, header.count, static_cast<DType>(header.dtype), static_cast<ReduceOp>(header.reduce), header.root);
  if (header.blocks != 0) text += concat(" over ", int{header.blocks}, " blocks");
  return header.batch.whole != 0 ? concat(text, " with ", describe(header.batch)) : text;
}

std::string describe(const BatchMark& batch) {
  std::string rows = concat("rows ", batch.first, " to ", batch.end, " of ", batch.global, " in step ", batch.step);
  if (batch.blocks != kBlocks) rows += concat(", ", batch.blocks, " blocks");
  if (batch.order == 0) return rows;
  char order[32];
  std::snprintf(order, sizeof order, ", order %08x", static_cast<unsigned>(batch.order));
  return rows + order;
}

std::uint64_t tag_of(const CallHeader& header, int phase) {
  // A start that differed in its low bits only would give some sequences' tags to other phases of others.
  return hash(&header, offsetof(CallHeader, batch), hash(&phase, sizeof phase, 0xcbf29ce484222325));
}

std::uint64_t header_tag(const CallHeader& header) {
  return hash(&header.sequence, sizeof(header.sequence), 0xe220a8397b1dcdaf);
}

std::string disagreement(std::span<const RankHeader> ranks) {
  std::string text = "the ranks disagree: ";
  std::vector<bool> grouped(ranks.size(), false);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (grouped[i]) continue;
    std::vector<int> same;
    for (std::size_t j = i; j < ranks.size(); ++j) {
      if (ranks[j].header != ranks[i].header) continue;
      grouped[j] = true;
      same.push_back(ranks[j].rank);
    }
    const char* const verb = same.size() > 1 ? " call " : " calls ";
    text += concat(i > 0 ? "; " : "", rank_names(same), verb, describe(ranks[i].header));
  }
  const bool only_rows = std::all_of(ranks.begin(), ranks.end(),
                                     [&](const RankHeader& one) { return same_call(one.header, ranks[0].header); });
  for (const Common& common : kCommon) {
    const auto of_others = [&](const RankHeader& one) {
      return std::ranges::any_of(ranks,
                                 [&](const RankHeader& other) { return differ(one.header, other.header, common); });
    };
    if (!only_rows || std::ranges::none_of(ranks, of_others)) continue;
    for (const RankHeader& one : ranks)
      text += concat("; rank ", one.rank, common.name, one.header.batch.*common.number);
    return text + common.advice;
  }
  return only_rows ? text + kSamplers : text;
}

void CallLog::add(const Call& call) {
  const std::uint64_t before = count_ == 0 ? 0 : entry(count_ - 1).chain;
  const CallHeader header = header_of(call, count_);
  kept_[static_cast<std::size_t>(count_ % kKept)] = {header, before * 0x100000001b3 + tag_of(header, 0)};
  ++count_;
}

std::string CallLog::text(bool with_headers) {
  const std::uint64_t begin = with_headers ? std::max(sent_before_, count_ - std::min(count_, kKept)) : count_;
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

std::optional<std::uint64_t> CallLog::first_incomplete(const std::vector<PeerLog>& others, int own) const {
  std::uint64_t begin = count_ - std::min(count_, kKept), end = count_;
  for (std::size_t rank = 0; rank < others.size(); ++rank) {
    if (static_cast<int>(rank) == own) continue;
    begin = std::max(begin, others[rank].begin);
    end = std::min(end, others[rank].count);
  }
  for (std::uint64_t i = begin; i < end; ++i) {
    Agreement all;
    for (std::size_t rank = 0; rank < others.size(); ++rank)
      all.add(static_cast<int>(rank) == own ? entry(i).header : *others[rank].find(i));
    if (!all.whole()) return i;
  }
  return std::nullopt;
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
    while (i < both && Agreement::same(*other.find(i), entry(i).header)) ++i;
    const bool comparable = other.count > 0 && other.count <= count_ && count_ - other.count < kKept;
    if (i < both)
      first = std::min(i, first.value_or(i));
    else if (comparable && entry(other.count - 1).chain != other.chain)
      unknown = static_cast<int>(rank);
  }
  if (!first) first = first_incomplete(others, own);
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
