#include "ddp/group/process_group.h"

#include <array>
#include <chrono>
#include <locale>
#include <sstream>

#include "ddp/group/compare_ranks.h"
#include "lib/error.h"

namespace duet::ddp {

bool GroupFailure::empty() const {
  const std::lock_guard lock(mutex_);
  return text_.empty();
}

void GroupFailure::check() const {
  const std::lock_guard lock(mutex_);
  require<CommError>(text_.empty(), text_);
}

std::string GroupFailure::add(const std::string& operation, int rank, const std::exception& error) {
  const std::lock_guard lock(mutex_);
  if (!text_.empty()) return text_;
  std::string own = concat(operation, " failed on rank ", rank, ": ", error.what());
  text_ = "the process group has failed: " + own;
  return own;
}

void GroupFailure::close() {
  const std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = "the process group is closed";
}

void WorkState::begin(std::string_view name, std::function<bool(Clock::time_point)> finisher) {
  const std::lock_guard lock(mutex_);
  name_.assign(name);
  done_ = false;
  failure_ = nullptr;
  finisher_ = std::move(finisher);
  mark_ = {};
}

void WorkState::end(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  done_ = true;
  failure_ = std::move(failure);
  mark_.ended(failure_ != nullptr);
  ended_.notify_all();
}

bool WorkState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void WorkState::set_mark(CallMark mark) {
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
  if (done_) mark_.ended(failure_ != nullptr);
}

void WorkState::wait(Clock::time_point deadline, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!done_ && finisher_) {
    auto finisher = std::exchange(finisher_, nullptr);
    lock.unlock();
    bool ended = true;
    try {
      ended = finisher(deadline);
      if (ended) end();
    } catch (...) {
      end(std::current_exception());
    }
    lock.lock();
    if (!ended && !done_) finisher_ = std::move(finisher);
  }
  // Not wait_until(max): some implementations overflow on it.
  const bool forever = deadline == Clock::time_point::max();
  if (forever) ended_.wait(lock, [this] { return done_; });
  const bool ended = forever || ended_.wait_until(lock, deadline, [this] { return done_; });
  require<CommError>(ended, name_, " has not ended within ", timeout.count(), " ms");
  if (failure_) std::rethrow_exception(failure_);
}

void Work::wait() {
  if (state_) state_->wait(Clock::time_point::max(), Milliseconds(0));
}

void Work::wait(Milliseconds timeout) {
  if (state_) state_->wait(Clock::now() + timeout, timeout);
}

void Work::set_mark(CallMark mark) { state_ ? state_->set_mark(std::move(mark)) : mark.ended(false); }

std::shared_ptr<WorkState> WorkPool::take() {
  for (const auto& state : states_) {
    if (state.use_count() == 1 && state->done()) return state;
  }
  states_.push_back(std::make_shared<WorkState>());
  return states_.back();
}

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

void check_parts(const Call& call, int rank, int size, bool takes_parts) {
  const int blocks = call.parts.blocks;
  require<UsageError>(is_block_count(blocks) && size <= blocks, "all_reduce by a tree of ", blocks, " blocks among ",
                      size, " ranks: expected 8, 16 or 32, and no more ranks");
  require<UsageError>(takes_parts && call.in.device.kind == DeviceKind::cpu,
                      "all_reduce by a tree of blocks is for buffers in the host's memory, and not for NCCL");
  const auto more = subtrees_of(rank, size, blocks).size() - 1;
  for (std::size_t i = 0; i < call.parts.more.size(); ++i)
    require<UsageError>(call.in.count == 0 || (call.parts.more[i] != nullptr) == (i < more), "all_reduce: rank ", rank,
                        " of ", size, " has ", more, " further parts of ", blocks, " blocks; part ", i + 1, " is at ",
                        call.parts.more[i]);
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
  if (std::uncaught_exceptions() <= exceptions_at_birth_ && !dropped_) return false;
  if (recorder_) recorder_->leave();
  return true;
}

void ProcessGroup::set_place(int rank, int size) {
  rank_ = rank;
  size_ = size;
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
  if (call.parts.blocks != 0) check_parts(call, rank_, size_, takes_parts());
  const auto direct = [this](const Buffer& buffer) { return buffer.count == 0 || takes(buffer.device.kind); };
  Call marked = call;
  if (!is_message(call.op)) marked.batch = std::exchange(batch_, {});
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
  return recorder_->add({.group = recorded_as_,
                         .sequence = is_message(call.op) ? -1 : static_cast<std::int32_t>(noted_++),
                         .op = static_cast<std::uint8_t>(call.op),
                         .dtype = static_cast<std::uint8_t>(common.dtype),
                         .reduce = static_cast<std::uint8_t>(call.reduce),
                         .root = static_cast<std::int16_t>(call.root),
                         .count = common.count});
}

namespace {

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

namespace {

// Groups within a group, and the barrier that names the missing ranks: both rendezvous in the store.

struct Place {
  int color = 0, key = 0, rank = 0;
};

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::split(int color, int key) {
  require_store("split");
  const std::vector<std::string> texts = all_gather_texts(*this, concat(color, " ", key));
  std::vector<Place> members;
  for (int rank = 0; rank < size_; ++rank) {
    Place place{.rank = rank};
    std::istringstream numbers(texts[static_cast<std::size_t>(rank)]);
    numbers.imbue(std::locale::classic());  // in another one a blank may be within a number
    numbers >> place.color >> place.key;
    if (place.color == color) members.push_back(place);
  }
  const int number = splits_++;
  if (color < 0) return nullptr;
  std::stable_sort(members.begin(), members.end(), [](const Place& a, const Place& b) { return a.key < b.key; });
  Subset subset;
  for (const Place& place : members) {
    if (place.rank == rank_) subset.rank = subset.size();
    subset.ranks.push_back(place.rank);
  }
  subset.name = concat("duet/split/", number, "/", color, "/");
  subset.store = std::make_shared<PrefixStore>(store_, subset.name, subset.size());
  auto group = connect_subset(subset);
  group->set_store(subset.store);
  if (recorder_) group->set_flight_recorder(recorder_, subgroup_number(recorded_as_, subset.name));
  return group;
}

std::unique_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  const std::vector<std::string> lists = all_gather_texts(*this, rank_names(ranks));
  for (int rank = 0; rank < size_; ++rank) {
    const std::string& list = lists[static_cast<std::size_t>(rank)];
    require<UsageError>(list == lists[0], "new_group: rank 0 names ", lists[0], ", rank ", rank, " names ", list);
  }
  for (const int rank : ranks)
    require<UsageError>(rank >= 0 && rank < size_ && std::count(ranks.begin(), ranks.end(), rank) == 1,
                        "new_group: ", rank_names(ranks), " are not different ranks of the group's ", size_);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  return split(own == ranks.end() ? -1 : 0, static_cast<int>(own - ranks.begin()));
}

void ProcessGroup::monitored_barrier(Milliseconds timeout) {
  require_store("monitored_barrier");
  const auto keys_of = [this](int number) { return rank_keys(concat("duet/monitored_barrier/", number), size_); };
  const int number = monitored_barriers_++;
  const std::vector<std::string> keys = keys_of(number);
  store_->set(keys[static_cast<std::size_t>(rank_)], "");
  try {
    store_->wait(keys, timeout);
    // All ranks have left the barrier before: no rank waits for its keys any more.
    store_->delete_key(keys_of(number - 1)[static_cast<std::size_t>(rank_)]);
    leave_last(*store_, concat("duet/monitored_barrier/", number, "/through"), rank_, size_);
  } catch (const CommError&) {
    const std::vector<int> missing = ranks_without_key(*store_, keys);
    if (missing.empty()) throw;
    throw CommError(concat("[Rank ", rank_, "]: ", rank_names(missing), " failed to pass monitored_barrier in ",
                           timeout.count(), " ms"));
  }
}

void ProcessGroup::require_store(const char* what) const {
  require<UsageError>(store_ != nullptr, what, ": this group has no store, see set_store()");
}

}  // namespace duet::ddp
