#include "ddp/tcp/tcp_mesh.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string_view>
#include <utility>

#include "ddp/group/rank_names.h"
#include "ddp/group/work.h"
#include "ddp/store/asio.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store_wire.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Note [Handshake of ranks]: as Note [Handshake] of the store, between a rank and a lower one, which listens.
//   higher: kRanksMagic, its rank (4 digits more than enough: kRankBytes), its number
//   lower:  its number
//   higher: its proof
//   lower:  its proof
// A proof names both ranks. The lower one listens until all ranks are connected, so nothing else can take its port and
// pass on what it receives.
constexpr std::string_view kRanksMagic = "duet-ranks-v001\n";
constexpr std::size_t kRankBytes = 8;
constexpr std::size_t kHelloBytes = kRanksMagic.size() + kRankBytes + kStoreNumberBytes;
constexpr std::size_t kMaxStrangers = 64;
constexpr Milliseconds kRetryPause{50};

/// A connection on its way to the proof. All calls run on the thread that runs the mesh.
struct Talk {
  explicit Talk(tcp::socket the_socket) : socket(std::move(the_socket)) {}
  tcp::socket socket;
  int peer = -1;
  bool proven = false;
  std::string own_number, heard, said, expected, proof;
};
using TalkPtr = std::shared_ptr<Talk>;

class Mesh {
 public:
  Mesh(Store& store, int rank, int size, const std::string& address)
      : store_(store), rank_(rank), secret_(store.secret()), sockets_(static_cast<std::size_t>(size)) {
    error_code error;
    const auto local = asio::ip::make_address(address, error);
    const tcp::endpoint endpoint(local, 0);
    if (!error) acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    require<CommError>(!error, "rank ", rank, " cannot listen on ", address, ": ", errno_text(error.value()));
    store.set(keys()[static_cast<std::size_t>(rank)], concat(acceptor_.local_endpoint().port(), ' ', address));
  }

  std::vector<Descriptor> connect(Milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    store_.wait(keys(), timeout);
    if (rank_ + 1 < size()) accept();
    for (int peer = 0; peer < rank_; ++peer) call(peer);
    while (missing().size() > 1 && Clock::now() < deadline) io_.run_one_until(deadline);
    std::vector<int> late = missing();
    std::erase(late, rank_);
    require<CommError>(late.empty(), "rank ", rank_, " could not connect with ", rank_names(late), " within ",
                       timeout.count(), " ms", last_failure_.empty() ? "" : ": ", last_failure_);
    return std::move(sockets_);
  }

 private:
  int size() const { return static_cast<int>(sockets_.size()); }
  std::vector<std::string> keys() const { return rank_keys("tcp/address", size()); }

  /// This rank among them.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank)
      if (!sockets_[static_cast<std::size_t>(rank)].open()) ranks.push_back(rank);
    return ranks;
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        last_failure_ = errno_text(error.value());
        return pause([this] { accept(); });
      }
      strangers_.remove_if([](const std::weak_ptr<Talk>& one) { return one.expired(); });
      if (strangers_.size() >= kMaxStrangers) {  // the oldest has had the most time; a rank comes back
        if (const TalkPtr oldest = strangers_.front().lock()) drop(*oldest);
        strangers_.pop_front();
      }
      const auto talk = std::make_shared<Talk>(std::move(socket));
      strangers_.push_back(talk);
      answer(talk);
      accept();
    });
  }

  /// The lower rank's side.
  void answer(const TalkPtr& talk) {
    read(talk, kHelloBytes, [this, talk] {
      const std::string_view hello = talk->heard;
      const auto peer = parse_number<int>(hello.substr(kRanksMagic.size(), kRankBytes));
      if (!hello.starts_with(kRanksMagic) || !peer || *peer <= rank_ || *peer >= size()) return drop(*talk);
      talk->peer = *peer;
      talk->own_number = random_bytes(kStoreNumberBytes);
      make_proofs(*talk, std::string(hello.substr(kRanksMagic.size() + kRankBytes)), talk->own_number, talk->peer,
                  rank_);
      write(talk, talk->own_number, [this, talk] {
        read(talk, kStoreProofBytes, [this, talk] {
          if (!equal_secrets(talk->heard, talk->expected)) return drop(*talk);
          write(talk, talk->proof, [this, talk] { keep(*talk); });
        });
      });
    });
  }

  /// The higher rank's side.
  void call(int peer) {
    const auto talk = std::make_shared<Talk>(tcp::socket(io_));
    talk->peer = peer;
    const std::string place = store_.get(keys()[static_cast<std::size_t>(peer)]);
    const std::size_t blank = std::min(place.find(' '), place.size());  // "PORT ADDRESS"
    const auto port = parse_number<std::uint16_t>(std::string_view(place).substr(0, blank));
    error_code error;
    const auto address = asio::ip::make_address(place.substr(std::min(blank + 1, place.size())), error);
    require<CommError>(!error && port.value_or(0) != 0, "rank ", peer, " has no address, got \"", place, "\"");
    talk->socket.async_connect({address, *port}, [this, talk](error_code failure) {
      if (failure) return again(*talk, errno_text(failure.value()));
      talk->own_number = random_bytes(kStoreNumberBytes);
      const std::string digits = std::to_string(rank_);
      const std::string hello =
          concat(kRanksMagic, std::string(kRankBytes - digits.size(), '0'), digits, talk->own_number);
      write(talk, hello, [this, talk] {
        read(talk, kStoreNumberBytes, [this, talk] {
          make_proofs(*talk, talk->own_number, talk->heard, rank_, talk->peer);
          std::swap(talk->proof, talk->expected);
          write(talk, talk->proof, [this, talk] {
            read(talk, kStoreProofBytes, [this, talk] {
              if (!equal_secrets(talk->heard, talk->expected)) return again(*talk, "it has another secret");
              keep(*talk);
            });
          });
        });
      });
    });
  }

  /// As the lower rank expects and says them.
  void make_proofs(Talk& talk, const std::string& higher_number, const std::string& lower_number, int higher,
                   int lower) const {
    const std::string mark = store_run_mark(concat("rank ", higher, " to rank ", lower));
    talk.expected = store_proof(secret_, StoreSide::client, mark, higher_number, lower_number);
    talk.proof = store_proof(secret_, StoreSide::server, mark, higher_number, lower_number);
  }

  template <class Next>
  void read(const TalkPtr& talk, std::size_t bytes, Next next) {
    talk->heard.resize(bytes);
    asio::async_read(talk->socket, asio::buffer(talk->heard),
                     [this, talk, next](error_code error, std::size_t) { error ? failed(*talk, error) : next(); });
  }

  template <class Next>
  void write(const TalkPtr& talk, const std::string& text, Next next) {
    talk->said = text;
    asio::async_write(talk->socket, asio::buffer(talk->said),
                      [this, talk, next](error_code error, std::size_t) { error ? failed(*talk, error) : next(); });
  }

  void failed(Talk& talk, error_code error) {
    if (talk.peer >= 0 && talk.peer < rank_) again(talk, error.message());
  }

  void again(Talk& talk, const std::string& reason) {
    last_failure_ = concat("rank ", talk.peer, ": ", reason);
    drop(talk);
    pause([this, peer = talk.peer] { call(peer); });
  }

  template <class Next>
  void pause(Next next) {
    const auto timer = std::make_shared<asio::steady_timer>(io_, kRetryPause);
    timer->async_wait([timer, next](error_code error) {
      if (!error) next();
    });
  }

  static void drop(Talk& talk) {
    error_code ignored;
    talk.socket.close(ignored);
  }

  /// The last one of a rank: it has given up those before.
  void keep(Talk& talk) {
    error_code ignored;
    talk.socket.set_option(tcp::no_delay(true), ignored);
    Descriptor socket(talk.socket.release(ignored));
    ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
    sockets_[static_cast<std::size_t>(talk.peer)] = std::move(socket);
  }

  Store& store_;
  const int rank_;
  const std::string secret_;
  std::vector<Descriptor> sockets_;  // by rank
  std::string last_failure_;
  std::list<std::weak_ptr<Talk>> strangers_;  // the oldest first
  asio::io_context io_;
  tcp::acceptor acceptor_{io_};
};

}  // namespace

std::vector<Descriptor> connect_tcp_mesh(Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout) {
  Mesh mesh(store, rank, size, address);
  std::vector<Descriptor> sockets = mesh.connect(timeout);
  // The mesh listens until all have what they need.
  const std::vector<std::string> keys = rank_keys("tcp/connected", size);
  store.set(keys[static_cast<std::size_t>(rank)], "");
  store.wait(keys, timeout);
  return sockets;
}

}  // namespace duet::ddp
