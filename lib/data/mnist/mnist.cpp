#include "lib/data/mnist/mnist.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "lib/base/environment.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/data/mnist/idx.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/io/file_format.h"
#include "lib/io/folder.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSynthetic = "synthetic";
constexpr std::int64_t kImageSide = 28, kDrawnTrain = 60000, kDrawnTest = 10000;

MnistFiles find_in(const fs::path& folder) {
  MnistFiles files;
  files.folder = folder;
  std::error_code error;
  for (std::size_t i = 0; i < kMnistFiles.size(); ++i) {
    const std::string name = kMnistFiles[i];
    std::string dotted = name;
    dotted[name.find("-idx")] = '.';
    for (const std::string& one : {name, name + ".gz", dotted, dotted + ".gz"}) {
      fs::path path = folder / one;
      if (fs::is_directory(path, error)) path /= one;  // as some archives are unpacked
      if (!files.paths[i].empty() || !fs::exists(path, error)) continue;
      files.paths[i] = path;
    }
  }
  return files;
}

/// torchvision's name of the folder.
const char* torch_name(MnistKind kind) { return kind == MnistKind::mnist ? "MNIST" : "FashionMNIST"; }

/// Names files of the set, in `places` or as other programs store it there, that are of formats that are not read.
std::string unusable(const std::vector<fs::path>& places, MnistKind kind) {
  const bool digits = kind == MnistKind::mnist;
  const std::string set = digits ? "mnist" : "fashion_mnist", cached = ".cache/huggingface/",
                    owner = digits ? "ylecun" : "zalando-datasets";
  std::string found;
  for (const fs::path& place : places) {
    for (const std::string& name :
         {std::string(digits ? "mnist.npz" : "fashion-mnist.npz"), std::string("mnist.pkl.gz"),
          std::string(digits ? "mnist_train.csv" : "fashion-mnist_train.csv"), concat(torch_name(kind), "/processed"),
          concat("tensorflow_datasets/", set), concat(cached, "datasets/", set),
          concat(cached, "datasets/", owner, "___", set), concat(cached, "hub/datasets--", set),
          concat(cached, "hub/datasets--", owner, "--", set)}) {
      const fs::path path = (place / name).lexically_normal();
      std::error_code error;
      if (!fs::exists(path, error) || (!digits && name == "mnist.pkl.gz")) continue;
      const std::string format = fs::is_directory(path, error) ? "" : describe_file(path.string(), FileContent::script);
      found += concat(" (found ", path.string(), format.empty() ? "" : ", " + format, ": duet reads IDX files)");
    }
  }
  return found;
}

std::ptrdiff_t count_found(const MnistFiles& files) {
  return std::count_if(files.paths.begin(), files.paths.end(), [](const fs::path& path) { return !path.empty(); });
}

ImageDataset read_pair(const fs::path& image_path, const fs::path& label_path, MnistKind kind) {
  const Tensor images = read_idx_images(image_path), labels = read_idx_labels(label_path);
  require<DataError>(images.size(2) == kImageSide && images.size(3) == kImageSide, image_path.string(), ": images are ",
                     images.size(2), " x ", images.size(3), ", expected ", kImageSide, " x ", kImageSide);
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

Mnist read_limited(const MnistFiles& files, const MnistOptions& options) {
  Mnist data = read_mnist(files, options.kind);
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
  const std::string format = describe_file(folder);
  require<DataError>(fs::is_directory(folder, error), before, folder, ": is ", format.empty() ? "not a folder" : format,
                     "; expected a folder with the four ", name(kind), " files, or ", folder_name(kind), " inside it");
  MnistFiles files = find_mnist(folder, kind);
  if (!files.complete())
    throw DataError(concat(before, folder, ": no complete ", name(kind), " there: ", files.folder.string(), " lacks ",
                           files.missing(), " (each may end in .gz)", content_of(files.folder.string()),
                           unusable({folder}, kind)));
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
  // Files of both kinds have the same names; "." and a link are also what they lead to.
  const MnistKind other = kind == MnistKind::mnist ? MnistKind::fashion_mnist : MnistKind::mnist;
  std::error_code error;
  bool of_other = false, of_own = false;
  for (const fs::path& path : {folder / "", fs::canonical(folder, error) / ""}) {
    const fs::path own = path.parent_path();
    for (const fs::path& named :
         {own.filename(), own.filename() == "raw" ? own.parent_path().filename() : own.filename()}) {
      of_other = of_other || named == folder_name(other) || named == torch_name(other);
      of_own = of_own || named == folder_name(kind) || named == torch_name(kind);
    }
  }
  MnistFiles best = find_in(folder / folder_name(kind));
  std::vector<fs::path> places = {folder / torch_name(kind) / "raw"};
  if (!of_other) places.insert(places.begin(), folder);
  if (of_own) places.push_back(folder / "raw");
  for (const fs::path& place : places) {
    MnistFiles files = find_in(place);
    const bool first = place == folder;  // the folder itself goes before its sub-folder
    if (count_found(files) > count_found(best) || (first && count_found(files) == count_found(best)))
      best = std::move(files);
  }
  return best;
}

Mnist read_mnist(const MnistFiles& files, MnistKind kind) {
  require<DataError>(files.complete(), files.folder.string(), ": lacks ", files.missing());
  Mnist data{read_pair(files.paths[0], files.paths[1], kind), read_pair(files.paths[2], files.paths[3], kind), "",
             false};
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

  const fs::path cache = options.cache.value_or(cache_folder());
  std::string incomplete;
  const fs::path home = options.home.value_or(environment_variable("HOME").value_or("/"));
  const fs::path here = options.here, keras = home / ".keras/datasets";
  const std::vector<fs::path> places = {here / "data", here, here / "../data", cache, options.packaged, keras};
  for (const fs::path& folder : places) {
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
  incomplete += unusable(places, options.kind) + unusable({home}, options.kind);
  return draw(options, concat("because no ", name(options.kind), " was found", incomplete));
}

// Fetching, only on the user's request.
namespace {

using Content = std::vector<std::uint8_t>;

/// SHA-256 of files with the published MD5; empty: unknown. Mirrors repack MNIST, so its sums are of the unpacked
/// content; those of Fashion-MNIST are of the archives.
struct Published {
  std::size_t bytes;  // unpacked
  const char* content;
  const char* archive;
};

constexpr std::array<Published, 4> kPublishedMnist = {{
    {47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", ""},
    {60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", ""},
    {7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", ""},
    {10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", ""},
}};
constexpr std::array<Published, 4> kPublishedFashion = {{
    {47040016, "", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"},
    {60008, "", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"},
    {7840016, "", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"},
    {10008, "", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"},
}};

const std::array<Published, 4>& published(MnistKind kind) {
  return kind == MnistKind::mnist ? kPublishedMnist : kPublishedFashion;
}

void check_sum(const std::string& name, const char* what, std::span<const std::uint8_t> bytes, const char* expected) {
  if (!*expected) return;
  const std::string found = sha256_hex(std::as_bytes(bytes));
  require<DataError>(found == expected, name, ": ", what, " has SHA-256 ", found, ", expected ", expected);
}

/// All of the file; throws DataError unless it has exactly `expected` bytes.
Content read_exactly(ByteReader& reader, std::size_t expected) {
  Content content(expected + 1);
  const std::size_t count = reader.read(content);
  require<DataError>(count == expected, reader.name(), ": unpacks to ", count > expected ? "more than " : "",
                     std::min(count, expected), " bytes, expected ", expected);
  content.resize(expected);
  return content;
}

/// True when the file is there and, as far as sums are known, whole.
bool is_whole(const fs::path& path, const Published& wanted) {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  try {
    ByteReader reader(path);
    check_sum(path.string(), "content", read_exactly(reader, wanted.bytes), wanted.content);
    return true;
  } catch (const DataError&) {
    return false;  // damaged: fetched again, and then replaced
  }
}

Content fetch_content(const std::string& url, const std::string& file, const Published& wanted,
                      const DownloadProgress& progress) {
  const Content archive = fetch(url, wanted.bytes, [&](std::uint64_t done, std::uint64_t total) {
    if (progress) progress(file, done, total);
  });
  check_sum(url, "archive", archive, wanted.archive);
  ByteReader reader(archive, url);
  Content content = read_exactly(reader, wanted.bytes);
  check_sum(url, "content", content, wanted.content);
  return content;
}

/// Addresses of folders that hold the four .gz files, to be tried in this order.
std::vector<std::string> mnist_mirrors(MnistKind kind) {
  if (kind == MnistKind::mnist) {
    return {"https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"};
  }
  return {"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
          "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"};
}

constexpr long kConnectTimeoutS = 15, kStallTimeoutS = 30, kMostRedirects = 5;

/// libcurl's functions, looked up when first needed: linking it would load twenty libraries into every process.
struct Curl {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  std::string failure;

  Curl() {
    void* library = nullptr;
    for (const char* const name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
      const char* const reason = dlerror();
      failure = concat("libcurl cannot be loaded (package libcurl4): ", reason ? reason : "unknown reason");
      return;
    }
    find(library, "curl_global_init", global_init);
    find(library, "curl_easy_init", easy_init);
    find(library, "curl_easy_setopt", easy_setopt);
    find(library, "curl_easy_perform", easy_perform);
    find(library, "curl_easy_cleanup", easy_cleanup);
    find(library, "curl_easy_strerror", easy_strerror);
    if (failure.empty() && global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) failure = "libcurl does not start";
  }
  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) failure = concat("libcurl lacks ", name);
  }
};

const Curl& curl() {
  static const Curl loaded;
  return loaded;
}

/// One transfer, as the callbacks see it.
struct Transfer {
  std::vector<std::uint8_t> content;
  std::size_t most_bytes;
  const FetchProgress& progress;
  bool too_large = false;
  std::exception_ptr failure{};
};

std::size_t on_data(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::size_t total = size * count;
  if (transfer.content.size() + total > transfer.most_bytes) {
    transfer.too_large = true;
    return 0;
  }
  try {
    transfer.content.insert(transfer.content.end(), bytes, bytes + total);
  } catch (...) {
    transfer.failure = std::current_exception();
    return 0;
  }
  return total;
}

int on_progress(void* user, curl_off_t total, curl_off_t done, curl_off_t, curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    if (transfer.progress) transfer.progress(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
    return 0;
  } catch (...) {
    transfer.failure = std::current_exception();
    return 1;
  }
}

}  // namespace

std::vector<std::uint8_t> fetch(const std::string& url, std::size_t most_bytes, const FetchProgress& progress) {
  const Curl& api = curl();
  require<DataError>(api.failure.empty(), url, ": ", api.failure);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(api.easy_init(), api.easy_cleanup);
  require<DataError>(handle != nullptr, url, ": libcurl gives no handle");
  Transfer transfer{.content = {}, .most_bytes = most_bytes, .progress = progress};
  std::array<char, CURL_ERROR_SIZE> reason{};
  CURL* const h = handle.get();
  api.easy_setopt(h, CURLOPT_URL, url.c_str());
  api.easy_setopt(h, CURLOPT_ERRORBUFFER, reason.data());
  api.easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https,file");
  api.easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  api.easy_setopt(h, CURLOPT_FOLLOWLOCATION, 1L);
  api.easy_setopt(h, CURLOPT_MAXREDIRS, kMostRedirects);
  api.easy_setopt(h, CURLOPT_FAILONERROR, 1L);
  api.easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
  api.easy_setopt(h, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  api.easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
  api.easy_setopt(h, CURLOPT_LOW_SPEED_TIME, kStallTimeoutS);
  api.easy_setopt(h, CURLOPT_USERAGENT, "duet/" DUET_VERSION);
  api.easy_setopt(h, CURLOPT_WRITEFUNCTION, on_data);
  api.easy_setopt(h, CURLOPT_WRITEDATA, &transfer);
  api.easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
  api.easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
  api.easy_setopt(h, CURLOPT_XFERINFODATA, &transfer);

  const CURLcode code = api.easy_perform(h);
  if (transfer.failure) std::rethrow_exception(transfer.failure);
  require<DataError>(!transfer.too_large, url, ": is larger than the ", most_bytes,
                     " bytes that were expected at most");
  require<DataError>(code == CURLE_OK, url, ": ", reason[0] ? reason.data() : api.easy_strerror(code));
  return std::move(transfer.content);
}

void download_mnist(MnistKind kind, const fs::path& folder, const DownloadProgress& progress,
                    const std::vector<std::string>& mirrors) {
  std::size_t total = 0;
  for (const Published& file : published(kind)) total += file.bytes;
  require_writable(folder.string(), total);
  for (std::size_t i = 0; i < kMnistFiles.size(); ++i) {
    const Published& wanted = published(kind)[i];
    const fs::path path = folder / kMnistFiles[i];
    if (is_whole(path, wanted)) continue;
    const std::string file = std::string(kMnistFiles[i]) + ".gz";
    Content content;
    std::string reasons;
    for (const std::string& mirror : mirrors.empty() ? mnist_mirrors(kind) : mirrors) {
      try {
        content = fetch_content(mirror + "/" + file, file, wanted, progress);
        break;
      } catch (const DataError& error) {
        reasons += concat(reasons.empty() ? "" : "; ", error.what());
      }
    }
    require<DataError>(!content.empty(), "no mirror gave ", file, ": ", reasons);
    write_atomically(path.string(), {std::as_bytes(std::span(content))});
  }
}

}  // namespace duet::data
