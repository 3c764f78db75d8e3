// Messages between the ranks of a group: the part of a backend that is not the same for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// The connection to another rank has ended. Thrown by a group of all ranks; that of some of them, which count from 0
/// of their own, throws its base.
class LostRank : public CommError {
 public:
  LostRank(const std::string& text, int rank, const ErrorOrigin& origin = {}) : CommError(text, origin), rank_(rank) {}
  /// The other one.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// How long the launcher may take to see that a process has ended which another rank has lost.
inline constexpr Milliseconds kLossPatience{10'000};

/// How ranks are connected; each backend reads what it needs.
struct ConnectOptions {
  std::string backend{};  // for connect(); not "auto"
  /// tcp, with `host`: how long the other ranks may take to come before connect_timeout begins.
  Milliseconds join_timeout{};
  Milliseconds connect_timeout{30'000};
  GroupOptions group{};               // mpi: `whole_job`: the ranks are those of MPI_COMM_WORLD, with its numbers
  std::string address = "127.0.0.1";  // tcp, gloo: of this rank, where the others reach it
  /// tcp: a number for every rank, equal for those on one host, which then exchange over memory what stays there;
  /// empty: all goes over the network.
  std::vector<int> hosts{};
  int host = -1;                          // tcp: or only this rank's, which the ranks then tell each other
  Device device = {DeviceKind::cuda, 0};  // nccl: this rank's
  /// nccl: network interface of its sockets; empty: NCCL chooses. NCCL_SOCKET_IFNAME takes precedence, and so does the
  /// choice of this process's first group, as NCCL reads it only once.
  std::string interface {};
  /// shm, tcp, nccl: called now and then while this rank waits for others; throws CommError where they will not come.
  /// nccl: from any thread, also while collectives run.
  std::function<void()> check{};
};

/// Why a transport takes no more messages.
inline constexpr const char* kClosed = "this rank has closed its connections";

/// Connects this rank with every other. Both sides of a message name the same tag and the same number of bytes, and at
/// most one message of a tag is under way between two ranks. Thread-safe.
class Transport {
 public:
  using Request = std::int64_t;
  static constexpr Request kNone = -2;  // half of it is negative, too

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;
  /// A number for every rank, equal for those on one host; empty where it makes no difference.
  virtual const std::vector<int>& hosts() const {
    static const std::vector<int> none;
    return none;
  }
  /// Start a message and return at once; `bytes` > 0, and the memory stays untouched until wait() has returned.
  virtual Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) = 0;
  virtual Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) = 0;
  /// Blocks to the end of the message, whose number is then free again. Throws CommError that names the peer.
  virtual void wait(Request request, Clock::time_point deadline) = 0;
  /// Leaves the memory of a message alone instead of waiting: copies what a send still needs, discards what arrives.
  /// False, also for kNone: can't do so, and needs the memory until it is destroyed.
  virtual bool release(Request) { return false; }
  /// Whether progress() must be called from time to time for messages that no thread waits for.
  virtual bool needs_progress() const { return false; }
  /// Moves what can be moved without waiting. Throws CommError after a failure, which has ended all messages.
  virtual void progress() {}
  /// New connections for some of the ranks; all of these call it.
  virtual std::unique_ptr<Transport> connect_subset(const Subset& subset) const = 0;
  /// Ends all messages, here and at the peers, with errors. May be called at any time, from any thread.
  virtual void close() = 0;
};

/// Connects this rank with the others, threads of this process that call this with the same store. Sending copies the
/// bytes and never waits. Throws CommError when a rank does not come.
std::unique_ptr<Transport> make_memory_transport(Store& store, int rank, int size, Milliseconds timeout);

}  // namespace duet::ddp
