#include "ddp/store/authenticate.h"

#include <algorithm>
#include <array>
#include <span>

#include "ddp/store/secret.h"
#include "lib/base/sha256.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t kEndpointAt = kMarkBytes + kRankBytes;

tcp::endpoint endpoint_of(const std::string& bytes) {
  asio::ip::address_v6::bytes_type raw{};
  std::copy_n(bytes.begin(), raw.size(), raw.begin());
  const asio::ip::address_v6 six(raw);
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  const auto port = static_cast<unsigned short>(byte(16) << 8 | byte(17));
  if (six.is_v4_mapped()) return {asio::ip::make_address_v4(asio::ip::v4_mapped, six), port};
  return {six, port};
}

[[noreturn]] void throw_refusal(std::string_view verdict, Connection& connection, const std::string& listener,
                                Clock::time_point deadline) {
  if (verdict == kOther) throw Refused(kOther, listener + " serves another run");
  if (verdict == kNoFile) throw Refused(kNoFile, listener + " has no file descriptor left for this rank (ulimit -n)");
  if (verdict == kNoThread)
    throw Refused(kNoThread, listener + " can start no thread for this rank (ulimit -u, or pids.max of its cgroup)");
  if (verdict == kRelayed)
    throw Refused(kRelayed, concat(listener, " is a relay, which passes on to ",
                                   endpoint_text(endpoint_of(connection.read(kEndpointBytes, deadline)))));
  throw Refused("", listener + " does not speak the protocol of this version of duet");
}

}  // namespace

std::string service_mark(const std::string& service) {
  return sha256_hex(std::as_bytes(std::span(service))).substr(0, kMarkBytes);
}

std::string endpoint_bytes(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  const asio::ip::address_v6 six =
      address.is_v4() ? asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4()) : address.to_v6();
  const auto raw = six.to_bytes();
  std::string bytes(raw.begin(), raw.end());
  bytes.push_back(static_cast<char>(endpoint.port() >> 8));
  bytes.push_back(static_cast<char>(endpoint.port() & 0xff));
  return bytes;
}

std::string handshake_proof(const std::string& secret, std::string_view purpose, std::string_view hello,
                            std::string_view listener_number) {
  // All parts but the first have a fixed length, so no two sets of them spell the same text.
  std::string text(purpose);
  for (const std::string_view part : {hello, listener_number}) text += part;
  const Sha256::Digest digest = hmac_sha256(std::as_bytes(std::span(secret)), std::as_bytes(std::span(text)));
  return {digest.begin(), digest.end()};
}

std::string authenticate(Connection& connection, const Credentials& credentials, std::uint32_t rank,
                         const std::string& listener, Clock::time_point deadline) {
  std::string hello = service_mark(credentials.service);
  for (std::size_t i = 0; i < kRankBytes; ++i) hello.push_back(static_cast<char>(rank >> 8 * i & 0xff));
  hello += endpoint_bytes(connection.peer()) + random_bytes(kNumberBytes);
  connection.write(std::string(kMagic) + hello, deadline);
  const std::string first = connection.read(kMagic.size(), deadline);
  if (first != kMagic) throw_refusal(first, connection, listener, deadline);
  const std::string number = connection.read(kNumberBytes, deadline);
  const auto proof = [&](std::string_view purpose) {
    return handshake_proof(credentials.secret, purpose, hello, number);
  };
  connection.write(proof("caller"), deadline);
  const std::string verdict = connection.read(kMagic.size(), deadline);
  if (verdict != kMagic && verdict != kDenied) throw_refusal("", connection, listener, deadline);
  if (verdict == kDenied || !equal_secrets(connection.read(kProofBytes, deadline), proof("listener")))
    throw Refused(kDenied, concat(listener, " has another secret than this rank (", kSecretFileVariable, ", ",
                                  kSecretVariable, "; without them on one host, that of the user in a folder of ",
                                  "$TMPDIR), or is a relay that changes what it passes on"));
  return proof("session");
}

Authenticated authenticate_caller(Connection& connection, const Credentials& credentials,
                                  const std::vector<tcp::endpoint>& also_at, const std::function<void()>& proven,
                                  Clock::time_point deadline) {
  require<CommError>(connection.read(kMagic.size(), deadline) == kMagic, "the caller is no rank of this version");
  const std::string hello = connection.read(kHelloBytes, deadline);
  const auto refuse = [&](std::string_view verdict, const std::string& more = "") {
    connection.write(std::string(verdict) + more, deadline);
    throw Refused(verdict, "the caller was refused");
  };
  if (hello.substr(0, kMarkBytes) != service_mark(credentials.service)) refuse(kOther);
  const std::string called = hello.substr(kEndpointAt, kEndpointBytes), own = endpoint_bytes(connection.local());
  const bool translated = std::any_of(also_at.begin(), also_at.end(),
                                      [&](const tcp::endpoint& place) { return endpoint_bytes(place) == called; });
  if (called != own && !translated) refuse(kRelayed, own);
  const std::string number = random_bytes(kNumberBytes);
  const auto proof = [&](std::string_view purpose) {
    return handshake_proof(credentials.secret, purpose, hello, number);
  };
  connection.write(std::string(kMagic) + number, deadline);
  if (!equal_secrets(connection.read(kProofBytes, deadline), proof("caller"))) refuse(kDenied);
  proven();
  connection.write(std::string(kMagic) + proof("listener"), deadline);
  Authenticated caller{.session_key = proof("session")};
  for (std::size_t i = kRankBytes; i-- > 0;)
    caller.rank = caller.rank << 8 | static_cast<unsigned char>(hello[kMarkBytes + i]);
  return caller;
}

void refuse_caller(Connection& connection, std::string_view verdict, Clock::time_point deadline) {
  connection.read(kMagic.size() + kHelloBytes, deadline);
  connection.write(verdict, deadline);
}

}  // namespace duet::ddp
