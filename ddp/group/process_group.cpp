#include "ddp/group/process_group.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <utility>

#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

void check_buffer(const Call& call, const Buffer& buffer, const char* which) {
  require<UsageError>(buffer.count >= 0 && (buffer.data != nullptr || buffer.count == 0), name(call.op), ": the ",
                      which, " buffer has ", buffer.count, " elements at ", buffer.data);
}

/// `large` holds the pieces of all ranks, `small` one of them.
void check_pieces(const Call& call, const Buffer& large, const Buffer& small, int size) {
  require<UsageError>(large.dtype == small.dtype && large.count == small.count * size, name(call.op), " among ", size,
                      " ranks: ", small.count, " ", small.dtype, " per rank do not fit ", large.count, " ",
                      large.dtype);
}

/// A rank must not write where it has still to read.
void check_apart(const Call& call, const Buffer& a, const Buffer& b) {
  const auto* const left = static_cast<const std::byte*>(a.data);
  const auto* const right = static_cast<const std::byte*>(b.data);
  const std::less<> before;
  require<UsageError>(!before(left, right + b.bytes()) || !before(right, left + a.bytes()), name(call.op),
                      ": input and output overlap");
}

void check_reduce_scatter(const Call& call, int rank) {
  const auto* const own =
      static_cast<const std::byte*>(call.in.data) + call.out.bytes() * static_cast<std::size_t>(rank);
  if (own != call.out.data) check_apart(call, call.in, call.out);
}

void check_all_to_all(const Call& call, int size) {
  require<UsageError>(call.in.dtype == call.out.dtype && call.in.count == call.out.count && call.in.count % size == 0,
                      "all_to_all among ", size, " ranks: ", call.in.count, " ", call.in.dtype, " and ", call.out.count,
                      " ", call.out.dtype, " are not as many equal pieces");
  check_apart(call, call.in, call.out);
}

}  // namespace

// Calls of other ranks and records may hold any number.
const char* name(ReduceOp op) {
  constexpr std::array kNames = {"sum", "product", "min", "max", "avg"};
  const auto index = static_cast<std::size_t>(op);
  return index < kNames.size() ? kNames[index] : "?";
}

const char* name(Collective op) {
  constexpr std::array kNames = {"broadcast",      "all_reduce", "reduce",  "gather", "scatter", "all_gather",
                                 "reduce_scatter", "all_to_all", "barrier", "send",   "recv"};
  const auto index = static_cast<std::size_t>(op);
  return index < kNames.size() ? kNames[index] : "?";
}

bool reduces(Collective op) {
  return op == Collective::all_reduce || op == Collective::reduce || op == Collective::reduce_scatter;
}

bool has_root(Collective op) {
  return op == Collective::broadcast || op == Collective::reduce || op == Collective::gather ||
         op == Collective::scatter || op == Collective::send || op == Collective::recv;
}

ProcessGroup::ProcessGroup(int rank, int size)
    : rank_(rank), size_(size), exceptions_at_birth_(std::uncaught_exceptions()) {
  require<UsageError>(size >= 1, "a process group has at least 1 rank, got ", size);
  require<UsageError>(rank >= 0 && rank < size, "Invalid rank ", rank, ", rank should be in the interval [0, ",
                      size - 1, "]");
}

void ProcessGroup::set_flight_recorder(std::shared_ptr<FlightRecorder> recorder, std::uint32_t number) {
  recorder_ = std::move(recorder);
  recorded_as_ = number;
}

bool ProcessGroup::is_dropped() const {
  if (std::uncaught_exceptions() <= exceptions_at_birth_) return false;
  if (recorder_) recorder_->leave();
  return true;
}

std::shared_ptr<Storage> ProcessGroup::shared_storage(std::size_t) { return nullptr; }

Work ProcessGroup::checked(const Call& call) {
  require<UsageError>(call.root >= 0 && call.root < size_, name(call.op), ": rank ", call.root,
                      " is not one of the group's ", size_);
  check_buffer(call, call.in, "input");
  check_buffer(call, call.out, "output");
  require<UsageError>(call.reduce != ReduceOp::avg || is_floating(call.in.dtype), name(call.op),
                      ": avg is for f32, f64, f16 and bf16, got ", call.in.dtype);
  const bool on_root = call.root == rank_;
  if (call.op == Collective::all_gather || (call.op == Collective::gather && on_root))
    check_pieces(call, call.out, call.in, size_);
  if (call.op == Collective::reduce_scatter || (call.op == Collective::scatter && on_root))
    check_pieces(call, call.in, call.out, size_);
  if (call.op == Collective::reduce_scatter) check_reduce_scatter(call, rank_);
  if (call.op == Collective::all_to_all) check_all_to_all(call, size_);
  const auto direct = [this](const Buffer& buffer) { return buffer.count == 0 || takes(buffer.device.kind); };
  Call marked = call;
  if (call.op != Collective::send && call.op != Collective::recv) marked.batch = std::exchange(batch_, {});
  if (recorder_) marked.mark = noted(call);
  try {
    Work work = direct(call.in) && direct(call.out) ? start(marked) : start_staged(marked);
    work.set_mark(std::move(marked.mark));
    return work;
  } catch (...) {
    marked.mark.ended(true);
    throw;
  }
}

CallMark ProcessGroup::noted(const Call& call) {
  const Buffer& common = common_buffer(call);
  const bool message = call.op == Collective::send || call.op == Collective::recv;
  return recorder_->add({.group = recorded_as_,
                         .sequence = message ? -1 : static_cast<std::int32_t>(noted_++),
                         .op = static_cast<std::uint8_t>(call.op),
                         .dtype = static_cast<std::uint8_t>(common.dtype),
                         .reduce = static_cast<std::uint8_t>(call.reduce),
                         .root = static_cast<std::int16_t>(call.root),
                         .count = common.count});
}

namespace {

Tensor tensor_of(const Buffer& buffer) { return borrow(buffer.data, {buffer.count}, buffer.dtype, buffer.device); }

/// Whether a collective leaves its result in `in`.
bool in_place(const Call& call, bool on_root) {
  switch (call.op) {
    case Collective::all_reduce:
    case Collective::recv: return true;
    case Collective::broadcast: return !on_root;
    case Collective::reduce: return on_root;
    default: return false;
  }
}

}  // namespace

Work ProcessGroup::start_staged(const Call& call) {
  struct Staged {
    Tensor in, out;
    Work work;
  };
  const auto staged = std::make_shared<Staged>();
  Call there = call;
  const auto stage = [this](const Buffer& given, Tensor& copied, Buffer& used) {
    if (given.count > 0 && !takes(given.device.kind)) used = copied = tensor_of(given).to(staging_device());
  };
  stage(call.in, staged->in, there.in);
  stage(call.out, staged->out, there.out);
  staged->work = start_for_host(there);
  auto state = std::make_shared<WorkState>();
  state->begin(name(call.op), [staged, call, changes_in = in_place(call, call.root == rank_)](Clock::time_point limit) {
    if (limit == Clock::time_point::max())
      staged->work.wait();
    else
      staged->work.wait(std::chrono::ceil<Milliseconds>(limit - Clock::now()));
    if (changes_in && staged->in.defined()) copy(staged->in, tensor_of(call.in));
    if (staged->out.defined()) copy(staged->out, tensor_of(call.out));
    return true;
  });
  return Work(std::move(state));
}

Work ProcessGroup::send(const Buffer& buffer, int to, int tag) {
  require<UsageError>(to != rank_, "send: rank ", to, " is this rank itself");
  return checked({.op = Collective::send, .in = buffer, .root = to, .tag = tag});
}
Work ProcessGroup::recv(const Buffer& buffer, int from, int tag) {
  require<UsageError>(from != rank_, "recv: rank ", from, " is this rank itself");
  return checked({.op = Collective::recv, .in = buffer, .root = from, .tag = tag});
}

}  // namespace duet::ddp
