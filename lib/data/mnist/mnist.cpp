#include "lib/data/mnist/mnist.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <system_error>

#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/data/mnist/idx.h"
#include "lib/data/normalise.h"
#include "lib/error.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSynthetic = "synthetic";
constexpr std::int64_t kSide = 28, kDrawnTrain = 60000, kDrawnTest = 10000;

MnistFiles find_in(const fs::path& folder) {
  MnistFiles files;
  files.folder = folder;
  for (std::size_t i = 0; i < kMnistFiles.size(); ++i) {
    for (const char* const ending : {"", ".gz"}) {
      const fs::path path = folder / (std::string(kMnistFiles[i]) + ending);
      std::error_code error;
      if (fs::exists(path, error)) {
        files.paths[i] = path;
        break;
      }
    }
  }
  return files;
}

std::ptrdiff_t count_found(const MnistFiles& files) {
  return std::count_if(files.paths.begin(), files.paths.end(), [](const fs::path& path) { return !path.empty(); });
}

ImageDataset read_pair(const fs::path& image_path, const fs::path& label_path, MnistKind kind,
                       const fs::path& unpacked) {
  const Tensor images = unpacked.empty() ? read_idx_images(image_path) : read_idx_images_once(image_path, unpacked);
  const Tensor labels = read_idx_labels(label_path);
  require<DataError>(images.size(2) == kSide && images.size(3) == kSide, image_path.string(), ": images are ",
                     images.size(2), " x ", images.size(3), ", expected ", kSide, " x ", kSide);
  require<DataError>(images.size(0) == labels.size(0), label_path.string(), ": field 'number of labels' is ",
                     labels.size(0), ", expected ", images.size(0), ", the number of images in ", image_path.string());
  return {images, labels, kind == MnistKind::mnist ? kMnistPixels : kFashionMnistPixels};
}

/// The first `count`; 0: all.
ImageDataset first_images(const ImageDataset& all, std::int64_t count) {
  if (count == 0 || count >= all.size()) return all;
  return {all.images().rows(0, count), all.labels().rows(0, count), all.pixels()};
}

std::string counts(const Mnist& data) { return grouped(data.train.size()) + " + " + grouped(data.test.size()); }

std::string origin_of(const Mnist& data, const MnistFiles& files, MnistKind kind) {
  return concat(name(kind), ", ", counts(data), " images from ", files.folder.lexically_normal().string());
}

fs::path cache_of(const MnistOptions& options) { return options.cache.value_or(cache_folder()); }

Mnist read_limited(const MnistFiles& files, const MnistOptions& options) {
  Mnist data = read_mnist(files, options.kind, cache_of(options) / "unpacked");
  data.train = first_images(data.train, options.train_images);
  data.test = first_images(data.test, options.test_images);
  data.origin = origin_of(data, files, options.kind);
  return data;
}

Mnist draw(const MnistOptions& options, const std::string& reason) {
  const auto count = [](std::int64_t wanted, std::int64_t all) { return wanted ? std::min(wanted, all) : all; };
  const std::int64_t train = count(options.train_images, kDrawnTrain), test = count(options.test_images, kDrawnTest);
  Mnist data{draw_digits(options.drawing_seed, train), draw_digits(options.drawing_seed, test, kDrawnTrain), "", true};
  data.origin = concat("drawn digits, ", reason, " (", counts(data), " images)");
  return data;
}

/// `before`: what stands before the folder in errors.
MnistFiles require_complete(const std::string& folder, const char* before, MnistKind kind) {
  std::error_code error;
  require<DataError>(fs::is_directory(folder, error), before, folder, ": is not a folder; expected one with the four ",
                     name(kind), " files, or ", folder_name(kind), " inside it");
  MnistFiles files = find_mnist(folder, kind);
  require<DataError>(files.complete(), before, folder, ": no complete ", name(kind), " there: ", files.folder.string(),
                     " lacks ", files.missing(), " (each may end in .gz)");
  return files;
}

/// The set in the folder that the options or $DUET_DATA name; none where they name none.
std::optional<MnistFiles> named_files(const MnistOptions& options) {
  if (options.data == kSynthetic) return std::nullopt;
  if (!options.data.empty()) return require_complete(options.data, "", options.kind);
  const std::string named = options.environment.value_or(environment_variable("DUET_DATA").value_or(""));
  if (named.empty()) return std::nullopt;
  return require_complete(named, "$DUET_DATA ", options.kind);
}

}  // namespace

const char* name(MnistKind kind) { return kind == MnistKind::mnist ? "MNIST" : "Fashion-MNIST"; }
const char* folder_name(MnistKind kind) { return kind == MnistKind::mnist ? "mnist" : "fashion-mnist"; }

bool MnistFiles::complete() const { return count_found(*this) == std::ssize(paths); }

std::string MnistFiles::missing() const {
  std::string names;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].empty()) names += (names.empty() ? "" : ", ") + std::string(kMnistFiles[i]);
  }
  return names;
}

MnistFiles find_mnist(const fs::path& folder, MnistKind kind) {
  MnistFiles inside = find_in(folder / folder_name(kind));
  // Files of both kinds have the same names; "." and a link are also what they lead to.
  const MnistKind other = kind == MnistKind::mnist ? MnistKind::fashion_mnist : MnistKind::mnist;
  std::error_code error;
  for (const fs::path& path : {folder / "", fs::canonical(folder, error) / ""})
    if (path.parent_path().filename() == folder_name(other)) return inside;
  MnistFiles direct = find_in(folder);
  return count_found(inside) > count_found(direct) ? inside : direct;
}

Mnist read_mnist(const MnistFiles& files, MnistKind kind, const fs::path& unpacked) {
  require<DataError>(files.complete(), files.folder.string(), ": lacks ", files.missing());
  Mnist data{read_pair(files.paths[0], files.paths[1], kind, unpacked),
             read_pair(files.paths[2], files.paths[3], kind, unpacked), "", false};
  data.origin = origin_of(data, files, kind);
  return data;
}

fs::path cache_folder() {
  if (const auto cache = environment_variable("XDG_CACHE_HOME")) return fs::path(*cache) / "duet";
  return fs::path(environment_variable("HOME").value_or("/")) / ".cache" / "duet";
}

void require_mnist(const MnistOptions& options) { named_files(options); }

Mnist load_mnist(const MnistOptions& options) {
  for (const std::int64_t count : {options.train_images, options.test_images})
    require<UsageError>(count >= 0, "cannot use the first ", count, " images");
  if (options.data == kSynthetic) return draw(options, "as asked");
  if (const std::optional<MnistFiles> named = named_files(options)) return read_limited(*named, options);

  const fs::path cache = cache_of(options);
  std::string incomplete;
  for (const fs::path& folder : {options.here / "data", cache, options.packaged}) {
    const MnistFiles files = find_mnist(folder, options.kind);
    if (files.complete()) return read_limited(files, options);
    if (count_found(files) > 0) {
      incomplete += concat(" (", files.folder.lexically_normal().string(), " lacks ", files.missing(), ")");
    }
  }
  if (options.download) {
    download_mnist(options.kind, cache / folder_name(options.kind), options.progress);
    return read_limited(find_mnist(cache, options.kind), options);
  }
  return draw(options, concat("because no ", name(options.kind), " was found", incomplete));
}

}  // namespace duet::data
