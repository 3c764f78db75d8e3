// Fetches MNIST. Never called unless somebody asked for it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/data/mnist/mnist.h"

namespace duet::data {

/// Addresses of folders that hold the four .gz files, to be tried in this order.
std::vector<std::string> mnist_mirrors(MnistKind kind);

/// Puts the four files, unpacked, into `folder`, which is made if absent. Files that are there and whole are kept; each
/// other one comes from the first mirror that gives it right: MNIST's unpacked content, or Fashion-MNIST's archive,
/// must have the known SHA-256. A file appears under its name only when it is complete and on disk. Throws DataError
/// that says what each mirror did wrong, or why the folder cannot be written (found out before anything is fetched).
void download_mnist(MnistKind kind, const std::filesystem::path& folder, const DownloadProgress& progress = {});
void download_mnist(MnistKind kind, const std::filesystem::path& folder, const std::vector<std::string>& mirrors,
                    const DownloadProgress& progress = {});

}  // namespace duet::data
