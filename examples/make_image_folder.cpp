// Writes a folder of JPEGs as data::ImageFolder and torchvision's ImageFolder read it: DIR/train/CLASS/*.jpg and
// DIR/val/CLASS/*.jpg. The images are MNIST's (digits drawn by the program where it is not found), Fashion-MNIST's, or
// drawn in colour: "synthetic:classes=100,size=224,train=5000,test=500".
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <duet/lib/data/images/drawn_images.h>
#include <duet/lib/data/images/image_file.h>
#include <duet/lib/data/mnist/mnist.h>
#include <duet/lib/error.h>

#include "program.h"

using namespace duet;

namespace {

constexpr int kQuality = 95;
constexpr const char* kUsage =
    "[DIR [mnist|fashion-mnist|FOLDER|synthetic:FIELDS [TRAIN [VAL]]]]\n"
    "DIR is new or empty. TRAIN and VAL are numbers of images, of MNIST's and Fashion-MNIST's; FIELDS has its own:\n"
    "synthetic:classes=100,size=224,train=5000,test=500";

/// Sample i of `count`.
void write(const std::filesystem::path& folder, std::int64_t count,
           const std::function<data::Pixels(std::int64_t)>& pixels,
           const std::function<std::int64_t(std::int64_t)>& label) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = std::to_string(label(i));
    const std::filesystem::path inside = folder / (std::string(3 - name.size(), '0') + name);
    std::filesystem::create_directories(inside);
    const std::filesystem::path path = inside / (std::to_string(i) + ".jpg");
    const std::vector<std::uint8_t> jpeg = data::encode_jpeg(pixels(i), kQuality);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(jpeg.data()), static_cast<std::streamsize>(jpeg.size()));
    require<DataError>(static_cast<bool>(file.flush()), path.string(), ": cannot be written");
  }
  std::cout << folder.string() << ": " << count << " images" << std::endl;
}

void write_drawn(const std::filesystem::path& folder, const data::DrawnImagesOptions& options) {
  const data::DrawnImages images(options);
  write(
      folder, images.size(), [&](std::int64_t i) { return images.draw(i); },
      [&](std::int64_t i) { return images.label(i); });
}

/// Grey bytes as colours.
void write_grey(const std::filesystem::path& folder, const data::ImageDataset& images) {
  const std::int64_t height = images.images().size(2), width = images.images().size(3);
  const auto pixels = [&](std::int64_t i) {
    data::Pixels colours;
    colours.lay_out({0, 0, width, height});
    const std::uint8_t* const grey = images.images().data<std::uint8_t>() + i * width * height;
    for (std::int64_t at = 0; at < 3 * width * height; ++at) colours.bytes[static_cast<std::size_t>(at)] = grey[at / 3];
    return colours;
  };
  write(folder, images.size(), pixels, [&](std::int64_t i) { return images.labels().data<std::int64_t>()[i]; });
}

void make(const examples::Arguments& arguments) {
  const std::filesystem::path folder = arguments.text(0);
  const std::string source = arguments.text(1);
  require<UsageError>(!folder.empty(), "expected a folder to write to, see --help");
  const bool drawn = source.starts_with("synthetic:");
  require<UsageError>(!drawn || arguments.text(2).empty(), "TRAIN and VAL are not for ", source,
                      ", whose fields train and test are the numbers of images");
  // Images of an earlier run would be among the new ones.
  require<DataError>(!std::filesystem::exists(folder) || std::filesystem::is_empty(folder), folder.string(),
                     ": is not empty, expected a new folder or an empty one");
  if (drawn) {
    const data::DrawnSets sets = data::parse_drawn_images(source);
    write_drawn(folder / "train", sets.train);
    write_drawn(folder / "val", sets.test);
    return;
  }
  data::MnistOptions options;
  options.kind = source == "fashion-mnist" ? data::MnistKind::fashion_mnist : data::MnistKind::mnist;
  if (source != "fashion-mnist" && source != "mnist") options.data = source;
  options.train_images = arguments.number(2, 0, 60'000);
  options.test_images = arguments.number(3, 0, 10'000);
  const data::Mnist mnist = data::load_mnist(options);
  std::cout << mnist.origin << std::endl;
  write_grey(folder / "train", mnist.train);
  write_grey(folder / "val", mnist.test);
}

}  // namespace

int main(int argc, char** argv) { return examples::run(argc, argv, kUsage, make); }
