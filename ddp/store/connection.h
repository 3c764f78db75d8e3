// A TCP connection whose every call has a deadline. Private to ddp: this header includes Asio.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ddp/store/asio.h"
#include "lib/base/descriptor.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

inline constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

/// A connection has ended, or its peer did not come in time.
class LostConnection : public CommError {
  using CommError::CommError;
};

/// "127.0.0.1 port 29500".
std::string endpoint_text(const boost::asio::ip::tcp::endpoint& endpoint);

/// "Connection refused (errno 111)"; of a call that this process has itself cancelled, that it has.
std::string error_text(const boost::system::error_code& error);

/// One thread at a time reads and writes, while others may call end(). Functions throw LostConnection, after which the
/// connection is of no use.
class Connection {
 public:
  explicit Connection(boost::asio::ip::tcp::socket socket);
  /// Connects the socket, which is not open yet. Does not throw.
  static boost::system::error_code connect(boost::asio::ip::tcp::socket& socket,
                                           const boost::asio::ip::tcp::endpoint& to, Clock::time_point deadline);
  void write(std::string_view bytes, Clock::time_point deadline);
  /// Memory grows with what arrives.
  std::string read(std::size_t count, Clock::time_point deadline);
  boost::asio::ip::tcp::endpoint local() const;
  boost::asio::ip::tcp::endpoint peer() const;
  /// A read or write that waits throws LostConnection.
  void end();
  void close();
  /// Gives the socket up, in its blocking mode.
  Descriptor release();

 private:
  /// Returns if the failed call may be tried again.
  void await(const boost::system::error_code& error, short events, Clock::time_point deadline);
  boost::asio::ip::tcp::socket socket_;
};

}  // namespace duet::ddp
