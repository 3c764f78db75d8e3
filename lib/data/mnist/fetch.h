// One file from the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace duet::data {

/// Bytes so far, bytes in all (0 while that is unknown).
using FetchProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// The content of an http, https or file URL; redirects are followed, $https_proxy and its kin are heeded. libcurl is
/// loaded by the first call, so that programs that never call it do not pay for it at their start. Throws DataError
/// that names the URL: libcurl is not installed, the server cannot be reached or refuses, nothing arrives for 30 s, or
/// the content is larger than `most_bytes`. An exception of `progress` ends the download and is rethrown.
std::vector<std::uint8_t> fetch(const std::string& url, std::size_t most_bytes, const FetchProgress& progress = {});

}  // namespace duet::data
