// Addresses of this host's network interfaces.
#pragma once

#include <string>

namespace duet::ddp {

/// Names the interface over which ranks exchange data; without it, that of the way to the store.
inline constexpr const char* kInterfaceVariable = "DUET_INTERFACE";

/// The address of an interface ("eth0") that is up: one of the family of `like` (IPv4 or IPv6) where there is one, and
/// one that is not link-local where there is one. Throws UsageError that lists the interfaces.
std::string address_of(const std::string& interface, const std::string& like = "127.0.0.1");

}  // namespace duet::ddp
