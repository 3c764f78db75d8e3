// Networks for colour images, by the program: what they train on, and the bits of one and two devices.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "compare/report/report.h"
#include "compare/results.h"
#include "lib/data/images/drawn_images.h"
#include "lib/data/images/image_file.h"
#include "lib/error.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "tests/support/precision.h"

using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

namespace fs = std::filesystem;

std::vector<std::string> small(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), {"--model", "resnet18", "--stem", "cifar", "--image-size", "8", "--batch", "4",
                                     "--train-images", "8", "--test-images", "4"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// A folder with train and val of two classes, three images each.
void write_folder(const fs::path& root) {
  const duet::data::DrawnImages drawn({.classes = 2, .size = 16, .count = 6});
  for (const char* const part : {"train", "val"})
    for (std::int64_t i = 0; i < drawn.size(); ++i) {
      const fs::path folder = root / part / duet::concat("class", drawn.label(i));
      fs::create_directories(folder);
      const std::vector<std::uint8_t> bytes = duet::data::encode_jpeg(drawn.draw(i));
      write_output((folder / duet::concat(i, ".jpg")).string(), std::string(bytes.begin(), bytes.end()));
    }
}

}  // namespace

TEST_CASE("a network with synchronised batch norm ends with the same bits on one and two devices") {
  const TemporaryFolder folder;
  const std::string result = folder.path() + "/result";
  std::vector<std::string> hashes;
  for (const std::string mode : {"single", "dp", "ddp"}) {
    const std::string devices = mode == "single" ? "1" : "2";
    const auto ran = duet_test::duet(
        small({"train"}, {"--mode", mode, "--devices", devices, "--sync-bn", "--epochs", "1", "--result", result}));
    INFO(mode << ": " << ran.err);
    REQUIRE(ran.status == 0);
    CHECK_THAT(ran.out, ContainsSubstring("network: resnet18, 11,173,962 parameters (44.7 MB of gradients)"));
    CHECK_THAT(ran.out, ContainsSubstring("data: drawn images of 10 classes, 8x8: 8 to train, 4 to test"));
    hashes.push_back(duet_test::hash_of(result));
    CHECK(run_from_json(read_file(result)).train_loss.at(0) > 1);  // cross entropy of ten classes, no mean of logits
  }
  CHECK(hashes[1] == hashes[0]);
  CHECK(hashes[2] == hashes[0]);
}

TEST_CASE("a training with synchronised batch norm does not go on without it, nor on other images") {
  const TemporaryFolder folder;
  const std::vector<std::string> run = {"--checkpoint", folder.path(), "--epochs", "1", "--sync-bn"};
  REQUIRE(duet_test::duet(small({"train"}, run)).status == 0);
  const auto other = duet_test::duet(small({"train"}, {"--resume", folder.path(), "--epochs", "2"}));
  CHECK(other.status == 1);
  CHECK_THAT(other.err, ContainsSubstring("is of a run with sync_bn on, this run has off"));
  const auto images = duet_test::duet(
      small({"train"}, {"--resume", folder.path(), "--epochs", "2", "--sync-bn", "--data", "synthetic:seed=9"}));
  CHECK(images.status == 1);
  CHECK_THAT(images.err, ContainsSubstring("is of a run with data_hash "));
}

TEST_CASE("ranks with as many other images refuse to train") {
  std::vector<std::string> arguments = {"launch", "--nproc-per-node", "2", "sh", "-c"};
  arguments.emplace_back("exec \"$0\" \"$@\" --data synthetic:seed=$RANK");
  arguments.emplace_back(std::getenv("DUET_PROGRAM"));
  arguments.insert(arguments.end(), {"train", "--mode", "ddp", "--epochs", "1"});
  const auto ran = duet_test::duet(small(std::move(arguments), {}));
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, ContainsSubstring("the ranks disagree: the data is drawn images of 10 classes, 8x8 with 8 + 4 "
                                        "images, hashes "));
}

TEST_CASE("compare says that plain batch norm has statistics of each device") {
  const TemporaryFolder folder;
  const auto ran = duet_test::duet(small({"compare", "--wide"}, {"--modes", "single,dp", "--devices", "1,2", "--out",
                                                                 folder.path(), "--json", "-", "--time-budget", "0"}));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Results results = results_from_json(ran.out);
  CHECK(results.parameters == 11'173'962);
  CHECK(results.settings.model == "resnet18");
  const Run* const one = find_run(results, "dp", 1);
  const Run* const two = find_run(results, "dp", 2);
  REQUIRE((one && two));
  CHECK(same_result(results, *one) == "yes");
  CHECK(two->per_device_statistics);
  CHECK(same_result(results, *two) == "per-device statistics");
}

TEST_CASE("a folder of images is trained on, with workers too, and its classes are the network's outputs") {
  if (!duet::data::has_image_codecs()) DUET_SKIP("built without images");
  const TemporaryFolder folder;
  write_folder(folder.path());
  const std::string result = folder.path() + "/result";
  std::vector<std::string> hashes;
  for (const std::string workers : {"0", "2"}) {
    const auto ran = duet_test::duet(
        small({"train"}, {"--data", folder.path(), "--loader-workers", workers, "--epochs", "1", "--result", result}));
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    CHECK_THAT(ran.out, ContainsSubstring("resnet18, 11,169,858 parameters"));
    CHECK_THAT(ran.out, ContainsSubstring("image folder of 2 classes, 8x8, 6 to train, 4 to test"));
    hashes.push_back(duet_test::hash_of(result));
  }
  CHECK(hashes[0] == hashes[1]);
  write_output(folder.path() + "/train/class1/1.jpg", "no image");
  const std::vector<std::string> again = {"--data", folder.path(), "--epochs", "1"};
  const auto broken = duet_test::duet(small({"train"}, again));
  CHECK(broken.status == 1);
  CHECK_THAT(broken.err,
             ContainsSubstring("1 file is neither a JPEG nor a PNG image") && ContainsSubstring("class1/1.jpg"));
  const auto skipped = duet_test::duet(small({"train", "--skip-broken"}, again));
  CHECK(skipped.status == 0);
  CHECK_THAT(skipped.err, ContainsSubstring("duet: skipped: ") &&
                              ContainsSubstring("1 file is neither a JPEG nor a PNG image") &&
                              ContainsSubstring("class1/1.jpg"));
}

TEST_CASE("a network in a file is compared, with the same bits in all modes") {
  const TemporaryFolder folder;
  const std::string file = std::getenv("DUET_NETWORK");
  const auto ran =
      duet_test::duet({"compare",       "--wide", "--model",        file,          "--modes",       "single,dp,ddp",
                       "--devices",     "1,2",    "--train-images", "8",           "--test-images", "4",
                       "--batch",       "4",      "--out",          folder.path(), "--json",        "-",
                       "--time-budget", "0"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Results results = results_from_json(ran.out);
  CHECK(results.settings.model == file);
  for (const std::string mode : {"dp", "ddp"}) {
    const Run* const run = find_run(results, mode, 2);
    REQUIRE(run != nullptr);
    CHECK(same_result(results, *run) == "yes");
  }
  const auto missing = duet_test::duet({"train", "--model", folder.path() + "/none.so"});
  CHECK(missing.status == 1);
  CHECK_THAT(missing.err, ContainsSubstring("/none.so: no such file, expected a shared object"));
}

TEST_CASE("data that a network cannot take is an error of one line") {
  const TemporaryFolder folder;
  const auto complaint = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"train"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto ran = duet_test::duet(arguments);
    CHECK(ran.status != 0);
    return ran.err;
  };
  CHECK_THAT(complaint({"--model", "resnet18", "--image-size", "32", "--data", "synthetic:size=64"}),
             ContainsSubstring("--data draws images of size 64, but resnet18 takes 32"));
  CHECK_THAT(complaint({"--model", "resnet18", "--classes", "3", "--data", "synthetic:classes=5"}),
             ContainsSubstring("resnet18 has 3 outputs, but the data has 5 classes"));
  CHECK_THAT(complaint({"--model", "resnet18", "--data", folder.path()}), ContainsSubstring("has no folder train"));
  CHECK_THAT(complaint({"--model", "resnet18", "--data", "synthetic-images"}),
             ContainsSubstring("--data synthetic-images: has no folder train"));
  CHECK_THAT(complaint({"--data", "synthetic:classes=5"}),
             ContainsSubstring("--data is synthetic:classes=5, but simple_cnn takes MNIST"));
  CHECK_THAT(complaint({"--model", "alexnet", "--sync-bn"}), ContainsSubstring("AlexNet has one stem, no batch norm"));
  CHECK_THAT(complaint({"--image-size", "64"}),
             ContainsSubstring("--image-size is 64, but simple_cnn takes images of 28x28"));
  CHECK_THAT(complaint({"--skip-broken"}), ContainsSubstring("--skip-broken is for a folder of images"));
}

TEST_CASE("bf16 that changes nothing of a network, or that oneDNN lacks, is an error") {
  if (!duet_test::machine_has_bf16()) DUET_SKIP("this machine has no instructions for bf16");
  const std::vector<std::string> linear = {"train", "--model", "linear",    "--train-images", "8", "--test-images",
                                           "4",     "--data",  "synthetic", "--batch",        "4", "--precision",
                                           "bf16"};
  for (const std::string mode : {"single", "dp", "ddp"}) {
    std::vector<std::string> arguments = linear;
    arguments.insert(arguments.end(), {"--mode", mode, "--devices", mode == "single" ? "1" : "2"});
    const auto ran = duet_test::duet(arguments);
    INFO(mode << ": " << ran.err);
    CHECK(ran.status != 0);
    CHECK_THAT(ran.err, ContainsSubstring("--precision bf16 changes nothing in linear: CPU devices round"));
  }
  const auto resnet = small({"train"}, {"--precision", "bf16", "--epochs", "1"});
  const auto ran = duet_test::duet(resnet);
  INFO(ran.err);
  CHECK(ran.status == 0);
  const auto limited = duet_test::duet(resnet, [] { return ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", 1) == 0; });
  CHECK(limited.status == 2);
  CHECK_THAT(limited.err, ContainsSubstring("precision bf16 on CPU, but oneDNN does not use"));
}
