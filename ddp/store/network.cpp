#include "ddp/store/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>

#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

struct Free {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

bool is_internet(int family) { return family == AF_INET || family == AF_INET6; }

/// With the interface of a link-local address. Empty for what is neither IPv4 nor IPv6.
std::string text_of(const sockaddr* address) {
  std::array<char, NI_MAXHOST> text{};
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (is_internet(address->sa_family))
    ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

std::unique_ptr<ifaddrs, Free> interfaces() {
  ifaddrs* list = nullptr;
  require<UsageError>(::getifaddrs(&list) == 0, "cannot list network interfaces: ", last_errno);
  return std::unique_ptr<ifaddrs, Free>(list);
}

bool is_up(const ifaddrs& one) { return one.ifa_addr != nullptr && (one.ifa_flags & IFF_UP) != 0; }

/// Families of the addresses of interfaces that are up; empty if that cannot be found out, as in a sandbox.
std::set<int> own_families() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, Free> list(found);
  std::set<int> families;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next)
    if (is_up(*one) && is_internet(one->ifa_addr->sa_family)) families.insert(one->ifa_addr->sa_family);
  return families;
}

bool is_six(const std::string& host, in6_addr& address) {
  return ::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) == 1;
}

constexpr std::size_t kMostLabel = 63;  // bytes between two dots

/// Takes off brackets, and says why no host can have this name or address; empty: one may.
std::string why_no_host(std::string& host) {
  in6_addr six{};
  const bool brackets = host.starts_with('[') && host.ends_with(']');
  if (brackets) host = host.substr(1, host.size() - 2);
  if (is_six(host, six)) {
    const std::size_t percent = host.find('%');
    const bool link_local = six.s6_addr[0] == 0xfe && (six.s6_addr[1] & 0xc0) == 0x80;
    if (!link_local && percent == host.npos) return {};
    const std::string zone = percent == host.npos ? "" : host.substr(percent + 1);
    std::array<char, IF_NAMESIZE> name{};
    const bool known = ::if_nametoindex(zone.c_str()) != 0 ||
                       ::if_indextoname(parse_number<unsigned>(zone).value_or(0), name.data()) != nullptr;
    return link_local && known ? "" : "an interface of this host follows a link-local address only, as fe80::1%eth0";
  }
  if (brackets) return "brackets are for addresses of IPv6";
  const std::string neither = "this is neither a name nor an address";
  in_addr four{};
  if (host.find_first_not_of("0123456789.") == host.npos) return ::inet_aton(host.c_str(), &four) != 0 ? "" : neither;
  std::size_t label = 0;  // bytes of it so far; other bytes than ASCII may be in a name that only this host knows
  for (const char byte : host) {
    const bool dot = byte == '.';
    if (!dot && byte >= 0 && byte != '-' && byte != '_' && std::isalnum(byte) == 0) return neither;
    if (dot ? label == 0 : label == kMostLabel) return neither;
    label = dot ? 0 : label + 1;
  }
  return {};
}

constexpr Milliseconds kNamePause{200};  // what all ranks ask a server of names for
const char* const kAnyService = "9";     // nothing is sent there

using Addresses = std::unique_ptr<addrinfo, Free>;

Addresses find_host(const std::string& text, Milliseconds timeout) {
  const std::string host = parse_host(text, "the host");
  addrinfo kind{};
  kind.ai_socktype = SOCK_DGRAM;
  for (const auto deadline = Clock::now() + timeout;; std::this_thread::sleep_for(kNamePause)) {
    addrinfo* found = nullptr;
    const int code = ::getaddrinfo(host.c_str(), kAnyService, &kind, &found);
    if (code == 0) return Addresses(found);
    const bool may_appear =
        (code == EAI_NONAME || code == EAI_NODATA || code == EAI_AGAIN) && !host.ends_with(".invalid");
    require<CommError>(code != EAI_SYSTEM, "cannot find the host ", host, ": ", last_errno);
    require<CommError>(may_appear, "cannot find the host ", host, ": ", ::gai_strerror(code));
    require<CommError>(Clock::now() + kNamePause < deadline, "cannot find the host ", host, " within ", timeout.count(),
                       " ms: ", ::gai_strerror(code));
  }
}

}  // namespace

std::string parse_host(const std::string& text, const std::string& what) {
  std::string host = text;
  const std::string why = why_no_host(host);
  require<UsageError>(why.empty(), what, " is ", text, ", expected a host without a port: ", why);
  return host;
}

HostAndPort parse_endpoint(const std::string& text, const std::string& what, bool needs_port) {
  const std::string form = concat(what, " is ", text, ", expected ", needs_port ? "HOST:PORT" : "HOST or HOST:PORT");
  const std::size_t colon = std::min(text.rfind(':'), text.size());
  HostAndPort split{text.substr(0, colon), text.substr(std::min(colon + 1, text.size()))};
  const std::string why = why_no_host(split.host);
  in6_addr ignored{};
  const bool is_bare_six = is_six(text, ignored);
  if (!needs_port && (text.ends_with(']') || colon == text.size() || is_bare_six)) {
    require<UsageError>(!is_bare_six || !why.empty(), form, ": brackets say where the address ends, as in [",
                        split.host, "]:", split.port);
    return {parse_host(text, what), ""};
  }
  require<UsageError>(why.empty() && !split.port.empty(), form, why.empty() ? "" : ": ", why);
  return split;
}

std::string address_of(const std::string& interface, const std::string& like) {
  const auto list = interfaces();
  const bool six = like.find(':') != std::string::npos;
  std::set<std::string> names;
  std::string best;
  int best_rank = 0;
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    if (!is_up(*one)) continue;
    const std::string text = text_of(one->ifa_addr);
    if (text.empty()) continue;
    names.insert(one->ifa_name);
    if (interface != one->ifa_name) continue;
    const bool is_six = one->ifa_addr->sa_family == AF_INET6;
    const int rank = 1 + 2 * static_cast<int>(is_six == six) + static_cast<int>(!text.starts_with("fe80:"));
    if (rank <= best_rank) continue;
    best_rank = rank;
    best = text;
  }
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  require<UsageError>(!best.empty(), kInterfaceVariable, " is ", interface,
                      ", but the interfaces of this host that are up and have an address are ", known);
  return best;
}

std::string address_of_host(const std::string& host, Milliseconds timeout) {
  const Addresses addresses = find_host(host, timeout);
  const std::set<int> families = own_families();
  const addrinfo* best = nullptr;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next)
    if ((families.empty() || families.contains(one->ai_family)) &&
        (best == nullptr || (best->ai_family != AF_INET && one->ai_family == AF_INET)))
      best = one;
  require<CommError>(best != nullptr, "cannot reach the host ", host, ": it has an address of ",
                     addresses->ai_family == AF_INET ? "IPv4" : "IPv6",
                     " only, but no interface of this host that is up has one");
  std::array<char, NI_MAXHOST> text{};  // with the interface of a link-local address
  const int code = ::getnameinfo(best->ai_addr, best->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  require<CommError>(code == 0, "the host ", host, " has no address: ", ::gai_strerror(code));
  return text.data();
}

std::string address_towards(const std::string& host, Milliseconds timeout) {
  const Addresses addresses = find_host(host, timeout);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const Descriptor probe(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    if (probe.open() && ::connect(probe.get(), one->ai_addr, one->ai_addrlen) == 0 &&
        ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0)
      return text_of(reinterpret_cast<const sockaddr*>(&own));
  }
  throw CommError(concat("no network of this host leads to ", host));
}

std::string loopback_interface() {
  const auto list = interfaces();
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next)
    if (is_up(*one) && (one->ifa_flags & IFF_LOOPBACK) != 0 && one->ifa_addr->sa_family == AF_INET)
      return one->ifa_name;
  return {};
}

void require_loopback(const std::string& address) {
  if (!address.starts_with("127.") && address != "::1") return;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return;  // a sandbox may forbid it, and connections tell
  const std::unique_ptr<ifaddrs, Free> list(found);
  std::string down;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if ((one->ifa_flags & IFF_LOOPBACK) == 0) continue;
    if ((one->ifa_flags & IFF_UP) != 0) return;
    down = one->ifa_name;
  }
  require<CommError>(down.empty(), "ranks cannot meet at ", address, ": the loopback interface ", down,
                     " of this host, or of this network namespace, is down; bring it up (ip link set ", down,
                     " up), or let them meet at the address of an interface that is up");
}

namespace {

constexpr int kHeartbeatS = 1;

bool is_tcp_connection(int descriptor) {
  int type = 0, family = 0;
  socklen_t size = sizeof(type);
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof(peer);
  return ::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
         ::getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
         (family == AF_INET || family == AF_INET6) &&
         ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0;
}

}  // namespace

std::set<int> tcp_connections() {
  std::set<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (is_tcp_connection(descriptor)) found.insert(descriptor);
  }
  return found;
}

// Without these options a connection lasts as before, so a failure is no error.
void keep_alive(int connection, Milliseconds limit) {
  const int on = 1, beat = kHeartbeatS;
  const auto most = static_cast<int>(std::min<Milliseconds::rep>(limit.count(), 1 << 30));
  ::setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPIDLE, &beat, sizeof(beat));
  ::setsockopt(connection, IPPROTO_TCP, TCP_KEEPINTVL, &beat, sizeof(beat));
  ::setsockopt(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof(most));
}

PortRange parse_port_range(const std::string& text, const std::string& what) {
  constexpr int kMostPort = 65535;
  const std::size_t dash = std::min(text.find('-'), text.size());
  const std::string_view all = text;
  const int first = parse_number<int>(all.substr(0, dash)).value_or(0);
  const int last = parse_number<int>(all.substr(std::min(dash + 1, text.size()))).value_or(0);
  require<UsageError>(1 <= first && first <= last && last <= kMostPort, what, " is \"", text,
                      "\", expected FIRST-LAST, two ports from 1 to ", kMostPort, " as in 30000-30010");
  return {first, last, kPortRangeVariable};
}

PortRange port_range() {
  const auto text = environment_variable(kPortRangeVariable);
  return text ? parse_port_range(*text, concat("environment variable ", kPortRangeVariable)) : PortRange{};
}

std::string describe(const PortRange& ports) {
  if (ports.first == ports.last && !ports.limits()) return concat("port ", ports.first);
  return concat("any of the ports ", ports.first, "-", ports.last, ports.limits() ? " (" : "", ports.source,
                ports.limits() ? ")" : "");
}

}  // namespace duet::ddp
