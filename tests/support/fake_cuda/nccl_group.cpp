#include "tests/support/fake_cuda/nccl_group.h"

#include <algorithm>
#include <cstring>

#include "lib/half.h"

namespace duet_sim {
namespace {

/// Sums (or else) in the order of ranks.
template <class T>
void reduce(const std::vector<const void*>& parts, std::size_t first, std::size_t count, ncclRedOp_t op, void* result) {
  std::vector<T> total(count);
  for (std::size_t i = 0; i < count; ++i) {
    T value = static_cast<const T*>(parts[0])[first + i];
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      const T other = static_cast<const T*>(parts[rank])[first + i];
      switch (op) {
        case ncclSum:
        case ncclAvg: value = static_cast<T>(value + other); break;
        case ncclProd: value = static_cast<T>(value * other); break;
        case ncclMax: value = std::max(value, other); break;
        case ncclMin: value = std::min(value, other); break;
      }
    }
    total[i] = op == ncclAvg ? static_cast<T>(value / static_cast<T>(static_cast<float>(parts.size()))) : value;
  }
  std::memcpy(result, total.data(), count * sizeof(T));
}

void reduce_into(const Meeting& m, std::size_t first, void* result) {
  std::vector<const void*> parts;
  for (const Request& request : m.requests) parts.push_back(request.send);
  const Request& any = m.requests[0];
  switch (any.type) {
    case ncclInt8: return reduce<std::int8_t>(parts, first, any.count, any.op, result);
    case ncclUint8: return reduce<std::uint8_t>(parts, first, any.count, any.op, result);
    case ncclInt32: return reduce<std::int32_t>(parts, first, any.count, any.op, result);
    case ncclInt64: return reduce<std::int64_t>(parts, first, any.count, any.op, result);
    case ncclFloat32: return reduce<float>(parts, first, any.count, any.op, result);
    case ncclFloat64: return reduce<double>(parts, first, any.count, any.op, result);
    case ncclFloat16: return reduce<duet::Float16>(parts, first, any.count, any.op, result);
    case ncclBfloat16: return reduce<duet::BFloat16>(parts, first, any.count, any.op, result);
  }
}

bool same(const Request& a, const Request& b) {
  const bool transfer = a.kind == Kind::send || a.kind == Kind::receive;
  return a.captured == b.captured && a.count == b.count && a.type == b.type &&
         (transfer || (a.kind == b.kind && a.op == b.op && a.peer == b.peer));
}

/// All ranks are here and their streams have come to this.
void meet(const Meeting& m) {
  const Request& first = m.requests[0];
  const std::size_t ranks = m.requests.size(), bytes = first.count * size_of(first.type);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Request& r = m.requests[rank];
    if (!same(first, r)) {
      const auto where = [](const Request& request) { return request.captured ? " in a graph" : ""; };
      report("ranks disagree: %s of %zu%s and %s of %zu%s", first.name, first.count, where(first), r.name, r.count,
             where(r));
      return fail_current_op(cudaErrorIllegalAddress);
    }
    for (const void* p : {r.send, static_cast<const void*>(r.receive)}) {
      const std::string fault = pointer_fault(p, true, m.devices[rank], 1u << m.devices[rank]);
      if (fault.empty()) continue;
      report("a buffer of %s %s", r.name, fault.c_str());
      return fail_current_op(cudaErrorIllegalAddress);
    }
  }
  if (first.kind == Kind::send) {
    std::memcpy(m.requests[1].receive, first.send, bytes);
    return;
  }
  // Results lie apart until all are there: a receive buffer may be another rank's, or the rank's own, send buffer.
  std::vector<std::vector<char>> results(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const bool root = static_cast<int>(rank) == first.peer;
    const bool gather = first.kind == Kind::all_gather;
    if (first.kind == Kind::reduce && !root) continue;
    results[rank].resize(gather ? bytes * ranks : bytes);
    if (first.kind == Kind::broadcast)
      std::memcpy(results[rank].data(), m.requests[static_cast<std::size_t>(first.peer)].send, bytes);
    else if (gather)
      for (std::size_t i = 0; i < ranks; ++i) std::memcpy(results[rank].data() + i * bytes, m.requests[i].send, bytes);
    else
      reduce_into(m, first.kind == Kind::reduce_scatter ? rank * first.count : 0, results[rank].data());
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (!results[rank].empty()) std::memcpy(m.requests[rank].receive, results[rank].data(), results[rank].size());
}

/// The meeting that a request belongs to, and the place in it.
std::pair<std::shared_ptr<Meeting>, std::size_t> find(ncclComm& comm, const Request& request) {
  Group& group = *comm.group;
  const bool transfer = request.kind == Kind::send || request.kind == Kind::receive;
  std::shared_ptr<Meeting> found;
  std::size_t at = static_cast<std::size_t>(comm.rank);
  if (transfer) {
    at = request.kind == Kind::send ? 0 : 1;
    auto& queue = group.transfers[at == 0 ? std::pair{comm.rank, request.peer} : std::pair{request.peer, comm.rank}];
    if (!queue.empty() && !queue.front()->present[at]) {
      found = queue.front();
      queue.pop_front();
      return {found, at};
    }
    queue.push_back(found = std::make_shared<Meeting>());
  } else {
    std::shared_ptr<Meeting>& open = group.collectives[comm.calls++];
    if (open) return {open, at};
    found = open = std::make_shared<Meeting>();
  }
  const std::size_t count = transfer ? 2 : group.ranks.size();
  found->requests.resize(count);
  found->present.resize(count);
  found->devices.resize(count);
  Op op(request.name);
  op.device = comm.device;
  op.body = [found] { meet(*found); };
  found->op = schedule(op, {}, static_cast<int>(count));
  return {found, at};
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclFloat64: return 8;
    case ncclFloat16:
    case ncclBfloat16: return 2;
  }
  return 0;
}

OpPtr enqueue(ncclComm& comm, const Request& request, const Ops& before) {
  if (!comm.alive) return schedule(Op(request.name), before);  // aborted; a graph's kernels end at once
  const auto [meeting, at] = find(comm, request);
  meeting->requests[at] = request;
  meeting->present[at] = true;
  meeting->devices[at] = comm.device;
  meeting->op->reach |= 1u << comm.device;
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
