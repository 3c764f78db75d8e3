// NCCL among ranks that are processes of one host, each with simulated devices of its own. In memory that they share
// each rank has a line, and the last two collectives' data: a collective is an operation that puts the rank's part
// there, and one that is held until all ranks have done so, and makes the result of what lies there.
#include <fcntl.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/nccl_group.h"
#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {
namespace {

constexpr std::size_t kMostRanks = 16;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of one rank's part; pages that are not used cost nothing
constexpr std::chrono::microseconds kPollEvery{100};
constexpr int kGarbage = 0x47;  // a large number in each byte

/// A rank's part in a collective, but for its data.
struct Part {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool captured;
  std::uint64_t count;
};

}  // namespace

/// A memfd of the process that made the unique id, which the others open through /proc: it is gone with the last of
/// them, however they end.
class Board {
 public:
  explicit Board(void* memory) : lines_(static_cast<Line*>(memory)) {}
  ~Board() { ::munmap(lines_, bytes()); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  static std::size_t bytes() { return sizeof(Line) * kMostRanks + kMostRanks * 2 * kMostBytes; }

  struct Line {
    std::atomic<int> process, device;  // the first is 0 until the rank has come
    std::atomic<bool> aborted;
    std::atomic<std::uint64_t> posted;  // collectives
    Part parts[2];
  };
  Line& line(std::size_t rank) { return lines_[rank]; }
  /// Of the collective with this number: a rank is at most one behind another.
  Part& part(std::size_t rank, std::uint64_t number) { return lines_[rank].parts[number % 2]; }
  char* data(std::size_t rank, std::uint64_t number) {
    return reinterpret_cast<char*>(lines_ + kMostRanks) + (rank * 2 + number % 2) * kMostBytes;
  }

 private:
  Line* lines_;
};

namespace {

std::shared_ptr<Board> open_board(const Id& id) {
  const std::string path = "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const memory = ::mmap(nullptr, Board::bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  ::close(file);
  return memory == MAP_FAILED ? nullptr : std::make_shared<Board>(memory);
}

std::size_t bytes_of(const Request& request) {
  const std::size_t pieces = request.kind == Kind::reduce_scatter ? request.comm->group->ranks.size() : 1;
  return pieces * request.count * size_of(request.type);
}

/// With even seeds, what NCCL's own threads find out: that another rank's communicator was aborted, or that it has
/// died. A kernel that waits for a GPU next to it notices nothing, and takes what an aborted one sends for data.
bool threads_look() { return setting("DUET_SIM_SEED", 1) % 2 == 0; }
ncclResult_t look_at_others(const ncclComm& comm) {
  for (std::size_t rank = 0; threads_look() && rank < comm.group->ranks.size(); ++rank) {
    const Board::Line& line = comm.group->board->line(rank);
    if (line.aborted || ::kill(line.process, 0) != 0) return ncclRemoteError;
  }
  return ncclSuccess;
}
bool sends_garbage(const ncclComm& comm) {
  for (std::size_t rank = 0; !threads_look() && rank < comm.group->ranks.size(); ++rank)
    if (static_cast<int>(rank) != comm.rank && comm.group->board->line(rank).aborted) return true;
  return false;
}

bool is_posted(const ncclComm& comm, std::uint64_t number) {
  bool all = true;
  for (std::size_t rank = 0; rank < comm.group->ranks.size(); ++rank)
    all = all && comm.group->board->line(rank).posted > number;
  return all;
}

/// The thread that lets operations go on once all ranks have posted their parts. Communicators are never freed.
void watch(ncclComm* comm) {
  Lock lock(state().mutex);
  for (;;) {
    state().changed.wait(lock, [&] { return !comm->alive || !comm->held.empty(); });
    if (!comm->alive) return;
    if (is_posted(*comm, comm->held.front().first) || sends_garbage(*comm)) {
      release(comm->held.front().second);
      comm->held.pop_front();
      continue;
    }
    if (comm->error == ncclSuccess) comm->error = look_at_others(*comm);
    lock.unlock();
    std::this_thread::sleep_for(kPollEvery);
    lock.lock();
  }
}

void post(const Request& request, std::uint64_t number) {
  const auto rank = static_cast<std::size_t>(request.comm->rank);
  Board& board = *request.comm->group->board;
  if (board.line(rank).aborted) return;
  if (bytes_of(request) > kMostBytes) {
    report("%s of %zu bytes: simulated NCCL between processes takes %zu", request.name, bytes_of(request), kMostBytes);
    return fail_current_op(cudaErrorIllegalAddress);
  }
  board.part(rank, number) = {request.kind, request.type, request.op, request.peer, request.captured, request.count};
  std::memcpy(board.data(rank, number), request.send, bytes_of(request));
  board.line(rank).posted = number + 1;
}

void take(const Request& own, std::uint64_t number) {
  Board& board = *own.comm->group->board;
  if (board.line(static_cast<std::size_t>(own.comm->rank)).aborted) return;
  if (!is_posted(*own.comm, number)) {
    std::memset(own.receive, kGarbage, own.count * size_of(own.type));
    return;
  }
  std::vector<Request> all;
  for (std::size_t rank = 0; rank < own.comm->group->ranks.size(); ++rank) {
    const Part& part = board.part(rank, number);
    Request& request = all.emplace_back(own);
    request.kind = part.kind, request.type = part.type, request.op = part.op, request.peer = part.root;
    request.captured = part.captured, request.count = part.count;
    request.send = board.data(rank, number);
    if (static_cast<int>(rank) != own.comm->rank) request.receive = nullptr;
  }
  complete(all);
}

}  // namespace

bool among_processes() { return setting("DUET_SIM_PROCESSES", 0) != 0; }

int make_board() {
  const int file = ::memfd_create("simulated NCCL", MFD_CLOEXEC);
  if (file >= 0 && ::ftruncate(file, static_cast<off_t>(Board::bytes())) == 0) return file;
  return -1;
}

ncclResult_t join_processes(ncclComm_t* made, const Id& id, int size, int rank, int device) {
  const auto board = open_board(id);
  if (board == nullptr || size > static_cast<int>(kMostRanks)) return ncclSystemError;  // the first rank has died
  board->line(static_cast<std::size_t>(rank)).device = device;
  board->line(static_cast<std::size_t>(rank)).process = ::getpid();
  const auto deadline = std::chrono::steady_clock::now() + patience();
  const auto count = static_cast<std::size_t>(size);
  const auto missing = [&] {
    for (std::size_t other = 0; other < count; ++other)
      if (board->line(other).process == 0) return true;
    return false;
  };
  while (missing()) {
    if (std::chrono::steady_clock::now() > deadline) return ncclSystemError;
    std::this_thread::sleep_for(kPollEvery);
  }
  if (id.process == ::getpid()) ::close(id.file);
  for (std::size_t other = 0; other < count; ++other)
    if (static_cast<int>(other) != rank && board->line(other).device == device) return ncclInvalidUsage;
  const Lock lock(state().mutex);
  static auto* all = new std::vector<std::unique_ptr<Group>>;  // kept, as those of threads are
  Group& group = *all->emplace_back(std::make_unique<Group>(id.number, size));
  group.board = board;
  *made = (group.ranks[static_cast<std::size_t>(rank)] = std::make_unique<ncclComm>(&group, rank, device)).get();
  std::thread(watch, *made).detach();
  return ncclSuccess;
}

OpPtr enqueue_among_processes(const Request& request, const Ops& before) {
  ncclComm& comm = *request.comm;
  const std::uint64_t number = comm.started++;
  Op put(request.name, comm.device);
  put.reach = 1u << comm.device;
  put.pointers = {{request.send, 0, true}};
  put.body = [request, number] { post(request, number); };
  Ops all = before;
  all.push_back(comm.last);  // of another stream, perhaps
  const OpPtr posted = schedule(put, all);
  Op get(request.name, comm.device);
  get.reach = 1u << comm.device;
  get.pointers = {{request.receive, 1, true}};
  get.body = [request, number] { take(request, number); };
  comm.last = schedule(get, {posted}, 1);
  comm.held.emplace_back(number, comm.last);
  state().changed.notify_all();
  return comm.last;
}

void abandon_among_processes(ncclComm& comm) {
  comm.group->board->line(static_cast<std::size_t>(comm.rank)).aborted = true;
  for (const auto& [number, op] : comm.held) {
    op->body = nullptr;
    release(op);
  }
  comm.held.clear();
}

}  // namespace duet_sim
