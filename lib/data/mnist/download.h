// Fetches MNIST. Called only on the user's request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/data/mnist/mnist.h"

namespace duet::data {

/// Puts the four files, unpacked, into `folder`, which is made if absent. Files that are there and whole are kept; each
/// other one comes from the first mirror that gives it right: MNIST's unpacked content, or Fashion-MNIST's archive,
/// must have the known SHA-256. A file appears under its name only when it is complete and on disk. Throws DataError
/// that says what each mirror did wrong, or why the folder cannot be written (found out before anything is fetched).
/// `mirrors`: addresses of folders in place of the known ones.
void download_mnist(MnistKind kind, const std::filesystem::path& folder, const DownloadProgress& progress = {},
                    const std::vector<std::string>& mirrors = {});

/// Bytes so far, bytes in all (0 while that is unknown).
using FetchProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// The content of an http, https or file URL; redirects are followed, $https_proxy and the like apply. libcurl is
/// loaded by the first call, so that programs that never call it do not pay for it at their start. Throws DataError
/// that names the URL: libcurl is not installed, the server cannot be reached or refuses, nothing arrives for 30 s, or
/// the content is larger than `most_bytes`. An exception of `progress` ends the download and is rethrown.
std::vector<std::uint8_t> fetch(const std::string& url, std::size_t most_bytes, const FetchProgress& progress = {});

}  // namespace duet::data
