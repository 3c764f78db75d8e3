#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/data/mnist/idx.h"
#include "lib/data/mnist/mnist.h"
#include "lib/error.h"
#include "tests/data/files.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;
using duet_test::Bytes;
using duet_test::ContainsSubstring;
using duet_test::TemporaryFolder;
using duet_test::write_file;

namespace {

/// Nothing of the machine's own data is seen.
MnistOptions in(const TemporaryFolder& folder) {
  return {.environment = "",
          .here = folder.path(),
          .cache = folder / "cache",
          .packaged = folder / "packaged",
          .home = folder / "home"};
}

MnistOptions with_data(const TemporaryFolder& folder, const std::string& data) {
  MnistOptions options = in(folder);
  options.data = data;
  return options;
}

}  // namespace

TEST_CASE("a folder with the four files, or mnist inside it, packed or not") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "plain", false);
  duet_test::write_small_mnist(folder / "packed/mnist", true);
  for (const char* const name : {"plain", "packed"}) {
    const Mnist data = load_mnist(with_data(folder, (folder / name).string()));
    CHECK(data.train.size() == 5);
    CHECK(data.test.size() == 3);
    CHECK(!data.drawn);
    CHECK(data.train.images().shape() == Shape{5, 1, 28, 28});
    CHECK(data.train.labels().data<std::int64_t>()[4] == 4);
  }
  CHECK(load_mnist(with_data(folder, (folder / "packed").string())).origin ==
        "MNIST, 5 + 3 images from " + (folder / "packed/mnist").string());
}

TEST_CASE("the named folder before $DUET_DATA before ./data before the cache") {
  const TemporaryFolder folder;
  MnistOptions options = in(folder);
  const auto origin = [&] {
    MnistOptions few = options;  // so that drawn digits are quick
    few.train_images = few.test_images = 2;
    return load_mnist(few).origin;
  };
  CHECK(origin() == "drawn digits, because no MNIST was found (2 + 2 images)");
  duet_test::write_small_mnist(folder / "cache/mnist", false);
  CHECK_THAT(origin(), ContainsSubstring((folder / "cache/mnist").string()));
  duet_test::write_small_mnist(folder / "data/mnist", false);
  CHECK_THAT(origin(), ContainsSubstring((folder / "data/mnist").string()));
  duet_test::write_small_mnist(folder / "other", false);
  options.environment = (folder / "other").string();
  CHECK_THAT(origin(), ContainsSubstring((folder / "other").string()));
  duet_test::write_small_mnist(folder / "given", false);
  options.data = (folder / "given").string();
  CHECK_THAT(origin(), ContainsSubstring((folder / "given").string()));
  options.data = "synthetic";
  CHECK(origin() == "drawn digits, as asked (2 + 2 images)");
}

TEST_CASE("a folder that the user named must hold a complete set") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "half", false);
  std::filesystem::remove(folder / "half/train-labels-idx1-ubyte");
  std::filesystem::remove(folder / "half/t10k-images-idx3-ubyte");
  duet_test::write_small_mnist(folder / "data", false);  // never a silent substitute
  CHECK_THROWS_WITH(
      load_mnist(with_data(folder, (folder / "half").string())),
      !ContainsSubstring("--data") && ContainsSubstring("half lacks train-labels-idx1-ubyte, t10k-images-idx3-ubyte"));
  MnistOptions options = in(folder);
  options.environment = (folder / "half").string();
  CHECK_THROWS_WITH(load_mnist(options), ContainsSubstring("$DUET_DATA"));
  CHECK_THROWS_WITH(load_mnist(with_data(folder, (folder / "absent").string())), ContainsSubstring("is not a folder"));
}

TEST_CASE("a complete set in the folder itself comes before its sub-folder, an incomplete one after") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder.path(), false);
  duet_test::write_small_mnist(folder / "mnist", false);
  CHECK(find_mnist(folder.path(), MnistKind::mnist).folder == folder.path());
  std::filesystem::remove(folder / "t10k-labels-idx1-ubyte");
  CHECK(find_mnist(folder.path(), MnistKind::mnist).folder == folder / "mnist");
}

TEST_CASE("drawn test images are not the training images") {
  const TemporaryFolder folder;
  MnistOptions options = with_data(folder, "synthetic");
  options.train_images = options.test_images = 10;
  const Mnist data = load_mnist(options);
  const auto train = data.train.images().span<std::uint8_t>(), test = data.test.images().span<std::uint8_t>();
  CHECK(!std::equal(train.begin(), train.end(), test.begin()));
}

TEST_CASE("an incomplete set in a usual place is mentioned") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "data", false);
  std::filesystem::remove(folder / "data/t10k-labels-idx1-ubyte");
  MnistOptions options = in(folder);
  options.train_images = options.test_images = 2;
  CHECK_THAT(load_mnist(options).origin,
             ContainsSubstring("no MNIST was found (" + (folder / "data").string() + " lacks t10k-labels-idx1-ubyte)"));
}

TEST_CASE("a set is found where other programs leave it, under their names") {
  const TemporaryFolder folder;
  struct Case {
    const char* place;
    MnistKind kind;
  };
  for (const auto& [place, kind] :
       {Case{"data/MNIST/raw", MnistKind::mnist}, Case{"data/FashionMNIST/raw", MnistKind::fashion_mnist},
        Case{"MNIST/raw", MnistKind::mnist}, Case{"home/.keras/datasets/fashion-mnist", MnistKind::fashion_mnist}}) {
    CAPTURE(place);
    duet_test::write_small_mnist(folder / place, kind == MnistKind::fashion_mnist);
    MnistOptions options = in(folder);
    options.train_images = options.test_images = 2;
    for (const MnistKind other : {MnistKind::mnist, MnistKind::fashion_mnist}) {
      options.kind = other;
      CHECK(load_mnist(options).drawn == (other != kind));
      CHECK(find_mnist(folder / place, other).complete() == (other == kind));
    }
    std::filesystem::remove_all(folder / place);
  }
  duet_test::write_small_mnist(folder / "data", true);
  for (const std::string name : kMnistFiles) {
    std::string dotted = name;
    dotted[name.find("-idx")] = '.';
    std::filesystem::rename(folder / ("data/" + name + ".gz"), folder / ("data/" + dotted + ".gz"));
  }
  CHECK_FALSE(load_mnist(in(folder)).drawn);
  MnistOptions beside = in(folder);  // as PyTorch's examples, which store it in ../data
  beside.here = folder / "examples";
  std::filesystem::create_directory(beside.here);
  CHECK_FALSE(load_mnist(beside).drawn);
  const std::string first = "train-images.idx3-ubyte.gz";  // unpacked into a folder of its name
  std::filesystem::rename(folder / ("data/" + first), folder / "moved");
  std::filesystem::create_directory(folder / ("data/" + first));
  std::filesystem::rename(folder / "moved", folder / ("data/" + first + "/" + first));
  CHECK_FALSE(load_mnist(in(folder)).drawn);
}

TEST_CASE("files of the set in formats that are not read are named") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "home/.cache/huggingface/hub/datasets--ylecun--mnist");
  const std::string npz = (folder / "home/.keras/datasets/mnist.npz").string();
  std::filesystem::create_directories(folder / "home/.keras/datasets");
  const std::string zip = "PK\3\4" + std::string(22, '\0') + std::string("\x0a\0\0\0", 4) + "x_test.npy";
  write_file(npz, Bytes(zip.begin(), zip.end()));
  MnistOptions options = in(folder);
  options.train_images = options.test_images = 2;
  CHECK_THAT(load_mnist(options).origin,
             ContainsSubstring("found " + npz + ", a NumPy archive") && ContainsSubstring("datasets--ylecun--mnist"));
  options.data = (folder / "home/.keras/datasets").string();
  CHECK_THROWS_WITH(load_mnist(options), ContainsSubstring("found " + npz + ", a NumPy archive") &&
                                             ContainsSubstring(", but has mnist.npz"));
  options.data = npz;
  CHECK_THROWS_WITH(load_mnist(options),
                    ContainsSubstring("is a NumPy archive (.npz); expected a folder with the four"));
  options.kind = MnistKind::fashion_mnist;
  options.data.clear();
  CHECK_THAT(load_mnist(options).origin, !ContainsSubstring("(found "));
}

TEST_CASE("sets whose files do not fit each other") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder.path(), false);
  write_file(folder / "train-labels-idx1-ubyte", duet_test::idx_labels(4));
  CHECK_THROWS_WITH(load_mnist(with_data(folder, folder.path().string())),
                    ContainsSubstring("train-labels-idx1-ubyte: field 'number of labels' is 4, expected 5") &&
                        ContainsSubstring("train-images-idx3-ubyte"));
  write_file(folder / "train-images-idx3-ubyte", duet_test::idx({2051, 1, 2, 28}, Bytes(56)));
  CHECK_THROWS_WITH(load_mnist(with_data(folder, folder.path().string())),
                    ContainsSubstring("images are 2 x 28, expected 28 x 28"));
  write_file(folder / "train-images-idx3-ubyte", duet_test::idx({2051, 1, 28, 2}, Bytes(56)));
  CHECK_THROWS_WITH(load_mnist(with_data(folder, folder.path().string())),
                    ContainsSubstring("images are 28 x 2, expected 28 x 28"));
}

TEST_CASE("a pipe in place of a file is refused, not waited for") {
  for (const char* const name : kMnistFiles) {
    const TemporaryFolder folder;
    duet_test::write_small_mnist(folder.path(), false);
    std::filesystem::remove(folder / name);
    REQUIRE(::mkfifo((folder / name).c_str(), 0600) == 0);
    CHECK_THROWS_WITH(load_mnist(with_data(folder, folder.path().string())),
                      ContainsSubstring(std::string(name) + ": is not a regular file"));
  }
}

TEST_CASE("only the first images") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder.path(), false);
  MnistOptions options = with_data(folder, folder.path().string());
  options.train_images = 2;
  options.test_images = 100;
  const Mnist data = load_mnist(options);
  CHECK(data.train.size() == 2);
  CHECK(data.test.size() == 3);
  CHECK_THAT(data.origin, ContainsSubstring("2 + 3 images"));
  options.train_images = -1;
  CHECK_THROWS_AS(load_mnist(options), UsageError);
}

TEST_CASE("Fashion-MNIST has its own folder") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "fashion-mnist", true);
  MnistOptions options = with_data(folder, folder.path().string());
  CHECK_THROWS_AS(load_mnist(options), DataError);
  options.kind = MnistKind::fashion_mnist;
  CHECK_THAT(load_mnist(options).origin, ContainsSubstring("Fashion-MNIST, 5 + 3"));
}

TEST_CASE("Fashion-MNIST is found where Debian's package puts it, after the other places") {
  const TemporaryFolder folder;
  MnistOptions options = in(folder);
  options.kind = MnistKind::fashion_mnist;
  duet_test::write_small_mnist(folder / "packaged/fashion-mnist", true);
  CHECK_THAT(load_mnist(options).origin, ContainsSubstring("Fashion-MNIST, 5 + 3") && ContainsSubstring("/packaged/"));
  options.kind = MnistKind::mnist;
  options.train_images = options.test_images = 2;
  CHECK(load_mnist(options).drawn);
  options.data = (folder / "packaged/fashion-mnist/").string();
  CHECK_THROWS_AS(load_mnist(options), DataError);  // not MNIST
  options.data.clear();
  options.kind = MnistKind::fashion_mnist;
  duet_test::write_small_mnist(folder / "data/fashion-mnist", true);
  CHECK_THAT(load_mnist(options).origin, ContainsSubstring("/data/fashion-mnist"));
}

TEST_CASE("a folder named after the other kind is recognised whatever the path to it") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "fashion-mnist", false);
  std::filesystem::create_directory_symlink(folder / "fashion-mnist", folder / "mine");
  for (const char* const path : {"fashion-mnist", "fashion-mnist/", "fashion-mnist/.", "mine", "mine/"}) {
    CAPTURE(path);
    CHECK(find_mnist(folder / path, MnistKind::fashion_mnist).complete());
    CHECK_FALSE(find_mnist(folder / path, MnistKind::mnist).complete());
  }
}

TEST_CASE("MNIST and Fashion-MNIST are normalised by their own mean and deviation, however few images are used") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder / "mnist", false);
  duet_test::write_small_mnist(folder / "fashion-mnist", false);
  for (const std::int64_t count : {0, 2}) {
    MnistOptions options = with_data(folder, folder.path().string());
    options.train_images = options.test_images = count;
    for (const MnistKind kind : {MnistKind::mnist, MnistKind::fashion_mnist}) {
      options.kind = kind;
      const float mean = kind == MnistKind::mnist ? 0.1307f : 0.2860f,
                  deviation = kind == MnistKind::mnist ? 0.3081f : 0.3530f;
      const Mnist data = load_mnist(options);
      for (const ImageDataset* const set : {&data.train, &data.test}) {
        const Tensor sample = empty({1, 1, 28, 28}), label = empty({1}, DType::i64);
        set->fetch(std::vector<std::int64_t>{1}, sample, label);
        const std::uint8_t byte = set->images().data<std::uint8_t>()[784 + 5];
        CAPTURE(count, name(kind));
        CHECK(sample.data<float>()[5] == (static_cast<float>(byte) / 255.0f - mean) / deviation);
      }
    }
  }
}

TEST_CASE("the real MNIST") {
  const auto folder = duet_test::real_mnist();
  if (!folder) DUET_SKIP("no MNIST in $DUET_DATA or shared/data");
  const Mnist data = read_mnist(find_mnist(*folder, MnistKind::mnist), MnistKind::mnist);
  CHECK_THAT(data.origin, ContainsSubstring("60,000 + 10,000 images"));
  const auto pixels = data.train.images().span<std::uint8_t>();
  Bytes file = duet_test::idx({2051, 60000, 28, 28}, Bytes(pixels.begin(), pixels.end()));
  CHECK(sha256_hex(std::as_bytes(std::span(file))) ==
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db");
  const std::int64_t* const labels = data.train.labels().data<std::int64_t>();
  CHECK(std::vector<std::int64_t>(labels, labels + 5) == std::vector<std::int64_t>{5, 0, 4, 1, 9});
}
