#include "ddp/store/tcp_store_server.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "ddp/store/store_channel.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kLongestWait = std::chrono::hours(24);

StoreFrame failure(StoreStatus status, const Error& error) {
  return {static_cast<std::uint8_t>(status), 0, {error.what()}};
}

}  // namespace

TcpStoreServer::TcpStoreServer(ListenerOptions options)
    : listener_("the store", std::move(options), [this](Listener::Caller& client) { serve(client); }) {}

TcpStoreServer::~TcpStoreServer() { table_.fail("the store has ended"); }

void TcpStoreServer::serve(Listener::Caller& client) {
  StoreChannel channel(client.connection, client.identity.session_key, true);
  for (;;) {
    StoreFrame reply = answer(channel.receive(kNoDeadline));
    try {
      channel.send(reply, kNoDeadline);
    } catch (const UsageError& error) {  // it is too large for one frame
      channel.send(failure(StoreStatus::usage_error, error), kNoDeadline);
    }
  }
}

StoreFrame TcpStoreServer::answer(StoreFrame request) {
  const Milliseconds timeout(std::clamp<std::int64_t>(request.timeout_ms, 0, kLongestWait.count()));
  try {
    return {static_cast<std::uint8_t>(StoreStatus::ok), 0,
            table_.request(static_cast<StoreOp>(request.code), std::move(request.strings), timeout)};
  } catch (const UsageError& error) {
    return failure(StoreStatus::usage_error, error);
  } catch (const Error& error) {
    return failure(StoreStatus::comm_error, error);
  }
}

}  // namespace duet::ddp
