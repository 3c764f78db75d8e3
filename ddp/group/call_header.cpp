#include "ddp/group/call_header.h"

#include <algorithm>
#include <cstdint>
#include <vector>

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
  return header;
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
  const std::string text =
      describe(op, header.count, static_cast<DType>(header.dtype), static_cast<ReduceOp>(header.reduce), header.root);
  return op == Collective::reduce_update ? concat(text, " by rule ", static_cast<std::uint32_t>(header.tag)) : text;
}

std::uint64_t tag_of(const CallHeader& header, int phase) {
  return hash(&header, sizeof(header), 0xcbf29ce484222325 + static_cast<std::uint64_t>(phase));
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
  return text;
}

}  // namespace duet::ddp
