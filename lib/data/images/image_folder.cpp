#include "lib/data/images/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/base/environment.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/data/images/image_file.h"
#include "lib/data/images/resizer.h"
#include "lib/error.h"
#include "lib/io/file_format.h"

namespace duet::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEndings[] = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
constexpr std::size_t kReadEndings = 3;  // the first of them are of formats that are read
constexpr std::string_view kOtherEndings[] = {".gif", ".jfif", ".jpe", ".jp2", ".heic", ".heif", ".avif"};
constexpr std::size_t kLongestEnding = 5;
constexpr std::int64_t kMostChecked = 200'000, kCheckThreads = 8;

bool ends_in(std::string_view file, std::span<const std::string_view> endings) {
  std::string name(file.substr(file.size() - std::min(file.size(), kLongestEnding)));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Neither a JPEG nor a PNG; no regular file: a link that leads nowhere, or a FIFO, which would block.
constexpr unsigned kOther = 1U << 30, kGone = 1U << 31;

/// Returns kOther, kGone, or the losses that the beginning of a file shows. Returns 0 if it can't be read now: a loader
/// that needs it raises the error.
unsigned look_at(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type != fs::file_type::regular) return type == fs::file_type::none ? 0 : kGone;
  std::ifstream file(path, std::ios::binary);
  std::array<std::uint8_t, kLossBytes> front;
  file.read(reinterpret_cast<char*>(front.data()), std::ssize(front));
  if (!file.is_open() || file.bad()) return 0;
  const auto begin = std::span(front).first(static_cast<std::size_t>(file.gcount()));
  return has_read_format(begin) ? ImageFile::losses_of(begin) : kOther;
}

/// Names of what is in a folder: sub-folders, links to folders too, and the rest.
struct Listing {
  std::vector<std::string> folders, files;
};

Listing list(const fs::path& folder) {
  Listing listing;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;  // set for a link that leads nowhere: it is a file, as for torchvision
    const bool is_folder = entry->is_directory(unknown);
    (is_folder ? listing.folders : listing.files).push_back(entry->path().filename().string());
  }
  require<DataError>(!error, folder.string(), ": cannot be listed: ", error.message());
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.files.begin(), listing.files.end());
  return listing;
}

/// Directories that programs leave behind, whose images are copies, or none.
bool is_left_out(const std::string& folder) {
  return folder.starts_with('.') || folder == "__MACOSX" || folder == "@eaDir" || folder == "lost+found";
}

using FolderId = std::pair<dev_t, ino_t>;

/// All files below root / folder by their folder, in the order of os.walk's sorted paths, and what is left out.
/// `around`: the folders above.
void walk(const fs::path& root, const std::string& folder, std::vector<FolderId>& around,
          std::map<std::string, std::vector<std::string>>& files, std::vector<std::string>& left_out) {
  const fs::path path = root / folder;
  struct stat status {};
  require<DataError>(::stat(path.c_str(), &status) == 0, path.string(), ": ", last_errno);
  const FolderId id{status.st_dev, status.st_ino};
  require<DataError>(std::find(around.begin(), around.end(), id) == around.end(), path.string(),
                     ": is a link to a folder that it lies in");
  around.push_back(id);
  Listing listing = list(path);
  for (const std::string& name : listing.files)
    if (ends_in(name, kOtherEndings)) left_out.push_back(folder + '/' + name);
  std::erase_if(listing.files, [](const std::string& name) { return !ends_in(name, kEndings); });
  files[folder] = std::move(listing.files);
  for (const std::string& inner : listing.folders) {
    const std::string name = folder + '/' + inner;
    is_left_out(inner) ? left_out.push_back(name) : walk(root, name, around, files, left_out);
  }
  around.pop_back();
}

void warn(const ImageFolderOptions& options, const std::string& message) {
  if (options.warn)
    options.warn(message);
  else
    std::cerr << concat("duet: skipped: ", message, '\n') << std::flush;
}

/// `crop` of an image that was shrunk.
Region shrunk(const Region& crop, std::int64_t divisor) {
  const std::int64_t x = crop.x / divisor, y = crop.y / divisor;
  return {x, y, (crop.x + crop.width + divisor - 1) / divisor - x, (crop.y + crop.height + divisor - 1) / divisor - y};
}

}  // namespace

/// Memory of one call of fetch.
class ImageFolder::Workspace {
 public:
  std::vector<std::uint8_t> content;
  Pixels pixels;
  Resizer resizer;
};

ImageFolder::ImageFolder(const fs::path& root, const ImageFolderOptions& options)
    : root_(root),
      options_(options),
      side_(std::visit([](const auto& transform) { return transform.size; }, options.transform)),
      normalisers_{Normaliser(options.pixels[0]), Normaliser(options.pixels[1]), Normaliser(options.pixels[2])} {
  std::visit([](const auto& transform) { data::check(transform); }, options.transform);
  require<DataError>(has_image_codecs(), root.string(),
                     ": this duet was built without images (libjpeg-turbo and libpng, Meson option `images`)");
  std::error_code error;
  require<DataError>(fs::is_directory(root, error), root.string(),
                     ": is not a folder; expected one with a folder of images for each class");
  classes_ = class_names(root);
  require<DataError>(!classes_.empty(), root.string(), ": has no folders; expected a folder of images for each class");
  std::vector<std::string> empty, left_out = list(root).folders;
  std::erase_if(left_out, std::not_fn(is_left_out));
  for (const std::string& name : classes_) {
    begins_.push_back(size());
    add_class(name, left_out);
    if (begins_.back() == size()) empty.push_back(name);
  }
  begins_.push_back(size());
  const std::string endings = listed({std::begin(kEndings), std::end(kEndings)}, "or");
  require<DataError>(empty.empty(), root.string(), ": no images in the classes ", listed(empty, "and", 4),
                     "; expected files that end in ", endings);
  if (!left_out.empty() && is_first_rank())
    std::cerr << concat("warning: ", printable(root.string()), ": leaves out ", printable(listed(left_out, "and", 4)),
                        ": directories of such names hold no samples, and images must end in ", endings, '\n');
  look_at_files();
}

void ImageFolder::look_at_files() {
  const auto read_endings = std::span(kEndings).first(kReadEndings);
  std::vector<unsigned> looks(labels_.size(), 0);
  std::vector<std::future<void>> threads;  // a disk or server answers many at once
  for (std::int64_t first = 0; first < kCheckThreads; ++first)
    threads.push_back(std::async(std::launch::async, [&, first] {
      for (std::int64_t i = first; i < size(); i += kCheckThreads) {
        const std::string_view name = name_of(i);
        const bool suspect = name.find("/.") != name.npos || !ends_in(name, read_endings);
        if (suspect || size() <= kMostChecked) looks[static_cast<std::size_t>(i)] = look_at(root_ / name);
      }
    }));
  for (std::future<void>& thread : threads) thread.get();
  std::map<unsigned, std::vector<std::int64_t>> losses;
  for (std::int64_t i = 0; i < size(); ++i) {
    const unsigned look = looks[static_cast<std::size_t>(i)];
    require<DataError>(look != kGone, path(i).string(),
                       ": is a link that leads nowhere, or no regular file; expected an image");
    for (unsigned loss = 1; loss <= look && look != kOther; loss *= 2)
      if ((look & loss) != 0) losses[loss].push_back(i);
    if (look == kOther) broken_.emplace(i, path(i).string() + ": is neither a JPEG nor a PNG image");
  }
  for (const auto& [loss, files] : losses) warn_of_losses(loss, files[0], std::ssize(files));
  if (broken_.empty()) return;
  const std::string first = path(broken_.begin()->first).string(), format = describe_file(first);
  const std::string found =
      concat(root_.string(), ": ", broken_.size(),
             broken_.size() == 1 ? " file is neither a JPEG nor a PNG image" : " files are neither JPEG nor PNG images",
             ", the first is ", first, format.empty() ? "" : ": ", format);
  require<DataError>(options_.skip_broken, found, "; skip_broken takes other images of their classes in their place");
  if (options_.warn || is_first_rank()) warn(options_, found);
}

void ImageFolder::warn_of_losses(unsigned losses, std::int64_t file, std::int64_t count) const {
  static constexpr std::pair<unsigned, const char*> kTexts[] = {
      {ImageFile::kWideGrey, "16-bit grey is cut to 8 bits: values above 255 become white. Divide them by 256 first"},
      {ImageFile::kWideColour, "16-bit values are cut to their upper 8 bits"},
      {ImageFile::kAlpha, "transparency is dropped"},
      {ImageFile::kInks, "CMYK inks become RGB without their colour profile"},
      {ImageFile::kOrientation,
       "orientation tags are ignored, so the picture lies on its side or is mirrored. Turn the pixels first"}};
  const unsigned known = warned_losses_.fetch_or(losses);
  const std::string images = count > 0 ? concat(count, " of ", size(), " images, the first is ") : "as in ";
  for (const auto& [loss, text] : kTexts)
    if ((losses & ~known & loss) != 0 && is_first_rank())
      std::cerr << concat("warning: ", printable(root_.string()), ": ", text, " (", images,
                          printable(path(file).string()), ")\n");
}

std::vector<std::string> ImageFolder::class_names(const fs::path& root) {
  std::vector<std::string> names = list(root).folders;
  std::erase_if(names, is_left_out);
  return names;
}

void require_same_classes(const std::string& subject, const ImageFolder& train, const ImageFolder& val) {
  const auto only = [](const char* part, const ImageFolder& set, const ImageFolder& other) {
    std::vector<std::string> names;
    std::ranges::set_difference(set.classes(), other.classes(), std::back_inserter(names));
    return names.empty() ? "" : concat("; only ", part, " has ", listed(names, "and", 4));
  };
  require<DataError>(train.classes() == val.classes(), subject, ": train has ", train.classes().size(),
                     " classes and val ", val.classes().size(), ", expected the same directories in both",
                     only("train", train, val), only("val", val, train));
}

void ImageFolder::add_class(const std::string& name, std::vector<std::string>& left_out) {
  std::map<std::string, std::vector<std::string>> folders;
  std::vector<FolderId> around;
  walk(root_, name, around, folders, left_out);
  for (const auto& [folder, files] : folders) {
    for (const std::string& file : files) {
      names_ += folder + '/' + file;
      ends_.push_back(names_.size());
      labels_.push_back(static_cast<std::int32_t>(begins_.size()) - 1);
    }
  }
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  check({&index, 1});
  return labels_[static_cast<std::size_t>(index)];
}

std::uint64_t ImageFolder::data_hash() const {
  std::uint64_t hash = labels_.size();
  for (const std::int32_t label : labels_) hash = mixed(hash, static_cast<std::uint64_t>(label));
  for (std::size_t begin = 0; begin < names_.size(); begin += sizeof(std::uint64_t)) {  // there can be many
    std::uint64_t letters = 0;
    std::memcpy(&letters, names_.data() + begin, std::min(sizeof letters, names_.size() - begin));
    hash = mixed(hash, letters);
  }
  return hash;
}

fs::path ImageFolder::path(std::int64_t index) const {
  check({&index, 1});
  return root_ / name_of(index);
}

std::string_view ImageFolder::name_of(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
  return std::string_view(names_).substr(begin, ends_[at] - begin);
}

std::vector<std::string> ImageFolder::broken() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& entry : broken_) all.push_back(entry.second);
  return all;
}

View ImageFolder::view_of(std::int64_t width, std::int64_t height, std::int64_t epoch, std::int64_t index) const {
  if (const auto* const random = std::get_if<RandomResizedCrop>(&options_.transform))
    return data::view_of(*random, width, height, epoch, index);
  return data::view_of(std::get<ResizeCentreCrop>(options_.transform), width, height);
}

void ImageFolder::make_sample(Workspace& work, std::int64_t file, std::int64_t epoch, std::int64_t index,
                              float* out) const {
  const auto image = ImageFile::open(work.content, path(file).string());
  if (const unsigned losses = ImageFile::losses_of(work.content)) warn_of_losses(losses, file, 0);
  View view = view_of(image->width(), image->height(), epoch, index);
  if (options_.scaled_decoding) {
    int divisor = 8;
    while (divisor > 1 && (view.crop.width < divisor * view.width || view.crop.height < divisor * view.height))
      divisor /= 2;
    view.crop = shrunk(view.crop, image->shrink(divisor));
  }
  image->read(work.resizer.prepare(view), work.pixels);
  const std::uint8_t* const bytes = work.resizer.run(work.pixels);
  const std::int64_t step = view.mirrored ? -3 : 3, plane = side_ * side_;
  for (std::int64_t y = 0; y < side_; ++y) {
    const std::uint8_t* pixel = bytes + 3 * (y * side_ + (view.mirrored ? side_ - 1 : 0));
    for (float* const end = out + side_; out < end; ++out, pixel += step) {
      for (std::int64_t c = 0; c < 3; ++c) out[c * plane] = normalisers_[static_cast<std::size_t>(c)](pixel[c]);
    }
  }
}

bool ImageFolder::try_sample(Workspace& work, std::int64_t file, std::int64_t epoch, std::int64_t index,
                             float* out) const {
  {
    const std::lock_guard lock(mutex_);
    if (broken_.contains(file)) return false;
  }
  read_content(path(file), work.content);
  try {
    make_sample(work, file, epoch, index, out);
    return true;
  } catch (const DataError& error) {
    if (!options_.skip_broken) throw;
    std::unique_lock lock(mutex_);
    const bool is_new = broken_.emplace(file, error.what()).second;
    lock.unlock();  // the callback may call broken()
    if (is_new) warn(options_, error.what());
    return false;
  }
}

void ImageFolder::fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                                 const Tensor& labels) const {
  check(*this, indices, samples, labels);
  if (current_epoch() > 0 && current_epoch() != epoch && std::holds_alternative<RandomResizedCrop>(options_.transform))
    std::call_once(warned_, [&] {
      if (!is_first_rank()) return;
      std::cerr << concat("warning: ", printable(root_.string()), ": the loader is in epoch ", current_epoch(),
                          ", but a data set between fetches the random crops of epoch ", epoch,
                          ": pass the epoch on, or derive the set from data::DatasetWrapper\n");
    });
  Workspace work;
  float* out = samples.data<float>();
  for (std::size_t row = 0; row < indices.size(); ++row, out += 3 * side_ * side_) {
    const std::int64_t index = indices[row], of = label(index);
    const std::int64_t begin = begins_[static_cast<std::size_t>(of)];
    const std::int64_t count = begins_[static_cast<std::size_t>(of) + 1] - begin;
    std::int64_t tried = 0;
    while (tried < count && !try_sample(work, begin + (index - begin + tried) % count, epoch, index, out)) ++tried;
    require<DataError>(tried < count, (root_ / classes_[static_cast<std::size_t>(of)]).string(), ": all ", count,
                       " images of this class are broken");
    if (labels.defined()) labels.data<std::int64_t>()[row] = of;
  }
}

}  // namespace duet::data
