// Gloo's point-to-point messages over TCP as a Transport. The collectives are duet's own: Gloo's ring adds in an order
// that is not the tree of lib/tensor.h.

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "ddp/store/network.h"
#include "ddp/store/store.h"
#include "ddp/transport/modules.h"
#include "ddp/transport/transport.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

/// Adapts duet's store to Gloo's interface.
class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  StoreForGloo(ddp::Store& store, Milliseconds timeout) : store_(store), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo/" + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});
    const std::string value = store_.get("gloo/" + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    std::vector<std::string> names;
    for (const std::string& key : keys) names.push_back("gloo/" + key);
    store_.wait(names, timeout_);
  }

 private:
  ddp::Store& store_;
  Milliseconds timeout_;
};

constexpr Milliseconds kNoTime{1};  // 0 would be Gloo's own timeout
constexpr int kConnectFactor = 5;   // connecting, Gloo waits for so many of its timeouts

/// Gloo's text without its source lines: "[../gloo/transport/tcp/pair.cc:598] Connection closed by peer [...]".
std::string plain(const gloo::Exception& error) {
  const std::string text = error.what();
  const auto end = text.find("] ");
  return text.starts_with("[") && end != std::string::npos ? text.substr(end + 2) : text;
}

/// Gloo writes to sockets without MSG_NOSIGNAL, so a peer's death would end this process instead of failing a call.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

/// Starts a thread.
std::shared_ptr<gloo::transport::Device> make_device(int rank, const std::string& address) {
  try {
    return gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
  } catch (const std::system_error& error) {
    throw_no_thread(concat("the thread of Gloo for rank ", rank), error);
  }
}

/// A message that a peer never sends, so that it ends with the connection. Gloo notifies messages that have not yet
/// begun, but not those that were partly transferred.
class Lifeline {
 public:
  Lifeline(gloo::rendezvous::Context& context, int peer) : buffer_(context.createUnboundBuffer(&nothing_, 1)) {
    buffer_->recv(peer, kTag);
  }
  /// Why the connection has ended; empty if it has not. Does not wait: it has aborted that before.
  std::string end() {
    try {
      buffer_->abortWaitRecv();
      buffer_->waitRecv(kNoTime);
      return {};
    } catch (const gloo::Exception& error) {
      return plain(error);
    }
  }

 private:
  static constexpr std::uint64_t kTag = ~std::uint64_t{0};
  char nothing_ = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(ddp::Store& store, int rank, int size, const ConnectOptions& options)
      : options_(options), context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    require_loopback(options.address);
    ignore_broken_pipes();
    StoreForGloo adapter(store, options.connect_timeout);
    const std::set<int> others = tcp_connections();
    try {
      auto device = make_device(rank, options.address);
      meet(store, "gloo/device", rank, size, options.connect_timeout);  // no rank connects with one that has none
      context_->setTimeout(std::max(options.connect_timeout / kConnectFactor, kNoTime));
      context_->connectFullMesh(adapter, device);
      // Gloo has no option for it, and does not give its sockets away.
      for (const int connection : tcp_connections())
        if (!others.contains(connection)) keep_alive(connection, options.group.timeout);
      for (int peer = 0; peer < size; ++peer)
        lifelines_.push_back(peer == rank ? nullptr : std::make_unique<Lifeline>(*context_, peer));
      // A peer may not have accepted this rank's connections yet, and if they ended before it has, an exception in a
      // thread of Gloo would end its process.
      meet(store, "gloo/connected", rank, size, options.connect_timeout);
    } catch (const gloo::Exception& error) {  // the base of IoException and of failed checks
      throw CommError(concat("rank ", rank, " could not connect with the other ", size - 1, " over Gloo at ",
                             options.address, ": ", plain(error)));
    }
    ends_.resize(lifelines_.size());
    watcher_ = start_thread(concat("the thread that watches rank ", rank, "'s connections"), [this] { watch(); });
  }
  ~GlooTransport() override {
    close();
    watcher_.join();
    messages_.clear();
    lifelines_.clear();
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  const char* name() const override { return "gloo"; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    return start(true, peer, tag, const_cast<void*>(data), bytes);
  }
  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return start(false, peer, tag, data, bytes);
  }

  void wait(Request request, Clock::time_point deadline) override {
    Message& message = at(request);
    bool ended = false;
    try {
      ended = wait_for(message, deadline);
    } catch (const gloo::IoException& error) {
      close();  // nothing may arrive any more in memory that the caller gives up
      throw LostRank(concat("rank ", message.peer, message.sends ? " took nothing: " : " sent nothing: ", plain(error)),
                     message.peer);
    }
    require<CommError>(ended, kClosed);
    const std::lock_guard lock(mutex_);
    message.busy = false;
  }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    return std::make_unique<GlooTransport>(*subset.store, subset.rank, subset.size(), options_);
  }

  // Gloo's own closeConnections() does not wake this rank's blocked calls, so they are aborted one by one.
  void close() override {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    closing_.notify_all();
    try {
      context_->closeConnections();
    } catch (const gloo::Exception&) {  // closed by the peer at the same time
    }
    for (Message& message : messages_) {
      if (!message.busy) continue;
      abort(message);
    }
  }

 private:
  struct Message {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    bool sends = false;
    bool busy = false;
    int peer = 0;
  };
  static constexpr std::size_t kKeptBuffers = 1024;
  static constexpr Milliseconds kWatchEvery{20};

  Message& at(Request request) {
    const std::lock_guard lock(mutex_);
    return messages_[static_cast<std::size_t>(request)];  // a deque: growth moves none
  }

  static Milliseconds left(Clock::time_point deadline) {
    return std::max(std::chrono::ceil<Milliseconds>(deadline - Clock::now()), kNoTime);
  }

  static void abort(Message& message) {
    message.sends ? message.buffer->abortWaitSend() : message.buffer->abortWaitRecv();
  }

  /// False if this rank has closed its connections.
  bool wait_for(Message& message, Clock::time_point deadline) {
    const auto done_in = [&](Milliseconds time) {
      return message.sends ? message.buffer->waitSend(time) : message.buffer->waitRecv(time);
    };
    for (;;) {
      if (done_in(left(deadline))) return true;
      std::string end;
      {
        const std::lock_guard lock(mutex_);
        if (closed_) return false;
        end = ends_[static_cast<std::size_t>(message.peer)];
      }
      if (end.empty()) continue;  // aborted when this buffer was another message
      try {
        if (done_in(kNoTime)) return true;  // it was the last thing that passed
      } catch (const gloo::IoException&) {
      }
      throw gloo::IoException(end);
    }
  }

  /// Wakes the threads that wait for a peer whose connection has ended.
  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_.wait_for(lock, kWatchEvery, [this] { return closed_; })) {
      for (std::size_t peer = 0; peer < lifelines_.size(); ++peer) {
        if (lifelines_[peer] == nullptr || !ends_[peer].empty()) continue;
        ends_[peer] = lifelines_[peer]->end();
        if (ends_[peer].empty()) continue;
        for (Message& message : messages_)
          if (message.busy && message.peer == static_cast<int>(peer)) abort(message);
      }
    }
  }

  Request start(bool sends, int peer, std::uint64_t tag, void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    require<CommError>(!closed_, kClosed);
    const Request request = take(data, bytes);
    Message& message = messages_[static_cast<std::size_t>(request)];
    message.sends = sends;
    message.peer = peer;
    message.busy = true;
    try {
      sends ? message.buffer->send(peer, tag) : message.buffer->recv(peer, tag);
    } catch (const gloo::IoException& error) {
      throw LostRank(concat("rank ", peer, " cannot be reached: ", plain(error)), peer);
    }
    return request;
  }

  /// An idle message over this memory: the same one as before where there is one, so that steps allocate nothing.
  Request take(void* data, std::size_t bytes) {
    std::size_t reusable = messages_.size();
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].busy) continue;
      if (messages_[i].buffer->ptr == data && messages_[i].buffer->size == bytes) return static_cast<Request>(i);
      reusable = i;
    }
    if (messages_.size() < kKeptBuffers || reusable == messages_.size()) {
      reusable = messages_.size();
      messages_.emplace_back();
    }
    messages_[reusable].buffer = context_->createUnboundBuffer(data, bytes);
    return static_cast<Request>(reusable);
  }

  const ConnectOptions options_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::mutex mutex_;
  std::deque<Message> messages_;
  std::vector<std::unique_ptr<Lifeline>> lifelines_;  // by peer
  std::vector<std::string> ends_;                     // why its connection has ended
  bool closed_ = false;
  std::condition_variable closing_;
  std::thread watcher_;
};

}  // namespace

}  // namespace duet::ddp

// The module's only name; ddp/transport/modules.cpp spells it.
extern "C" __attribute__((visibility("default"))) duet::ddp::Transport* duet_gloo_connect(
    duet::ddp::Store& store, int rank, int size, const duet::ddp::ConnectOptions& options);
duet::ddp::Transport* duet_gloo_connect(duet::ddp::Store& store, int rank, int size,
                                        const duet::ddp::ConnectOptions& options) {
  return new duet::ddp::GlooTransport(store, rank, size, options);
}
