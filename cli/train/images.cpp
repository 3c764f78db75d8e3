#include "cli/train/images.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/system/number_text.h"
#include "cli/system/terminal.h"
#include "cli/train/setup.h"
#include "lib/data/images/drawn_images.h"
#include "lib/data/images/image_folder.h"
#include "lib/data/mnist/mnist.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

namespace fs = std::filesystem;

/// "fetching train-images-idx3-ubyte.gz  4,816,896 of 9,912,422 bytes", rewritten.
void show_download(const std::string& file, std::uint64_t done, std::uint64_t total) {
  const std::string all = total > 0 ? " of " + grouped(static_cast<std::int64_t>(total)) : "";
  std::fprintf(stderr, "\r\x1b[Kfetching %s  %s%s bytes", file.c_str(),
               grouped(static_cast<std::int64_t>(done)).c_str(), all.c_str());
  if (total > 0 && done == total) std::fputs("\r\x1b[K", stderr);
}

std::shared_ptr<const data::Dataset> on_device(data::ImageDataset set, Device device) {
  if (device.kind == DeviceKind::cpu) return std::make_shared<data::ImageDataset>(std::move(set));
  return std::make_shared<data::ResidentImages>(set, device);
}

void require_mnist(const Training& options) {
  require<UsageError>(!options.skip_broken, "--skip-broken is for a folder of images");
  require<UsageError>(!data::names_drawn_images(options.data) || options.data == "synthetic", "--data is ",
                      options.data, ", but ", options.model, " takes MNIST, for which synthetic has no fields");
  try {
    data::require_mnist({.data = options.data});
  } catch (const DataError& error) {
    throw DataError(concat(options.data.empty() ? "" : "--data ", error.what()));
  }
}

Images find_mnist(const Training& options, Device device) {
  const bool shown = terminal_style(stderr, options.quiet).rewrite;
  data::Mnist found = data::load_mnist({.data = options.data,
                                        .download = options.download,
                                        .progress = shown ? show_download : data::DownloadProgress(),
                                        .train_images = options.train_images,
                                        .test_images = options.test_images});
  return {.train = on_device(std::move(found.train), device),
          .test = on_device(std::move(found.test), device),
          .name = found.drawn ? "drawn digits" : data::name(data::MnistKind::mnist),
          .description = found.origin + (found.drawn && options.data.empty() ? "; --data DIR uses yours" : "")};
}

void require_colour(const Training& options, const ChosenNetwork& network) {
  const Shape& shape = network.sample_shape;
  require<UsageError>(shape.rank() == 3 && shape[0] == 3 && shape[1] == shape[2], options.model, " takes samples ",
                      shape, ", expected (1, 28, 28) of MNIST or (3, n, n) of colour images");
  require<UsageError>(!options.download, "--download fetches MNIST, which ", options.model, " does not take");
}

bool is_drawn(const Training& options) { return options.data.empty() || data::names_drawn_images(options.data); }

std::int64_t limited(std::int64_t count, std::int64_t limit) { return limit > 0 ? std::min(count, limit) : count; }

data::DrawnSets drawn_sets(const Training& options, const ChosenNetwork& network) {
  const std::int64_t side = network.sample_shape[1];
  std::string text = options.data.empty() ? "synthetic" : options.data;
  const auto preset = [&](const std::string& field, std::int64_t value) {
    if (text.find(field + "=") == std::string::npos)
      text += concat(text.find(':') == std::string::npos ? ":" : ",", field, "=", value);
  };
  preset("size", side);
  const std::int64_t classes = options.classes > 0 ? options.classes : network.classes;
  if (classes > 0) preset("classes", classes);
  data::DrawnSets sets;
  try {
    sets = data::parse_drawn_images(text);
  } catch (const UsageError& error) {
    throw UsageError(concat("--data: ", error.what()));
  }
  require<UsageError>(sets.train.size == side, "--data draws images of size ", sets.train.size, ", but ", options.model,
                      " takes ", side, "; --image-size changes that");
  sets.train.count = limited(sets.train.count, options.train_images);
  sets.test.count = limited(sets.test.count, options.test_images);
  return sets;
}

Images draw_images(const Training& options, const data::DrawnSets& sets) {
  const std::int64_t side = sets.train.size;
  const std::string name = concat("drawn images of ", sets.train.classes, " classes, ", side, "x", side);
  return {.train = std::make_shared<data::DrawnImages>(sets.train),
          .test = std::make_shared<data::DrawnImages>(sets.test),
          .classes = sets.train.classes,
          .name = name,
          .description = concat(name, ": ", grouped(sets.train.count), " to train, ", grouped(sets.test.count),
                                " to test", options.data.empty() ? "; --data DIR uses yours" : "")};
}

/// Its first argument is a folder of images; at most `most` of them, evenly spread over its classes.
std::shared_ptr<const data::Dataset> spread(std::shared_ptr<const data::Dataset> all, std::int64_t most) {
  if (most == 0 || most >= all->size()) return all;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(most));
  for (std::int64_t i = 0; i < most; ++i)
    indices[static_cast<std::size_t>(i)] = i * (all->size() / most) + i * (all->size() % most) / most;
  auto* const part = new data::Subset(*all, std::move(indices));
  return std::shared_ptr<const data::Dataset>(part, [all = std::move(all)](const data::Subset* set) { delete set; });
}

void require_folders(const Training& options) {
  for (const char* const part : {"train", "val"}) {
    std::error_code error;
    require<DataError>(fs::is_directory(fs::path(options.data) / part, error), "--data ", options.data,
                       ": has no folder ", part, "; ", options.model,
                       " takes a folder with train and val, each with a folder of images for each class, or synthetic");
  }
}

Images read_folder(const Training& options, std::int64_t side) {
  const fs::path root = options.data;
  data::ImageFolderOptions reading{.transform = data::RandomResizedCrop{.size = side, .seed = options.seed},
                                   .skip_broken = options.skip_broken};
  const auto train = std::make_shared<data::ImageFolder>(root / "train", reading);
  // As 256 to 224 of torchvision's evaluation.
  reading.transform = data::ResizeCentreCrop{.resize = side * 256 / 224, .size = side};
  const auto test = std::make_shared<data::ImageFolder>(root / "val", reading);
  require<DataError>(train->classes() == test->classes(), "--data ", options.data, ": train has ",
                     train->classes().size(), " classes and val ", test->classes().size(),
                     ", expected the same folders in both");
  Images images{.train = spread(train, options.train_images),
                .test = spread(test, options.test_images),
                .classes = static_cast<std::int64_t>(train->classes().size()),
                .name = concat("image folder of ", train->classes().size(), " classes, ", side, "x", side),
                .description = ""};
  images.description = concat(options.data, ": ", images.name, ", ", grouped(images.train->size()), " to train, ",
                              grouped(images.test->size()), " to test");
  return images;
}

/// Returns what is drawn, of images that are.
std::optional<data::DrawnSets> require_data(const Training& options, const ChosenNetwork& network) {
  if (network.is_for_mnist()) {
    require_mnist(options);
    return std::nullopt;
  }
  require_colour(options, network);
  if (!is_drawn(options)) {
    require_folders(options);
    return std::nullopt;
  }
  require<UsageError>(!options.skip_broken, "--skip-broken is for a folder of images");
  return drawn_sets(options, network);
}

}  // namespace

std::string hash_text(const data::Dataset& set) {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(set.data_hash()));
  return text;
}

void require_data(const Training& options) { require_data(options, chosen_network(options)); }

Images find_images(const Training& options, Device device) {
  const ChosenNetwork network = chosen_network(options);
  const std::optional<data::DrawnSets> drawn = require_data(options, network);
  if (network.is_for_mnist()) return find_mnist(options, device);
  return drawn ? draw_images(options, *drawn) : read_folder(options, network.sample_shape[1]);
}

std::int64_t classes_of_data(const Training& options) {
  const ChosenNetwork network = chosen_network(options);
  const std::optional<data::DrawnSets> drawn = require_data(options, network);
  if (network.is_for_mnist()) return 10;
  if (drawn) return drawn->train.classes;
  std::int64_t classes = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(options.data) / "train")) classes += entry.is_directory();
  return classes;
}

}  // namespace duet::cli
