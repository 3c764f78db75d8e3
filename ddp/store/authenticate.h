// How the two ends of a connection prove to each other that they belong to one job. Private to ddp: this header
// includes Asio.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/store/asio.h"
#include "ddp/store/connection.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// Note [Handshake]: both ends prove that they have the secret, and neither sends it.
///   caller:   kMagic; then service_mark(), its rank (u32), the endpoint that it has called, its number
///   listener: kMagic, its number; or another verdict
///   caller:   its proof
///   listener: kMagic, its proof; or kDenied
/// Fresh random numbers make every proof worthless for another connection, and so does the endpoint for a relay: a
/// process in between listens at another address or port than the listener, so the ends disagree on the endpoint that
/// was called. The address that the call came from is no part of it: address translation for callers is harmless.
/// The caller proves first: any process may connect, and could test secrets offline against a proof of the listener.
/// An end that receives anything else closes the connection.
inline constexpr std::string_view kMagic = "duet-ranks-v005\n";
inline constexpr std::string_view kOther = "duet-other-job.\n";    // the listener serves something else
inline constexpr std::string_view kRelayed = "duet-is-relayed\n";  // its own endpoint follows
inline constexpr std::string_view kNoFile = "duet-no-files..\n";   // this was its process's last file descriptor
inline constexpr std::string_view kNoThread = "duet-no-threads\n";
inline constexpr std::string_view kDenied = "duet-is-denied.\n";
inline constexpr std::size_t kMarkBytes = 32, kRankBytes = 4, kEndpointBytes = 18, kNumberBytes = 32, kProofBytes = 32;
inline constexpr std::size_t kHelloBytes = kMarkBytes + kRankBytes + kEndpointBytes + kNumberBytes;

struct Credentials {
  std::string secret;
  std::string service;  // what the listener serves, such as the store of a run; no secret
};

/// Tells services apart.
std::string service_mark(const std::string& service);
/// IPv6 address or IPv4 as one, and port, both in network order.
std::string endpoint_bytes(const boost::asio::ip::tcp::endpoint& endpoint);
/// HMAC-SHA256 of "caller" or "listener" for a proof, of "session" for the session's key. `hello` is what the caller
/// has sent after kMagic, with the endpoint as this end sees it.
std::string handshake_proof(const std::string& secret, std::string_view purpose, std::string_view hello,
                            std::string_view listener_number);

/// Why a listener was not the one that was called.
class Refused : public CommError {
 public:
  Refused(std::string_view the_verdict, const std::string& text) : CommError(text), verdict(the_verdict) {}
  const std::string_view verdict;  // one of those above; empty where the listener speaks another protocol
};

/// The caller's part: returns the session's key, which only the two ends know. Errors begin with `listener`. Throws
/// Refused or LostConnection.
std::string authenticate(Connection& connection, const Credentials& credentials, std::uint32_t rank,
                         const std::string& listener, Clock::time_point deadline);

struct Authenticated {
  std::uint32_t rank = 0;   // of the caller, as it says
  std::string session_key;  // which only the two ends know
};

/// The listener's part. `also_at` are endpoints besides its own under which callers reach it, by address translation;
/// `proven` is called before the caller can take itself for connected. Throws CommError: the connection is of no use.
Authenticated authenticate_caller(Connection& connection, const Credentials& credentials,
                                  const std::vector<boost::asio::ip::tcp::endpoint>& also_at,
                                  const std::function<void()>& proven, Clock::time_point deadline);

/// The listener's part where it cannot serve any more. Throws LostConnection.
void refuse_caller(Connection& connection, std::string_view verdict, Clock::time_point deadline);

}  // namespace duet::ddp
