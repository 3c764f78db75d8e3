// MPI's point-to-point messages as a Transport. The collectives are duet's own: MPI leaves the order of its sums open.
//
// Note [Messages over MPI]: MPI matches messages by tags of which 15 bits are sure to be there, duet by 64 bits. So
// each message begins with a packet, which holds the 64; MPI's tag of packets is one. A short message is all in its
// packet ("eager", as MPI libraries call it). Of a long one the packet is a request to send; the receiver answers it,
// once it expects the message, by a packet that is clear to send and names an MPI tag for the bytes. Only then does MPI
// get the memory of both sides, between which it moves the bytes without copies of duet's. MPI cannot cancel a send: by
// this order a wait can end at its deadline all the same, as what nobody takes has not begun.
//
// Note [Waiting for MPI]: MPI has nothing to sleep on, so waiting is polling. A waiting thread yields its core between
// polls for kSpin, about the time that ranks of one step are apart, and from then on sleeps for a sixteenth of what it
// has waited so far, up to kLongNap: that makes a wait longer by a sixteenth, and a long one costs a core nearly
// nothing.

#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/transport/modules.h"
#include "ddp/transport/transport.h"
#include "lib/base/environment.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

using std::chrono::microseconds;

constexpr int kPacketTag = 0, kLastTag = 32'767;              // MPI's least upper bound
constexpr std::size_t kTransferBytes = std::size_t{1} << 30;  // at most in one MPI message, whose count is an int
constexpr std::size_t kEagerBytes = 3960;  // a packet of 4,000 bytes is one piece of Open MPI's shared memory
constexpr microseconds kSpin{100}, kShortNap{20}, kBusyNap{50}, kLongNap{1000};
constexpr Milliseconds kAttendEvery{5};
constexpr Milliseconds kSettleTime{3000};  // what both sides have begun ends in far less
const char* const kPeerClosed = "connection closed by peer";

constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
constexpr const char* kSizeVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};

/// Throws CommError with MPI's own text unless the call has succeeded.
void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(concat(call, ": ", text.data()));
}

/// MPI as this process has it.
struct MpiWorld {
  MPI_Comm ranks = MPI_COMM_NULL;  // duplicate of MPI_COMM_WORLD, for duet's messages alone; errors are returned
  int rank = 0, size = 1;
  bool own = false;  // duet has initialised MPI
};

MpiWorld start_mpi() {
  MpiWorld world;
  int flag = 0, level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Finalized(&flag), "MPI_Finalized");
  require<UsageError>(flag == 0, "backend mpi: this process has finalised MPI, which it can do only once");
  check_mpi(MPI_Initialized(&flag), "MPI_Initialized");
  world.own = flag == 0;
  if (world.own) check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  require<UsageError>(level == MPI_THREAD_MULTIPLE, "backend mpi: MPI was initialised for threads of level ", level,
                      ", expected MPI_THREAD_MULTIPLE, ", MPI_THREAD_MULTIPLE);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world.ranks), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(world.ranks, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(world.ranks, &world.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(world.ranks, &world.size), "MPI_Comm_size");
  return world;
}

/// The first call initialises MPI unless that is done, and waits for all ranks.
const MpiWorld& mpi_world() {
  static const MpiWorld world = start_mpi();
  return world;
}

/// Throws UsageError unless an MPI launcher has started this process: else it would be the only one of a world of its
/// own.
void require_mpi_launcher() {
  const bool told = std::any_of(std::begin(kRankVariables), std::end(kRankVariables),
                                [](const char* name) { return environment_variable(name).has_value(); });
  require<UsageError>(
      told,
      "backend mpi: no MPI launcher has started this process: environment variable PMIX_RANK, PMI_RANK "
      "or OMPI_COMM_WORLD_RANK expected, but not set; start the ranks by mpirun, or by srun --mpi=pmix");
}

/// Throws UsageError if one of the variables is set to another number than `expected`, which `what` describes.
void require_number(std::span<const char* const> variables, int expected, const char* what) {
  for (const char* const name : variables)
    if (const auto text = environment_variable(name))
      require<UsageError>(*text == std::to_string(expected), "backend mpi: environment variable ", name, " is ", *text,
                          ", expected ", expected, ", ", what, " of duet's job");
}

/// Throws UsageError where the launcher's variables have other numbers.
void require_mpi_place(int rank, int size) {
  require_number(kRankVariables, rank, "the rank of this process");
  require_number(kSizeVariables, size, "the number of ranks");
}

/// See Note [Waiting for MPI]. While bytes move, it is the polls that move them.
void rest(Clock::duration waited, bool moves) {
  if (waited < kSpin) return std::this_thread::yield();
  std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 16, kShortNap, moves ? kBusyNap : kLongNap));
}

/// A group of ranks, as one of them sees it.
struct Channel {
  std::uint64_t id = 0;     // the same on all its ranks, and no other's
  int rank = 0;             // this one
  std::vector<int> ranks;   // their numbers in MPI_COMM_WORLD
  std::vector<bool> ended;  // by rank: it has closed the channel
  bool closed = false;
};

/// Moves the messages of all groups of this process.
class MpiMessages {
 public:
  using Request = Transport::Request;

  explicit MpiMessages(const MpiWorld& world) : world_(world) {
    const std::lock_guard lock(mutex_);
    thread_ = start_thread("the thread of the messages over MPI", [this] { attend(); });
    receive_packet();
  }

  /// For a channel whose rank 0 is this process.
  std::uint64_t new_id() {
    const std::lock_guard lock(mutex_);
    return (static_cast<std::uint64_t>(world_.rank) << 32) + ++ids_;
  }
  void open(Channel& channel) {
    const std::lock_guard lock(mutex_);
    channels_[channel.id] = &channel;
  }
  /// Forgets a channel that is closed, and its messages.
  void remove(const Channel& channel) {
    const std::lock_guard lock(mutex_);
    channels_.erase(channel.id);
    for (Message& message : messages_) message.busy = message.busy && message.channel != channel.id;
  }

  Request send(const Channel& channel, int peer, std::uint64_t tag, const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    require<CommError>(!channel.closed, kClosed);
    if (channel.ended[static_cast<std::size_t>(peer)])
      throw LostRank(concat("rank ", peer, " cannot be reached: ", kPeerClosed), peer);
    const Request request = take(channel, peer, true, tag, const_cast<void*>(data), bytes);
    Message& message = at(request);
    message.done = bytes <= kEagerBytes;
    post(message.world_rank, message.head(message.done ? Kind::eager : Kind::request_to_send, request), data);
    return request;
  }

  Request receive(const Channel& channel, int peer, std::uint64_t tag, void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    require<CommError>(!channel.closed, kClosed);
    const Request request = take(channel, peer, false, tag, data, bytes);
    Message& message = at(request);
    const auto early = std::find_if(early_.begin(), early_.end(), [&](const Early& one) {
      return one.source == message.world_rank && one.packet.head.channel == channel.id && one.packet.head.tag == tag;
    });
    if (early != early_.end()) {
      accept(message, early->packet);
      early_.erase(early);
    } else if (channel.ended[static_cast<std::size_t>(peer)]) {
      message.failure = kPeerClosed;
    }
    return request;
  }

  void wait(Channel& channel, Request request, Clock::time_point deadline) {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    Message& message = at(request);
    const char* const what = message.sends ? " took nothing" : " sent nothing";
    while (!message.ended()) {
      progress();
      if (message.ended()) break;
      const bool moves = message.begun(), late = Clock::now() >= deadline;
      failed_ = failed_ || late;
      lock.unlock();
      if (late) close(channel);  // nothing may arrive any more in memory that the caller gives up
      require<CommError>(!late, "rank ", message.peer, what, " in time");
      rest(Clock::now() - begin, moves);
      lock.lock();
    }
    message.busy = false;
    if (message.done) return;
    require<CommError>(message.failure != kClosed, kClosed);
    failed_ = true;
    throw LostRank(concat("rank ", message.peer, what, ": ", message.failure), message.peer);
  }

  /// Fails what has not begun, and waits for what has: afterwards MPI has none of the channel's memory. Where a peer
  /// has stopped in the midst of a message, that ends the job.
  void close(Channel& channel) {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    if (stopped_) return;
    if (!std::exchange(channel.closed, true)) tell_peers(channel);
    while (!settled(channel, Clock::now() - begin)) {
      lock.unlock();
      rest(Clock::now() - begin, true);
      lock.lock();
    }
  }

  /// Closes all channels, and calls MPI no more. Whether no message has failed.
  bool stop() {
    std::unique_lock lock(mutex_);
    if (stopped_) return !failed_;
    const auto open = channels_;
    lock.unlock();
    for (const auto& [id, channel] : open) close(*channel);
    lock.lock();
    failed_ = failed_ || !open.empty();  // the process ends in the midst of its work
    stop_packets();
    stopped_ = true;
    stopping_.notify_all();
    lock.unlock();
    thread_.join();
    return !failed_;
  }

 private:
  enum class Kind : std::uint32_t { eager, request_to_send, clear_to_send, close };
  struct Head {
    Kind kind = Kind::close;
    int mpi_tag = 0;  // in clear_to_send: the MPI tag for the bytes
    std::uint64_t channel = 0, tag = 0, bytes = 0;
    Request request = 0;  // the sender's
  };
  struct Packet {
    Head head;
    std::array<std::byte, kEagerBytes> data;
  };
  struct Early {
    int source;
    Packet packet;
  };
  struct Outgoing {
    Packet packet;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Message {
    std::uint64_t channel = 0, tag = 0;
    int peer = 0, world_rank = 0;  // its number in the group, and in MPI_COMM_WORLD
    bool sends = false, busy = false, done = false;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::string failure{};
    std::vector<MPI_Request> transfers{};  // while MPI has the memory

    bool begun() const { return !transfers.empty(); }
    bool ended() const { return done || (!failure.empty() && !begun()); }
    bool waits() const { return busy && !begun() && !ended(); }
    Head head(Kind kind, Request sender, int mpi_tag = 0) const { return {kind, mpi_tag, channel, tag, bytes, sender}; }
  };

  Message& at(Request request) { return messages_[static_cast<std::size_t>(request)]; }  // a deque: growth moves none

  Request take(const Channel& channel, int peer, bool sends, std::uint64_t tag, void* data, std::size_t bytes) {
    auto idle = std::find_if(messages_.begin(), messages_.end(), [](const Message& one) { return !one.busy; });
    if (idle == messages_.end()) idle = messages_.emplace(idle);
    idle->channel = channel.id;
    idle->tag = tag;
    idle->peer = peer;
    idle->world_rank = channel.ranks[static_cast<std::size_t>(peer)];
    idle->sends = sends;
    idle->busy = true;
    idle->done = false;
    idle->data = static_cast<std::byte*>(data);
    idle->bytes = bytes;
    idle->failure.clear();
    return static_cast<Request>(idle - messages_.begin());
  }

  /// Moves what can be moved now. Throws CommError, and then always.
  void progress() {
    require<CommError>(broken_.empty(), broken_);
    try {
      for (MPI_Status status{}; ended(incoming_request_, status); receive_packet()) sort_packet(status.MPI_SOURCE);
      std::erase_if(outgoing_, [&](Outgoing& one) { return ended(one.request); });
      std::erase_if(moving_, [](Message* one) { return finish_transfers(*one); });
    } catch (const std::exception& error) {
      broken_ = error.what();
      failed_ = true;
      throw;
    }
  }

  static bool ended(MPI_Request& request, MPI_Status& status) {
    int ended = 0;
    check_mpi(MPI_Test(&request, &ended, &status), "MPI_Test");
    return ended != 0;
  }
  static bool ended(MPI_Request& request) {
    MPI_Status status{};
    return ended(request, status);
  }

  void receive_packet() {
    check_mpi(
        MPI_Irecv(&incoming_, sizeof(Packet), MPI_BYTE, MPI_ANY_SOURCE, kPacketTag, world_.ranks, &incoming_request_),
        "MPI_Irecv");
  }

  void sort_packet(int source) {
    const Head& head = incoming_.head;
    const auto found = channels_.find(head.channel);
    if (found == channels_.end()) return;  // all of them open it before one sends, so it was closed
    Channel& channel = *found->second;
    if (head.kind == Kind::close) return end_peer(channel, source);
    const auto fits = [&](const Message& one, bool sends) {
      return one.waits() && one.sends == sends && one.channel == head.channel && one.tag == head.tag &&
             one.world_rank == source;
    };
    if (head.kind == Kind::clear_to_send) {
      if (fits(at(head.request), true)) begin_transfer(at(head.request), head.mpi_tag);
      return;
    }
    const auto expected =
        std::find_if(messages_.begin(), messages_.end(), [&](const Message& one) { return fits(one, false); });
    if (expected != messages_.end())
      accept(*expected, incoming_);
    else if (!channel.closed)
      early_.push_back({source, incoming_});
  }

  void accept(Message& message, const Packet& packet) {
    if (packet.head.bytes != message.bytes) {
      message.failure = concat("it sent ", packet.head.bytes, " bytes, expected ", message.bytes);
    } else if (packet.head.kind == Kind::eager) {
      std::memcpy(message.data, packet.data.data(), message.bytes);
      message.done = true;
    } else {
      last_tag_ = last_tag_ % kLastTag + 1;  // there are far fewer transfers at a time
      begin_transfer(message, last_tag_);
      post(message.world_rank, message.head(Kind::clear_to_send, packet.head.request, last_tag_));
    }
  }

  void begin_transfer(Message& message, int mpi_tag) {
    moving_.push_back(&message);
    for (std::size_t done = 0; done < message.bytes; done += kTransferBytes) {
      std::byte* const data = message.data + done;
      const auto bytes = static_cast<int>(std::min(kTransferBytes, message.bytes - done));
      MPI_Request& transfer = message.transfers.emplace_back(MPI_REQUEST_NULL);
      if (message.sends)
        check_mpi(MPI_Isend(data, bytes, MPI_BYTE, message.world_rank, mpi_tag, world_.ranks, &transfer), "MPI_Isend");
      else
        check_mpi(MPI_Irecv(data, bytes, MPI_BYTE, message.world_rank, mpi_tag, world_.ranks, &transfer), "MPI_Irecv");
    }
  }

  /// Whether MPI has the memory no more.
  static bool finish_transfers(Message& message) {
    for (MPI_Request& transfer : message.transfers) {
      MPI_Status status{};
      int cancelled = 0;
      if (transfer == MPI_REQUEST_NULL) continue;
      if (!ended(transfer, status)) return false;
      check_mpi(MPI_Test_cancelled(&status, &cancelled), "MPI_Test_cancelled");
      if (cancelled != 0) message.failure = kPeerClosed;
    }
    message.transfers.clear();
    message.done = message.failure.empty();
    return true;
  }

  /// `data`: of an eager message.
  void post(int world_rank, const Head& head, const void* data = nullptr) {
    Outgoing& one = outgoing_.emplace_back();
    one.packet.head = head;
    const std::size_t bytes = head.kind == Kind::eager ? static_cast<std::size_t>(head.bytes) : 0;
    if (data != nullptr && bytes > 0) std::memcpy(one.packet.data.data(), data, bytes);
    check_mpi(MPI_Isend(&one.packet, static_cast<int>(sizeof(Head) + bytes), MPI_BYTE, world_rank, kPacketTag,
                        world_.ranks, &one.request),
              "MPI_Isend");
    if (ended(one.request)) outgoing_.pop_back();
  }

  /// What a peer has sent before it closed still arrives.
  void end_peer(Channel& channel, int source) {
    const auto place = std::find(channel.ranks.begin(), channel.ranks.end(), source) - channel.ranks.begin();
    channel.ended.at(static_cast<std::size_t>(place)) = true;
    for (Message& message : messages_) {
      if (message.channel != channel.id || message.world_rank != source) continue;
      if (message.waits()) message.failure = kPeerClosed;
      if (message.begun() && !message.sends) cancel(message);
    }
  }

  /// Has no effect on what the peer has begun to send.
  static void cancel(Message& message) {
    for (MPI_Request& transfer : message.transfers)
      if (transfer != MPI_REQUEST_NULL) check_mpi(MPI_Cancel(&transfer), "MPI_Cancel");
  }

  void tell_peers(const Channel& channel) {
    for (Message& message : messages_)
      if (message.channel == channel.id && message.waits()) message.failure = kClosed;
    early_.remove_if([&](const Early& one) { return one.packet.head.channel == channel.id; });
    try {
      for (std::size_t peer = 0; peer < channel.ranks.size(); ++peer)
        if (static_cast<int>(peer) != channel.rank && !channel.ended[peer])
          post(channel.ranks[peer], {.kind = Kind::close, .channel = channel.id});
    } catch (const CommError& error) {  // the peers find it out by their deadlines
      broken_ = error.what();
    }
  }

  /// Whether no message of a closed channel is under way. Past time limits it cancels receives, then ends the job.
  bool settled(const Channel& channel, Clock::duration waited) {
    const auto moves = [&](const Message* one) { return one->channel == channel.id; };
    if (std::none_of(moving_.begin(), moving_.end(), moves)) return true;
    try {
      progress();
      for (Message* const one : moving_)
        if (waited > kSettleTime && moves(one) && !one->sends) cancel(*one);
    } catch (const CommError&) {  // MPI itself has lost them
      return true;
    }
    if (waited < 2 * kSettleTime || std::none_of(moving_.begin(), moving_.end(), moves)) return false;
    std::fprintf(stderr, "duet: rank %d of MPI_COMM_WORLD ends the job: a peer has stopped in the midst of a message\n",
                 world_.rank);
    MPI_Abort(world_.ranks, 1);
    return true;
  }

  /// Moves messages for which no thread waits here: a peer may wait for their other ends.
  void attend() {
    std::unique_lock lock(mutex_);
    while (!stopping_.wait_for(lock, kAttendEvery, [this] { return stopped_; })) {
      try {
        progress();
      } catch (const std::exception&) {  // it is kept for those who wait
      }
    }
  }

  void stop_packets() {
    const auto give_up = Clock::now() + kSettleTime;
    try {
      for (; !outgoing_.empty() && Clock::now() < give_up; rest(kSpin, true)) progress();
      failed_ = failed_ || !outgoing_.empty();
      check_mpi(MPI_Cancel(&incoming_request_), "MPI_Cancel");
      while (!ended(incoming_request_) && Clock::now() < give_up) rest(kSpin, true);
    } catch (const CommError&) {
      failed_ = true;
    }
  }

  const MpiWorld& world_;
  std::mutex mutex_;
  std::map<std::uint64_t, Channel*> channels_;  // that are open, and closed ones that settle
  std::uint64_t ids_ = 0;
  int last_tag_ = 0;
  std::deque<Message> messages_;
  std::vector<Message*> moving_;  // MPI has their memory
  std::list<Early> early_;        // came before they were expected
  std::list<Outgoing> outgoing_;
  Packet incoming_;
  MPI_Request incoming_request_ = MPI_REQUEST_NULL;
  std::string broken_;  // MPI's error, after which it is not called
  bool failed_ = false, stopped_ = false;
  std::condition_variable stopping_;
  std::thread thread_;
};

MpiMessages& messages();

int stop_messages(MPI_Comm, int, void*, void*) {
  messages().stop();
  return MPI_SUCCESS;
}

/// Without MPI_Finalize a launcher takes the process for a failed one, and ends the job. It would wait for ranks that
/// have failed.
void finalise(int status, void*) {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised == 0 && messages().stop() && status == 0 && mpi_world().own) MPI_Finalize();
}

MpiMessages* start_messages() {
  auto* const started = new MpiMessages(mpi_world());
  int key = MPI_KEYVAL_INVALID;  // MPI_Finalize, whoever calls it, first deletes what MPI_COMM_SELF has
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, stop_messages, &key, nullptr), "MPI_Comm_create_keyval");
  check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  ::on_exit(finalise, nullptr);
  return started;
}

/// The one of this process, which ends with MPI.
MpiMessages& messages() {
  static MpiMessages* const started = start_messages();
  return *started;
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(Store& store, int rank, int size, const ConnectOptions& options) : options_(options) {
    require_mpi_launcher();
    if (options.group.whole_job) require_mpi_place(rank, size);
    const MpiWorld& world = mpi_world();
    require<UsageError>(!options.group.whole_job || (world.rank == rank && world.size == size),
                        "backend mpi: this is rank ", world.rank, " of ", world.size,
                        " in MPI_COMM_WORLD, expected rank ", rank, " of ", size, " of duet's job");
    channel_.rank = rank;
    if (rank == 0) store.set("mpi/channel", std::to_string(messages().new_id()));
    meet(store, "mpi/rank", rank, size, options.connect_timeout, std::to_string(world.rank));
    for (const std::string& text : store.multi_get(rank_keys("mpi/rank", size)))
      channel_.ranks.push_back(parse_number<int>(text).value_or(-1));
    channel_.ended.resize(channel_.ranks.size());
    channel_.id = parse_number<std::uint64_t>(store.get("mpi/channel")).value_or(0);
    messages().open(channel_);
    try {
      meet(store, "mpi/open", rank, size, options.connect_timeout);  // else what came first would be an old channel's
    } catch (...) {
      leave();
      throw;
    }
  }
  ~MpiTransport() override { leave(); }

  int rank() const override { return channel_.rank; }
  int size() const override { return static_cast<int>(channel_.ranks.size()); }
  const char* name() const override { return "mpi"; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    return messages().send(channel_, peer, tag, data, bytes);
  }
  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return messages().receive(channel_, peer, tag, data, bytes);
  }
  void wait(Request request, Clock::time_point deadline) override { messages().wait(channel_, request, deadline); }
  void close() override { messages().close(channel_); }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    ConnectOptions options = options_;
    options.group.whole_job = false;
    return std::make_unique<MpiTransport>(*subset.store, subset.rank, subset.size(), options);
  }

 private:
  void leave() {
    messages().close(channel_);
    messages().remove(channel_);
  }

  const ConnectOptions options_;
  Channel channel_;
};

}  // namespace
}  // namespace duet::ddp

// The module's only name; ddp/transport/modules.cpp spells it.
extern "C" __attribute__((visibility("default"))) duet::ddp::Transport* duet_mpi_connect(
    duet::ddp::Store& store, int rank, int size, const duet::ddp::ConnectOptions& options);
duet::ddp::Transport* duet_mpi_connect(duet::ddp::Store& store, int rank, int size,
                                       const duet::ddp::ConnectOptions& options) {
  return new duet::ddp::MpiTransport(store, rank, size, options);
}
