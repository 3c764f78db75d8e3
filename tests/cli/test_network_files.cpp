// Networks in shared objects: what loads, and what every mistake is called.
#include <cstdlib>
#include <string>

#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/nn/network_module.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"
#include "train/options/options.h"
#include "train/setup.h"
#include "train/system/files.h"

using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

std::string file(const std::string& name) {
  return duet::concat(std::getenv("DUET_NETWORK_FILES"), "/network_", name, ".so");
}

Training training(const std::string& name) {
  Training options;
  options.model = file(name);
  options.data = "synthetic";
  return options;
}

}  // namespace

TEST_CASE("a network in a file is made, and has the weights that its seed draws") {
  const Training options = training("none");
  const ChosenNetwork chosen = chosen_network(options);
  CHECK(chosen.arch == "network_none");
  CHECK(chosen.sample_shape == duet::Shape{1, 28, 28});
  CHECK(chosen.gives_log_probabilities);
  CHECK(classes_of_data(options) == 10);
  Training named;
  named.model = "linear";
  const auto network = make_network(options, 10), same = make_network(named, 10);
  CHECK(network->str() == same->str());
  const duet::nn::FlatParameters &a = network->parameters(), &b = same->parameters();
  REQUIRE(a.slot_count() == b.slot_count());
  CHECK(a.value(0).span<float>()[77] == b.value(0).span<float>()[77]);
}

TEST_CASE("drawn images are of as many classes as --classes") {
  Training options;
  options.model = "resnet18";
  CHECK(classes_of_data(options) == 10);
  options.classes = 3;
  CHECK(classes_of_data(options) == 3);
}

TEST_CASE("mistakes of a network's file are errors that name it") {
  const auto load = [](const std::string& name) { return chosen_network(training(name)); };
  CHECK_THROWS_WITH(load("other_version"),
                    ContainsSubstring(duet::concat("network_other_version.so: was built against duet ",
                                                   "0.0.9, this is duet ", duet::nn::kVersion)));
  CHECK_THROWS_WITH(load("other_name"), ContainsSubstring("network_other_name.so: exports no function duet_network"));
  CHECK_THROWS_WITH(load("gives_nothing"), ContainsSubstring("gives nothing"));
  CHECK_THROWS_WITH(load("no_shape"), ContainsSubstring("expected (channels, rows, columns)"));
  CHECK_THROWS_WITH(load("missing"), ContainsSubstring("network_missing.so: no such file"));
  const TemporaryFolder folder;
  Training text;
  text.model = folder.path() + "/text.so";
  duet::write_atomically(text.model, "no ELF file, but longer than the header of one, so that it is read as one is.\n");
  CHECK_THROWS_WITH(chosen_network(text), ContainsSubstring("text.so: "));
  text.model = folder.path();
  CHECK_THROWS_WITH(chosen_network(text), ContainsSubstring("expected a shared object"));
  Training synchronised = training("none");
  synchronised.sync_bn = true;
  CHECK_THROWS_AS(chosen_network(synchronised), duet::UsageError);
}

TEST_CASE("the shape of a TorchScript file's images is three sizes") {
  CHECK(input_shape("3x224x224") == duet::Shape{3, 224, 224});
  for (const char* const wrong : {"", "3", "3x4", "3x4x", "3x4x5x6", "0x4x4", "3x4x-4", "3x4x4097", "3 x4x4"}) {
    CAPTURE(wrong);
    CHECK_FALSE(input_shape(wrong));
  }
}

TEST_CASE("a TorchScript file must exist, and --input is for one only") {
  Training options;
  options.model = "no/such.pt";
  CHECK_THROWS_WITH(chosen_network(options), ContainsSubstring("no/such.pt: no such file, expected TorchScript"));
  options = training("none");
  options.input = "3x8x8";
  CHECK_THROWS_WITH(chosen_network(options), ContainsSubstring("--input is for a TorchScript file, not "));
  options.model = "resnet18";
  CHECK_THROWS_WITH(chosen_network(options), ContainsSubstring("--input is for a TorchScript file, not resnet18"));
}

TEST_CASE("what a file's network throws when it is made is an error that names the file") {
  const auto make = [](const std::string& name) { return make_network(training(name), 10); };
  CHECK_THROWS_WITH(make("throws"), ContainsSubstring("network_throws.so: its network was not made: no such table"));
  CHECK_THROWS_WITH(make("throws_other"), ContainsSubstring("network_throws_other.so: its network was not made"));
  CHECK_THROWS_WITH(make("throws_own"), ContainsSubstring("this network is for images of 64x64"));
  CHECK_THROWS_WITH(make("makes_nothing"), ContainsSubstring("network_makes_nothing.so: its make() gives no network"));
}
