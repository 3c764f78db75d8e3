#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/group/work.h"
#include "ddp/store/asio.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store_wire.h"
#include "ddp/tcp/tcp_transport.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"
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
constexpr std::size_t kMaxUnauthenticated = 64;
constexpr Milliseconds kRetryPause{50};

/// A connection during its handshake. All calls run on the thread that runs the mesh.
struct Handshake {
  explicit Handshake(tcp::socket the_socket) : socket(std::move(the_socket)) {}
  tcp::socket socket;
  int peer = -1;
  bool proven = false;
  std::string own_number, received, sent, expected, proof;
};
using HandshakePtr = std::shared_ptr<Handshake>;

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
      unauthenticated_.remove_if([](const std::weak_ptr<Handshake>& one) { return one.expired(); });
      if (unauthenticated_.size() >= kMaxUnauthenticated) {  // the oldest has had the most time; a rank comes back
        if (const HandshakePtr oldest = unauthenticated_.front().lock()) drop(*oldest);
        unauthenticated_.pop_front();
      }
      const auto handshake = std::make_shared<Handshake>(std::move(socket));
      unauthenticated_.push_back(handshake);
      answer(handshake);
      accept();
    });
  }

  /// The lower rank's side.
  void answer(const HandshakePtr& handshake) {
    read(handshake, kHelloBytes, [this, handshake] {
      const std::string_view hello = handshake->received;
      const auto peer = parse_number<int>(hello.substr(kRanksMagic.size(), kRankBytes));
      if (!hello.starts_with(kRanksMagic) || !peer || *peer <= rank_ || *peer >= size()) return drop(*handshake);
      handshake->peer = *peer;
      handshake->own_number = random_bytes(kStoreNumberBytes);
      make_proofs(*handshake, std::string(hello.substr(kRanksMagic.size() + kRankBytes)), handshake->own_number,
                  handshake->peer, rank_);
      write(handshake, handshake->own_number, [this, handshake] {
        read(handshake, kStoreProofBytes, [this, handshake] {
          if (!equal_secrets(handshake->received, handshake->expected)) return drop(*handshake);
          write(handshake, handshake->proof, [this, handshake] { keep(*handshake); });
        });
      });
    });
  }

  /// The higher rank's side.
  void call(int peer) {
    const auto handshake = std::make_shared<Handshake>(tcp::socket(io_));
    handshake->peer = peer;
    const std::string place = store_.get(keys()[static_cast<std::size_t>(peer)]);
    const std::size_t blank = std::min(place.find(' '), place.size());  // "PORT ADDRESS"
    const auto port = parse_number<std::uint16_t>(std::string_view(place).substr(0, blank));
    error_code error;
    const auto address = asio::ip::make_address(place.substr(std::min(blank + 1, place.size())), error);
    require<CommError>(!error && port.value_or(0) != 0, "rank ", peer, " has no address, got \"", place, "\"");
    handshake->socket.async_connect({address, *port}, [this, handshake](error_code failure) {
      if (failure) return again(*handshake, errno_text(failure.value()));
      handshake->own_number = random_bytes(kStoreNumberBytes);
      const std::string digits = std::to_string(rank_);
      const std::string hello =
          concat(kRanksMagic, std::string(kRankBytes - digits.size(), '0'), digits, handshake->own_number);
      write(handshake, hello, [this, handshake] {
        read(handshake, kStoreNumberBytes, [this, handshake] {
          make_proofs(*handshake, handshake->own_number, handshake->received, rank_, handshake->peer);
          std::swap(handshake->proof, handshake->expected);
          write(handshake, handshake->proof, [this, handshake] {
            read(handshake, kStoreProofBytes, [this, handshake] {
              if (!equal_secrets(handshake->received, handshake->expected))
                return again(*handshake, "it has another secret");
              keep(*handshake);
            });
          });
        });
      });
    });
  }

  /// As the lower rank expects and sends them.
  void make_proofs(Handshake& handshake, const std::string& higher_number, const std::string& lower_number, int higher,
                   int lower) const {
    const std::string mark = store_run_mark(concat("rank ", higher, " to rank ", lower));
    handshake.expected = store_proof(secret_, StoreSide::client, mark, higher_number, lower_number);
    handshake.proof = store_proof(secret_, StoreSide::server, mark, higher_number, lower_number);
  }

  template <class Next>
  void read(const HandshakePtr& handshake, std::size_t bytes, Next next) {
    handshake->received.resize(bytes);
    asio::async_read(
        handshake->socket, asio::buffer(handshake->received),
        [this, handshake, next](error_code error, std::size_t) { error ? failed(*handshake, error) : next(); });
  }

  template <class Next>
  void write(const HandshakePtr& handshake, const std::string& text, Next next) {
    handshake->sent = text;
    asio::async_write(
        handshake->socket, asio::buffer(handshake->sent),
        [this, handshake, next](error_code error, std::size_t) { error ? failed(*handshake, error) : next(); });
  }

  void failed(Handshake& handshake, error_code error) {
    if (handshake.peer >= 0 && handshake.peer < rank_) again(handshake, error.message());
  }

  void again(Handshake& handshake, const std::string& reason) {
    last_failure_ = concat("rank ", handshake.peer, ": ", reason);
    drop(handshake);
    pause([this, peer = handshake.peer] { call(peer); });
  }

  template <class Next>
  void pause(Next next) {
    const auto timer = std::make_shared<asio::steady_timer>(io_, kRetryPause);
    timer->async_wait([timer, next](error_code error) {
      if (!error) next();
    });
  }

  static void drop(Handshake& handshake) {
    error_code ignored;
    handshake.socket.close(ignored);
  }

  /// The last one of a rank: it has given up those before.
  void keep(Handshake& handshake) {
    error_code ignored;
    handshake.socket.set_option(tcp::no_delay(true), ignored);
    Descriptor socket(handshake.socket.release(ignored));
    ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
    sockets_[static_cast<std::size_t>(handshake.peer)] = std::move(socket);
  }

  Store& store_;
  const int rank_;
  const std::string secret_;
  std::vector<Descriptor> sockets_;  // by rank
  std::string last_failure_;
  std::list<std::weak_ptr<Handshake>> unauthenticated_;  // the oldest first
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
