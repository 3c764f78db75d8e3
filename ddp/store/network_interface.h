// Addresses of this host's network interfaces.
#pragma once

#include <string>

namespace duet::ddp {

/// Names the interface over which ranks exchange data. Without it Gloo uses that of the way to the store, and NCCL
/// loopback where all ranks are on one host, else what it chooses itself.
inline constexpr const char* kInterfaceVariable = "DUET_INTERFACE";

/// The address of an interface ("eth0") that is up: one of the family of `like` (IPv4 or IPv6) where there is one, and
/// one that is not link-local where there is one. Throws UsageError that lists the interfaces.
std::string address_of(const std::string& interface, const std::string& like = "127.0.0.1");

/// The interface ("lo") that is up and leads from this host to itself only, by IPv4; empty if there is none.
std::string loopback_interface();

}  // namespace duet::ddp
