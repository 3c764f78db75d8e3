#include "ddp/group/call_header.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iomanip>
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

constexpr const char* kSameSteps =
    ": skip, repeat and accumulate batches alike on all ranks, by a value that they have in common, such as a flag's "
    "maximum (all_reduce), and put all parts of a batch but the last under no_sync()";
constexpr const char* kUncounted = "; call forwards that only log under NoGrad or in eval()";
constexpr const char* kSameSettings =
    ": update by values that all ranks have, in an elastic job kept by elastic::state";

/// The first rank that knows a value, and the first that has another one; null: none has. -1 is unknown.
template <class Value>
std::pair<const RankHeader*, const RankHeader*> unlike(std::span<const RankHeader> ranks, Value value_of) {
  const RankHeader* first = nullptr;
  for (const RankHeader& one : ranks) {
    const std::int64_t value = value_of(one.header.batch);
    if (value == -1) continue;
    if (first == nullptr) first = &one;
    if (value != value_of(first->header.batch)) return {first, &one};
  }
  return {first, nullptr};
}

using Texts = std::array<std::string, 3>;  // what differs, and the two values

Texts unlike_settings(const StepMark& first, const StepMark& other) {
  constexpr std::array kOptimizers = {"none", "a custom one", "SGD", "SGD with Nesterov momentum",
                                      "Adam", "AdamW",        "?"};
  constexpr std::array kNames = {"learning rate", "momentum", "dampening", "weight decay",
                                 "clip norm",     "beta1",    "beta2"};
  const auto name_of = [&](std::size_t optimizer) { return kOptimizers[std::min(optimizer, kOptimizers.size() - 1)]; };
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    const std::uint8_t optimizer = first.optimizers[i], another = other.optimizers[i];
    if (optimizer != another) return {"optimizer", name_of(optimizer), name_of(another)};
    std::size_t name = 0;
    while (name < first.values[i].size() && first.values[i][name] == other.values[i][name]) ++name;
    if (name == first.values[i].size()) continue;
    const float one = first.values[i][name], two = other.values[i][name];
    const auto digits = std::setprecision(concat(one) == concat(two) ? 9 : 6);
    using Settings = nn::UpdateSettings;
    const bool beta = optimizer >= Settings::adam && (name == Settings::beta1 || name == Settings::beta2);
    return {kNames[beta ? name + 4 : name], concat(digits, one), concat(digits, two)};
  }
  return {"eps, or an optimizer after the second,", "the same", "different"};
}

/// Names a number or setting that differs between ranks that make one call; empty if none does.
std::string unlike_steps(std::span<const RankHeader> ranks) {
  constexpr std::array kNames = {"number of forwards between reductions", "", "number of updates between reductions"};
  for (std::size_t i = 0; i < StepMark::kNumbers; ++i) {
    const auto [first, other] = unlike(ranks, [i](const BatchMark& mark) { return mark.done.numbers[i]; });
    if (other == nullptr) continue;
    const StepMark &one = first->header.batch.done, &two = other->header.batch.done;
    const bool settings = i == StepMark::settings;
    const auto [what, expected, value] =
        settings ? unlike_settings(one, two)
                 : Texts{kNames[i], std::to_string(one.numbers[i]), std::to_string(two.numbers[i])};
    return concat("the ", what, " of rank ", other->rank, " is ", value, ", expected ", expected, " as on rank ",
                  first->rank, settings ? kSameSettings : kSameSteps, i == StepMark::forwards ? kUncounted : "",
                  "; if ranks are to differ, set DistributedDataParallelOptions::local_steps");
  }
  return {};
}

/// Returns the advice for ranks that make one call with different rows.
const char* advice_on_rows(std::span<const RankHeader> ranks) {
  const auto differ = [&](auto field) {
    const auto value_of = [field](const BatchMark& mark) {
      return mark.whole == 0 ? -1 : static_cast<std::int64_t>(mark.*field);
    };
    return unlike(ranks, value_of).second != nullptr;
  };
  const bool sizes = differ(&BatchMark::global) || differ(&BatchMark::blocks), orders = differ(&BatchMark::order);
  if (differ(&BatchMark::step) || (differ(&BatchMark::whole) && !sizes && !orders)) return kSameSteps;
  return sizes    ? ": give all ranks' samplers the same batch size and number of blocks"
         : orders ? ": give all ranks' samplers the same data and seed"
                  : ": give each rank's sampler the number of ranks and its own rank, or, if each rank trains its rows "
                    "in parts, put all parts but the last under no_sync()";
}

/// Numbers of a BatchMark that all ranks have alike if they know them, that is if they are not 0.
constexpr std::array kCommon = {&BatchMark::whole, &BatchMark::values, &BatchMark::drawn};

bool differ(const CallHeader& one, const CallHeader& other, std::uint64_t BatchMark::*number) {
  const std::uint64_t own = one.batch.*number, others = other.batch.*number;
  return own != 0 && others != 0 && own != others;
}

/// The common numbers that differ between ranks that make one call; empty: none.
std::string unlike_numbers(std::span<const RankHeader> ranks) {
  const auto unlike_ranks = [&](std::uint64_t BatchMark::*number) {
    return unlike(ranks, [number](const BatchMark& mark) {
      return mark.*number == 0 ? -1 : static_cast<std::int64_t>(mark.*number);
    });
  };
  if (const auto [first, other] = unlike_ranks(&BatchMark::values); other != nullptr)
    return concat(kUnlikeParameters, other->rank, " are not those of rank ", first->rank,
                  ": a program has written parameters on some ranks only, or from values that a process which replaces "
                  "a lost rank lacks; write them on all ranks, in an elastic job in elastic::unit() and from values of "
                  "elastic::state()");
  const auto [first, other] = unlike_ranks(&BatchMark::drawn);
  if (other == nullptr) return {};
  const bool has_first = first->header.batch.drawn > other->header.batch.drawn;
  return concat("dropout has drawn for this batch on rank ", (has_first ? first : other)->rank, ", but not on rank ",
                (has_first ? other : first)->rank,
                ": only some ranks have called a forward before that of the wrapper; call it on all ranks, or in "
                "eval()");
}

}  // namespace

void add_update(StepMark& done, const nn::UpdateSettings& settings) {
  auto& [numbers, optimizers, values] = done;
  if (numbers[StepMark::updates] < 0) return;
  ++numbers[StepMark::updates];
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (optimizers[i] == nn::UpdateSettings::none) {
      optimizers[i] = settings.optimizer;
      std::copy_n(settings.values.begin(), values[i].size(), values[i].begin());
      break;
    }
    if (optimizers[i] == settings.optimizer && std::equal(values[i].begin(), values[i].end(), settings.values.begin()))
      return;
  }
  const auto added = static_cast<std::uint32_t>(hash(&settings.values, sizeof settings.values, settings.optimizer));
  std::int32_t& sum = numbers[StepMark::settings];
  sum = static_cast<std::int32_t>((static_cast<std::uint32_t>(sum) + 1 + added) & 0x7fffffff);
}

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
  bool same =
      same_call(one, other) && std::ranges::none_of(kCommon, [&](auto number) { return differ(one, other, number); });
  for (std::size_t i = 0; i < StepMark::kNumbers; ++i) {
    const std::int32_t number = one.batch.done.numbers[i], other_number = other.batch.done.numbers[i];
    same = same && (number == other_number || number == -1 || other_number == -1);
  }
  return same;
}

void Agreement::add(const CallHeader& header) {
  if (!std::exchange(any_, true)) first_ = header;
  same_ = same_ && same(header, first_);
  for (const auto number : kCommon)
    if (first_.batch.*number == 0) first_.batch.*number = header.batch.*number;
  for (std::size_t i = 0; i < StepMark::kNumbers; ++i)
    if (first_.batch.done.numbers[i] == -1) first_.batch.done.numbers[i] = header.batch.done.numbers[i];
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
  const bool one_call = std::all_of(ranks.begin(), ranks.end(),
                                    [&](const RankHeader& one) { return same_call(one.header, ranks[0].header); });
  for (const auto unlike : {unlike_steps, unlike_numbers})
    if (const std::string text = one_call ? unlike(ranks) : ""; !text.empty()) return text;
  std::string text = "the ranks disagree: ";
  std::vector<bool> grouped(ranks.size(), false);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (grouped[i]) continue;
    std::vector<int> same;
    for (std::size_t j = i; j < ranks.size(); ++j) {
      if (describe(ranks[j].header) != describe(ranks[i].header)) continue;
      grouped[j] = true;
      same.push_back(ranks[j].rank);
    }
    const char* const verb = same.size() > 1 ? " call " : " calls ";
    text += concat(i > 0 ? "; " : "", rank_names(same), verb, describe(ranks[i].header));
  }
  return one_call ? text + advice_on_rows(ranks) : text;
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
