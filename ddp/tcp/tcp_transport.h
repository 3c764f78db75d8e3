// Messages between ranks over TCP, and the connections for them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/transport/message_receiver.h"
#include "ddp/transport/transport.h"
#include "lib/base/descriptor.h"
#include "lib/error.h"

namespace duet::ddp {

/// Goes before every message; in this machine's byte order.
struct TcpHead {
  std::uint64_t tag = 0, bytes = 0;
};
inline bool same_message(const TcpHead& one, const TcpHead& other) { return one.tag == other.tag; }
inline std::uint64_t payload_bytes(const TcpHead& head) { return head.bytes; }
inline void check_head(const TcpHead& head) {
  require<CommError>(head.bytes > 0 && head.bytes <= kMostMessageBytes, "it announced a message of ", head.bytes,
                     " bytes, expected 1 to ", kMostMessageBytes);
}
inline std::string mismatch(const TcpHead& arrived, const TcpHead& expected) {
  if (arrived.bytes == expected.bytes) return {};
  return concat("it sent ", arrived.bytes, " bytes, expected ", expected.bytes);
}
using TcpMessage = StreamMessage<TcpHead>;
using TcpReceiver = MessageReceiver<TcpHead>;

struct TcpTransportOptions {
  std::string address = "127.0.0.1";  // of this rank, where the others reach it
  Milliseconds connect_timeout{30'000};
};

/// Connects this rank with the others, which call this with the same store; see connect_tcp_mesh(). What a rank sends
/// is neither encrypted nor signed. Throws CommError when a rank does not come.
std::unique_ptr<Transport> make_tcp_transport(Store& store, int rank, int size,
                                              const TcpTransportOptions& options = {});

/// A TCP socket to every other rank, by rank; this rank's own place is empty. All ranks call it with the same store.
/// `address` is this rank's, where the others reach it. Both ends prove that they have the store's secret() before
/// anything else is read from them; any other connection is dropped. Throws CommError when a rank does not come within
/// the timeout.
std::vector<Descriptor> connect_tcp_mesh(Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout);

}  // namespace duet::ddp
