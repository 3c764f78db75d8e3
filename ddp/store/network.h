// This host's network: addresses of its interfaces, this process's connections, and the ports on which it may listen.
#pragma once

#include <set>
#include <string>

#include "ddp/store/store.h"

namespace duet::ddp {

/// Names the interface over which ranks exchange data. Without it Gloo uses that of the way to the store, and NCCL
/// loopback where all ranks are on one host, else what it chooses itself.
inline constexpr const char* kInterfaceVariable = "DUET_INTERFACE";

/// A host, by its name or address (IPv6 without brackets), and its port as it was written; empty if there is none.
struct HostAndPort {
  std::string host, port;
};

/// Reads the name or address of a host: IPv6 with or without brackets, a link-local one with its zone ("fe80::1%eth0").
/// Throws UsageError that begins with `what`, the name of an option or a variable, for text that can never be one.
std::string parse_host(const std::string& text, const std::string& what);

/// Reads "HOST:PORT", or also "HOST" unless `needs_port`. Throws as parse_host() does, also for an IPv6 address without
/// brackets which a port may or may not follow.
HostAndPort parse_endpoint(const std::string& text, const std::string& what, bool needs_port);

/// The address of an interface ("eth0") that is up: one of the family of `like` (IPv4 or IPv6) where there is one, and
/// one that is not link-local where there is one. Throws UsageError that lists the interfaces.
std::string address_of(const std::string& interface, const std::string& like = "127.0.0.1");

/// The address of a host, IPv4 where it has one, by its name or address. A name that is not known yet, as that of a pod
/// which starts, is asked for again until `timeout` is over; then CommError names it. Throws at once for a name that
/// never will be (.invalid), and if this host has no address of the family.
std::string address_of_host(const std::string& host, Milliseconds timeout);

/// This host's address on the way to another host, which is found as above. Throws CommError if there is no way.
std::string address_towards(const std::string& host, Milliseconds timeout);

/// Throws CommError that names it if `address` is one of loopback and this host's loopback interface is down: nothing
/// will answer there.
void require_loopback(const std::string& address);

/// The interface ("lo") that is up and leads from this host to itself only, by IPv4; empty if there is none.
std::string loopback_interface();

/// Descriptors of this process's TCP connections.
std::set<int> tcp_connections();

/// Lets the kernels of both hosts exchange heartbeats over a connection without traffic, and ends it when nothing that
/// was sent over it is acknowledged for `limit`.
void keep_alive(int connection, Milliseconds limit);

/// Holds "FIRST-LAST": each port that duet takes and no option names is one of these. Gloo, MPI and NCCL take
/// ports of their own, so backends gloo and mpi are refused with it, and nccl where ranks are on several hosts.
inline constexpr const char* kPortRangeVariable = "DUET_PORT_RANGE";

struct PortRange {
  int first = 0, last = 0;  // 0 for both: any free port
  const char* source = "";  // the variable that asks for it; empty: none does
  bool limits() const { return *source != '\0'; }
};

/// Reads "30000-30010". Throws UsageError that begins with `what`, the name of an option or a variable.
PortRange parse_port_range(const std::string& text, const std::string& what);

/// What DUET_PORT_RANGE says; any free port without it. Throws UsageError.
PortRange port_range();

/// "port 29500", "any of the ports 30000-30010 (DUET_PORT_RANGE)".
std::string describe(const PortRange& ports);

}  // namespace duet::ddp
