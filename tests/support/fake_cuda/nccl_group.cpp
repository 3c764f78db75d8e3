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

using duet::DType, duet::ddp::ReduceOp;
constexpr DType kTypes[] = {DType::u8,  DType::u8,  DType::i32, DType::i32, DType::i64,  // by ncclDataType_t
                            DType::i64, DType::f16, DType::f32, DType::f64, DType::bf16};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::product, ReduceOp::max, ReduceOp::min, ReduceOp::avg};

/// The order in which ranks are added up. NCCL's follows from the communicator and the size, in graphs too as long as
/// it registers no buffers there.
std::vector<std::int64_t> order_of_sum(const Request& one, std::size_t bytes) {
  const bool registered = one.captured && setting("NCCL_GRAPH_REGISTER", 1) != 0;
  const Group& group = *one.comm->group;
  const auto choice = 2 * (4'000'037 * setting("DUET_SIM_SEED", 1) + 1009 * group.number + static_cast<long>(bytes));
  duet::Mt19937 random(static_cast<std::uint64_t>(choice + (registered ? 1 : 0)));
  return random.randperm(static_cast<std::int64_t>(group.ranks.size()));
}

/// What the ranks' parts make together; their receive buffers may be the same as any rank's send buffers.
std::vector<char> result_of(const std::vector<Request>& ranks) {
  const Request& first = ranks[0];
  const DType type = kTypes[first.type];
  const std::size_t count = first.kind == Kind::reduce_scatter ? ranks.size() * first.count : first.count;
  const std::size_t bytes = count * duet::size_of(type);
  std::vector<char> all;  // a part after the other
  const auto add = [&](std::int64_t rank) {
    const char* from = static_cast<const char*>(ranks[static_cast<std::size_t>(rank)].send);
    all.insert(all.end(), from, from + bytes);
  };
  if (first.is_transfer() || first.kind == Kind::broadcast) {
    add(first.is_transfer() ? 0 : first.peer);
  } else if (first.kind == Kind::all_gather) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) add(static_cast<std::int64_t>(rank));
  } else {
    for (const std::int64_t rank : order_of_sum(first, bytes)) add(rank);
    std::vector<void*> parts;
    for (std::size_t i = 0; i < ranks.size(); ++i) parts.push_back(all.data() + i * bytes);
    duet::ddp::reduce_parts(parts, static_cast<std::int64_t>(count), type, kOps[first.op]);
    all.resize(bytes);
  }
  return all;
}

bool same(const Request& a, const Request& b) {
  return a.captured == b.captured && a.count == b.count && a.type == b.type &&
         (a.is_transfer() || (a.kind == b.kind && a.op == b.op && a.peer == b.peer));
}

}  // namespace

std::size_t size_of(ncclDataType_t type) { return duet::size_of(kTypes[type]); }

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

namespace {

/// The meeting that a request belongs to, and the place in it: collectives are counted, messages are by sender and
/// receiver.
std::pair<std::shared_ptr<Meeting>, std::size_t> find(const Request& request) {
  ncclComm& comm = *request.comm;
  const bool transfer = request.is_transfer(), sends = request.kind == Kind::send;
  const int from = transfer ? (sends ? comm.rank : request.peer) : -1;
  const int to = transfer ? (sends ? request.peer : comm.rank) : -1;
  const auto at = static_cast<std::size_t>(transfer ? !sends : comm.rank);
  const std::tuple key{from, to, comm.calls[{from, to, at}]++};
  std::shared_ptr<Meeting> meeting = comm.group->meetings[key];
  if (!meeting) {
    comm.group->meetings[key] = meeting = std::make_shared<Meeting>();
    meeting->requests.resize(transfer ? 2 : comm.group->ranks.size());
    Op op(request.name, comm.device);
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
  if (comm.group->board) return enqueue_among_processes(request, before);
  const auto [meeting, at] = find(request);
  meeting->requests[at] = request;
  meeting->op->reach |= 1u << comm.device;
  meeting->op->pointers.push_back({request.send, 0, true});
  meeting->op->pointers.push_back({request.receive, 1, true});
  const OpPtr after = schedule(Op(request.name, comm.device), {meeting->op}, 1);
  add_before(after, before);
  release(after);
  while (!comm.waiting.empty() && comm.waiting.front().first->done) comm.waiting.pop_front();
  comm.waiting.emplace_back(after, meeting->op);
  add_before(meeting->op, before);
  release(meeting->op);
  return after;
}

void abandon(ncclComm& comm) {
  if (comm.group->board) return abandon_among_processes(comm);
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
