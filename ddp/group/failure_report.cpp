#include "ddp/group/failure_report.h"

#include <algorithm>

#include "ddp/group/call_header.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// Where a rank was, and what it waited for, so that ranks of the same place are reported together.
struct WaitingRanks {
  std::string text;
  std::vector<int> ranks{}, awaited{};
  std::int64_t waited_ns = 0;
};

std::string place_of(Phase phase, std::int64_t step) {
  switch (phase) {
    case Phase::none: return "had not begun to join the others";
    case Phase::joining: return "was joining the others";
    case Phase::ready: return "had entered no step";
    case Phase::forward: return concat("was in forward of step ", step);
    case Phase::backward: return concat("was in backward of step ", step);
    case Phase::after: return concat("was after backward of step ", step);
  }
  return "?";
}

/// The first collective of the group of all ranks that has not ended well.
std::optional<RecordedCall> pending_call(const FlightRecord& record) {
  std::optional<RecordedCall> first;
  for (const RecordedCall& call : record.calls) {
    const bool pending = call.group == record.group && call.sequence >= 0 && call.progress != Progress::ended;
    if (pending && (!first || call.sequence < first->sequence)) first = call;
  }
  return first;
}

bool has_called(const FlightRecord& record, std::int64_t sequence) {
  return std::any_of(record.calls.begin(), record.calls.end(),
                     [&](const RecordedCall& call) { return call.group == record.group && call.sequence >= sequence; });
}

/// The other ranks without which the collective cannot go on.
std::vector<int> awaited_in(const RecordedCall& call, const std::vector<RankRecord>& ranks, int self, int failed_rank) {
  std::vector<int> late;
  for (const RankRecord& other : ranks)
    if (other.rank != self && !has_called(other.record, call.sequence)) late.push_back(other.rank);
  if (late.empty() && failed_rank >= 0 && failed_rank != self) late.push_back(failed_rank);
  return late;
}

WaitingRanks waiting_ranks_of(const RankRecord& one, const std::vector<RankRecord>& ranks, int failed_rank,
                              std::int64_t now_ns) {
  WaitingRanks waiting{.text = place_of(one.record.phase, one.record.step), .ranks = {one.rank}};
  if (const auto call = pending_call(one.record)) {
    waiting.awaited = awaited_in(*call, ranks, one.rank, failed_rank);
    const std::int64_t end = call->ended_ns > 0 ? call->ended_ns : now_ns;
    waiting.waited_ns = std::max<std::int64_t>(0, end - call->called_ns);
    waiting.text += waiting.awaited.empty() ? ", in " : concat(", waiting for ", rank_names(waiting.awaited), " in ");
    waiting.text += describe(*call);
  } else if (!one.record.calls.empty()) {
    waiting.text += concat("; its last call, ", describe(one.record.calls.back()), ", had ended");
  }
  return waiting;
}

std::string sentence_of(const WaitingRanks& waiting) {
  std::string text = "  " + rank_names(waiting.ranks) + " " + waiting.text;
  if (waiting.ranks.size() > 1) {
    for (const auto& [one, many] : {std::pair(" was ", " were "), std::pair(" before its first", " before their first"),
                                    std::pair("; its last call", "; their last call")})
      if (const auto at = text.find(one); at != std::string::npos) text.replace(at, std::string(one).size(), many);
  }
  if (waiting.awaited.empty()) return text;
  const std::int64_t tenths = waiting.waited_ns / 100'000;
  return text + concat(", for ", tenths / 10, ".", tenths % 10, " ms");
}

}  // namespace

std::string describe(const RecordedCall& call) {
  const std::string text =
      describe(static_cast<Collective>(call.op), call.count, static_cast<DType>(call.dtype),
               static_cast<ReduceOp>(call.reduce), call.root, call.sequence >= 0 ? concat(" #", call.sequence) : "");
  return call.bucket >= 0 ? concat(text, ", bucket ", call.bucket) : text;
}

std::optional<Wait> wait_of(const std::vector<RankRecord>& ranks, std::int64_t now_ns) {
  std::optional<Wait> first;
  for (const RankRecord& one : ranks) {
    const auto call = pending_call(one.record);
    if (!call || call->progress == Progress::failed || (first && call->sequence > first->sequence)) continue;
    if (!first || call->sequence < first->sequence)
      first = Wait{
          .sequence = call->sequence, .awaited = awaited_in(*call, ranks, one.rank, -1), .operation = describe(*call)};
    first->waiting.push_back(one.rank);
    first->waited_ns = std::max(first->waited_ns, now_ns - call->called_ns);
    first->median_step_ns = std::max(first->median_step_ns, one.record.median_step_ns);
  }
  return first;
}

std::string failure_report(const std::vector<RankRecord>& ranks, int failed_rank, std::int64_t now_ns) {
  std::vector<WaitingRanks> waits;
  bool any = false;
  for (const RankRecord& one : ranks) {
    any = any || one.record.phase != Phase::none;
    WaitingRanks waiting = waiting_ranks_of(one, ranks, failed_rank, now_ns);
    const auto same = std::find_if(waits.begin(), waits.end(), [&](const WaitingRanks& other) {
      return other.text == waiting.text && other.ranks[0] != failed_rank && one.rank != failed_rank;
    });
    if (same == waits.end()) {
      waits.push_back(std::move(waiting));
      continue;
    }
    same->ranks.push_back(one.rank);
    same->waited_ns = std::max(same->waited_ns, waiting.waited_ns);
  }
  if (!any) return {};
  std::stable_partition(waits.begin(), waits.end(),
                        [&](const WaitingRanks& waiting) { return waiting.ranks[0] == failed_rank; });
  std::string text;
  for (const WaitingRanks& waiting : waits) text += (text.empty() ? "" : "\n") + sentence_of(waiting);
  return text;
}

namespace {

std::string seconds_text(std::int64_t ns) {
  const std::int64_t tenths = ns / 100'000'000;
  return concat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

std::string WaitWatch::look(const std::vector<RankRecord>& ranks, std::int64_t now_ns) {
  using std::chrono::nanoseconds;
  const std::optional<Wait> wait = wait_of(ranks, now_ns);
  if (reported_) {
    if (wait && wait->sequence == reported_->sequence) {
      reported_->waited_ns = wait->waited_ns;
      return {};
    }
    remark_after_ = std::max(remark_after_, 2 * nanoseconds(reported_->waited_ns));
    const std::string text = concat(reported_->operation, " continues after ", seconds_text(reported_->waited_ns));
    reported_.reset();
    return text;
  }
  if (!wait || (wait->awaited.empty() && elsewhere_.empty())) return {};
  const nanoseconds steps = FlightRecorder::kStepsPerTimeout * nanoseconds(wait->median_step_ns);
  if (nanoseconds(wait->waited_ns) < std::max(remark_after_, steps)) return {};
  reported_ = wait;
  return concat(rank_names(wait->waiting), wait->waiting.size() > 1 ? " have" : " has", " waited ",
                seconds_text(wait->waited_ns), " for ", wait->awaited.empty() ? elsewhere_ : rank_names(wait->awaited),
                " in ", wait->operation);
}

}  // namespace duet::ddp
