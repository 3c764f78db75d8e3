#include "cli/train/find_images.h"

#include <cstdint>
#include <cstdio>
#include <utility>

#include "cli/system/number_text.h"
#include "cli/system/terminal.h"
#include "lib/data/mnist/mnist.h"
#include "lib/data/resident_images.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

/// "fetching train-images-idx3-ubyte.gz  4,816,896 of 9,912,422 bytes", rewritten, on a terminal.
void show_download(const std::string& file, std::uint64_t done, std::uint64_t total, TerminalStyle style) {
  if (!style.rewrite) return;
  const std::string all = total > 0 ? " of " + grouped(static_cast<std::int64_t>(total)) : "";
  std::fprintf(stderr, "\r\x1b[Kfetching %s  %s%s bytes", file.c_str(),
               grouped(static_cast<std::int64_t>(done)).c_str(), all.c_str());
  if (total > 0 && done == total) std::fputs("\r\x1b[K", stderr);
}

std::shared_ptr<const data::Dataset> on_device(data::ImageDataset set, Device device) {
  if (device.kind == DeviceKind::cpu) return std::make_shared<data::ImageDataset>(std::move(set));
  return std::make_shared<data::ResidentImages>(set, device);
}

}  // namespace

void require_data(const Training& options) {
  try {
    data::require_mnist({.data = options.data});
  } catch (const DataError& error) {
    throw DataError(concat(options.data.empty() ? "" : "--data ", error.what()));
  }
}

Images find_images(const Training& options, Device device) {
  require_data(options);
  const TerminalStyle style = terminal_style(stderr, options.quiet);
  data::MnistOptions mnist{.data = options.data, .download = options.download};
  mnist.progress = [style](const std::string& file, std::uint64_t done, std::uint64_t total) {
    show_download(file, done, total, style);
  };
  mnist.train_images = options.train_images;
  mnist.test_images = options.test_images;
  data::Mnist found = data::load_mnist(mnist);
  Images images;
  images.description = found.origin;
  if (found.drawn && options.data.empty()) images.description += "; --data DIR uses yours";
  images.name = found.drawn ? "drawn digits" : data::name(mnist.kind);
  images.train = on_device(std::move(found.train), device);
  images.test = on_device(std::move(found.test), device);
  return images;
}

}  // namespace duet::cli
