// Ranks, and what they do together.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tests/support/fake_cuda/sim.h"

namespace duet_sim {

enum class Kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, receive };

/// One rank's call.
struct Request {
  const char* name;
  Kind kind;
  const void* send;
  void* receive;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // or root
  ncclComm* comm;
  cudaStream_t stream;
  bool captured = false;  // into a graph, on all ranks or none

  bool is_transfer() const { return kind == Kind::send || kind == Kind::receive; }
};

/// One operation of a group, from the first rank's call on.
struct Meeting {
  std::vector<Request> requests;  // by rank; of a transfer: the sender's, the receiver's
  std::size_t arrived = 0;
  OpPtr op;
};

/// What the ranks of a group show each other that are processes: see nccl_processes.cpp.
class Board;
/// Of which process, and as which of its files; see Board.
struct Id {
  long process, number;
  int file;
};

struct Group {
  Group(long own_number, int size) : number(own_number), ranks(static_cast<std::size_t>(size)) {}
  bool complete() const { return arrived == ranks.size(); }

  long number;
  std::vector<std::unique_ptr<ncclComm>> ranks;
  std::size_t arrived = 0;
  bool failed = false;
  std::shared_ptr<Board> board;  // null: the ranks are threads of this process
  std::map<std::tuple<int, int, std::uint64_t>, std::shared_ptr<Meeting>>
      meetings;  // that not all ranks have joined; see find()
};

/// Takes a rank's part in an operation; returns that after which its stream goes on. Under the mutex, like all here.
OpPtr enqueue(const Request& request, const Ops& before);
std::size_t size_of(ncclDataType_t type);
/// What the ranks' parts make together goes where they receive it.
void complete(const std::vector<Request>& ranks);
/// The rank's stream goes on without what it waits for; the others never get it, and see an async error.
void abandon(ncclComm& comm);

// --- nccl_processes.cpp ---
/// Whether DUET_SIM_PROCESSES says that ranks are processes.
bool among_processes();
/// The file of a new group of such ranks, which this process holds open; negative: there is none.
int make_board();
/// Joins the group and waits for the other ranks.
ncclResult_t join_processes(ncclComm_t* made, const Id& id, int size, int rank, int device);
/// As those above.
OpPtr enqueue_among_processes(const Request& request, const Ops& before);
void abandon_among_processes(ncclComm& comm);

}  // namespace duet_sim

struct ncclComm {
  ncclComm(duet_sim::Group* owner, int own_rank, int own_device) : group(owner), rank(own_rank), device(own_device) {}

  duet_sim::Group* group;
  int rank, device;
  bool alive = true;
  std::shared_ptr<int> graphs = std::make_shared<int>();  // shared with the nodes of graphs that hold its operations
  std::map<std::tuple<int, int, std::size_t>, std::uint64_t> calls;
  ncclResult_t error = ncclSuccess;
  std::deque<std::pair<duet_sim::OpPtr, duet_sim::OpPtr>> waiting;  // the rank's operation and the meeting's
  // Of a rank that is a process: operations that wait for the others, by number, and the last one of all.
  std::deque<std::pair<std::uint64_t, duet_sim::OpPtr>> held;
  duet_sim::OpPtr last;
  std::uint64_t started = 0;
};
