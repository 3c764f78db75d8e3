// MNIST and Fashion-MNIST: search order, reading, download, and drawn digits in their place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/data/dataset.h"

namespace duet::data {

enum class MnistKind { mnist, fashion_mnist };
/// "MNIST", "Fashion-MNIST".
const char* name(MnistKind kind);
/// "mnist", "fashion-mnist": its folder inside others, and its name on command lines.
const char* folder_name(MnistKind kind);

/// The four files without ".gz", in the order train images, train labels, test images, test labels.
inline constexpr std::array<const char*, 4> kMnistFiles = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

struct MnistFiles {
  std::array<std::filesystem::path, 4> paths;  // in the order of kMnistFiles; an empty one was not found
  std::filesystem::path folder;
  bool complete() const;
  /// "train-labels-idx1-ubyte, t10k-labels-idx1-ubyte"
  std::string missing() const;
};

/// Looks in `folder`, unless it, or the folder that it leads to, is named after the other kind, and then in its
/// sub-folders mnist (fashion-mnist), MNIST/raw (FashionMNIST/raw), which torchvision makes, and raw. The files may end
/// in .gz, have a dot in place of the dash before "idx", or lie in folders of their names. Returns the first complete
/// set, else the one that lacks least.
MnistFiles find_mnist(const std::filesystem::path& folder, MnistKind kind);

struct Mnist {
  ImageDataset train, test;
  std::string origin;  // for people: "MNIST, 60,000 + 10,000 images from data/mnist"
  bool drawn = false;  // no files were found or wanted: the digits are the program's own
};

/// Each kind is normalised by its own mean and deviation. Throws DataError as lib/data/mnist/idx.h, for images that are
/// not 28 x 28, and when a set's labels and images differ in number.
Mnist read_mnist(const MnistFiles& files, MnistKind kind);

/// Progress of a download: file name, bytes so far, bytes in all (0 while that is unknown).
using DownloadProgress = std::function<void(const std::string& file, std::uint64_t done, std::uint64_t total)>;

struct MnistOptions {
  MnistKind kind = MnistKind::mnist;
  std::string data{};     // a folder, "synthetic" for drawn digits, "" to look in the usual places
  bool download = false;  // fetch what is not found into the cache folder
  DownloadProgress progress{};
  std::int64_t train_images = 0;  // use only the first so many; 0: all
  std::int64_t test_images = 0;
  std::uint64_t drawing_seed = 0;                          // seed of the drawn digits
  std::optional<std::string> environment{};                // in place of $DUET_DATA
  std::filesystem::path here = ".";                        // in place of the working directory
  std::optional<std::filesystem::path> cache{};            // in place of cache_folder()
  std::filesystem::path packaged = "/usr/share/datasets";  // where Debian's dataset-fashion-mnist puts its folder
  std::optional<std::filesystem::path> home{};             // in place of $HOME: other programs' data sets
};

/// ~/.cache/duet (or $XDG_CACHE_HOME/duet).
std::filesystem::path cache_folder();

/// Throws what load_mnist() throws where the options or $DUET_DATA name a folder without a complete set. Reads no
/// image.
void require_mnist(const MnistOptions& options);

/// Looks in `data`, $DUET_DATA, ./data, ., ../data, the cache folder, that of Debian's packages and ~/.keras/datasets,
/// in this order. Either of the first two, if given, must hold a complete set: else DataError says what is missing. If
/// nothing is found: downloads if `download` is set, else draws digits, as `origin` then says. The error and `origin`
/// name files of the set in formats that are not read (.npz, .pkl.gz, .csv, those of Hugging Face and TensorFlow).
Mnist load_mnist(const MnistOptions& options);

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
