#include "tests/support/fake_cuda/nccl_group.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/group/reduce_kernels.h"

namespace duet_sim {
namespace {

duet::DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8: return duet::DType::u8;
    case ncclInt32: return duet::DType::i32;
    case ncclInt64: return duet::DType::i64;
    case ncclFloat16: return duet::DType::f16;
    case ncclFloat32: return duet::DType::f32;
    case ncclFloat64: return duet::DType::f64;
    case ncclBfloat16: break;
  }
  return duet::DType::bf16;
}

duet::ddp::ReduceOp operation_of(ncclRedOp_t op) {
  using duet::ddp::ReduceOp;
  switch (op) {
    case ncclSum: return ReduceOp::sum;
    case ncclProd: return ReduceOp::product;
    case ncclMax: return ReduceOp::max;
    case ncclMin: return ReduceOp::min;
    case ncclAvg: break;
  }
  return ReduceOp::avg;
}

/// What the ranks' parts make together; their receive buffers may be the same as any rank's send buffers.
std::vector<char> result_of(const std::vector<Request>& ranks) {
  const Request& first = ranks[0];
  const duet::DType type = dtype_of(first.type);
  const std::size_t count = first.kind == Kind::reduce_scatter ? ranks.size() * first.count : first.count;
  const auto sent = [&](std::size_t rank) {
    const char* from = static_cast<const char*>(ranks[rank].send);
    return std::vector<char>(from, from + count * duet::size_of(type));
  };
  if (first.is_transfer()) return sent(0);
  if (first.kind == Kind::broadcast) return sent(static_cast<std::size_t>(first.peer));
  std::vector<std::vector<char>> parts;
  std::vector<void*> places;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) places.push_back(parts.emplace_back(sent(rank)).data());
  if (first.kind == Kind::all_gather) {
    for (std::size_t rank = 1; rank < ranks.size(); ++rank)
      parts[0].insert(parts[0].end(), parts[rank].begin(), parts[rank].end());
  } else {
    duet::ddp::reduce_parts(places, static_cast<std::int64_t>(count), type, operation_of(first.op));
  }
  return std::move(parts[0]);
}

bool same(const Request& a, const Request& b) {
  return a.captured == b.captured && a.count == b.count && a.type == b.type &&
         (a.is_transfer() || (a.kind == b.kind && a.op == b.op && a.peer == b.peer));
}

/// All ranks have joined and their streams have reached the operation.
void complete(const std::vector<Request>& ranks) {
  const Request& first = ranks[0];
  for (const Request& r : ranks) {
    if (same(first, r)) continue;
    const auto where = [](const Request& request) { return request.captured ? " in a graph" : ""; };
    report("ranks disagree: %s of %zu%s and %s of %zu%s", first.name, first.count, where(first), r.name, r.count,
           where(r));
    return fail_current_op(cudaErrorIllegalAddress);
  }
  const std::vector<char> result = result_of(ranks);
  const std::size_t share = first.kind == Kind::reduce_scatter ? result.size() / ranks.size() : 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool sends_only = first.kind == Kind::reduce && static_cast<int>(rank) != first.peer;
    if (ranks[rank].receive == nullptr || sends_only) continue;
    std::memcpy(ranks[rank].receive, result.data() + rank * share, share != 0 ? share : result.size());
  }
}

/// The meeting that a request belongs to, and the place in it: collectives are counted, messages are by sender and
/// receiver.
std::pair<std::shared_ptr<Meeting>, std::size_t> find(const Request& request) {
  ncclComm& comm = *request.comm;
  const bool transfer = request.is_transfer(), sends = request.kind == Kind::send;
  const int from = !transfer ? -1
                   : sends   ? comm.rank
                             : request.peer,
            to = !transfer ? -1
                 : sends   ? request.peer
                           : comm.rank;
  const std::size_t at = !transfer ? static_cast<std::size_t>(comm.rank) : sends ? 0 : 1;
  const std::tuple key{from, to, comm.calls[{from, to, at}]++};
  std::shared_ptr<Meeting> meeting = comm.group->meetings[key];
  if (!meeting) {
    comm.group->meetings[key] = meeting = std::make_shared<Meeting>();
    meeting->requests.resize(transfer ? 2 : comm.group->ranks.size());
    Op op(request.name);
    op.device = comm.device;
    op.body = [held = meeting] { complete(held->requests); };
    meeting->op = schedule(op, {}, static_cast<int>(meeting->requests.size()));
  }
  if (++meeting->arrived == meeting->requests.size()) comm.group->meetings.erase(key);
  return {meeting, at};
}

}  // namespace

OpPtr enqueue(const Request& request, const Ops& before) {
  ncclComm& comm = *request.comm;
  if (!comm.alive) return schedule(Op(request.name), before);  // aborted; a graph's kernels end at once
  const auto [meeting, at] = find(request);
  meeting->requests[at] = request;
  meeting->op->reach |= 1u << comm.device;
  meeting->op->pointers.push_back({request.send, 0, true});
  meeting->op->pointers.push_back({request.receive, 1, true});
  Op own(request.name);
  own.device = comm.device;
  const OpPtr after = schedule(own, {meeting->op}, 1);
  add_before(after, before);
  release(after);
  while (!comm.waiting.empty() && comm.waiting.front().first->done) comm.waiting.pop_front();
  comm.waiting.emplace_back(after, meeting->op);
  add_before(meeting->op, before);
  release(meeting->op);
  return after;
}

void abandon(ncclComm& comm) {
  for (auto& [own, meeting] : comm.waiting) {
    if (meeting->done) continue;
    meeting->body = nullptr;
    state().pending.erase(meeting);
    const auto at = std::find(meeting->next.begin(), meeting->next.end(), own);
    if (at == meeting->next.end()) continue;
    meeting->next.erase(at);
    release(own);
  }
  comm.waiting.clear();
  for (const auto& other : comm.group->ranks)
    if (other && other.get() != &comm) other->error = ncclRemoteError;
}

}  // namespace duet_sim
