// torchvision's networks: sizes, texts, names, initial weights and three steps of training, as torchvision 0.29 with
// PyTorch 2.15 gives them. Where a width is given, torchvision's own code made the network with the channels of all its
// hidden layers multiplied by width / 64.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/nn/alexnet_vgg.h"
#include "lib/nn/networks.h"
#include "lib/nn/resnet.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;
using namespace duet_test;
using duet_test::Approx;

namespace {

std::string text_digest(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

/// Digest of the names of the state, one a line.
std::string names_digest(Module& model) {
  std::string names;
  for (const NamedTensor& one : model.state_dict()) names += (names.empty() ? "" : "\n") + one.name;
  return text_digest(names);
}

/// Digest of all parameters in the order of registration.
std::string values_digest(Module& model) {
  Sha256 sha;
  const FlatParameters& store = model.parameters();
  for (int slot = 0; slot < store.slot_count(); ++slot) sha.update(std::as_bytes(store.value(slot).span<float>()));
  return sha.hex();
}

double norm(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors)
    for (const float x : tensor.span<float>()) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

Approx close(double value) { return Approx(value).epsilon(1e-4); }

struct Row {
  std::string name;
  std::int64_t parameters;  // elements, all layers
  std::size_t tensors;      // of the state
  std::string text, names;  // SHA-256 of print(model) and of the state's names
  std::string values;       // of the parameters, width 4, 7 classes, torch.manual_seed(0)
};

// clang-format off
const std::vector<Row> kRows = {
    {"alexnet", 61100840, 16,
     "2891f54c81b8aa3edea50701fb8d70c96a966749f4cbd7a94985552e12240e53",
     "de6e146dd04ce129cf08abf4a6fe5b86fda35e585a86d31da6c8909dbf4d4c68",
     "9cf3e35992b4b297e37a282c997ead56630b402c471e7d9781a8c5052f6c0d69"},
    {"resnet18", 11689512, 122,
     "78a0ce552ae923a0a984dec23c98f1dc7bffe1a4534db0f285f9269e9393c631",
     "779447cf0a59dec805b4b6f442180ea9418f57a558a168774bd4ce61d31e1bee",
     "54d9a1937ea6c4be60b3c543301c6f77162570fd481805ec3ca6f9115c8115ce"},
    {"resnet34", 21797672, 218,
     "a60cf71e278ea118ae3e0a4cca6026a2ae2670821e8c81da0b3257319d172a06",
     "5aa6d4978ba3a10aabb321a68b1cb239a616bc1faa170818ca10dd0fc62f4767",
     "63b50751cbf2052842fb7d79e1363e352cf3167a6459aa14062ab1fc4225eca9"},
    {"resnet50", 25557032, 320,
     "11201e7f2419f0508a7fee381d91b1f388625ecddfc9ae79ace60945a10c14ca",
     "8f960d1d00758a98352af283a651a2e1bd18a5823592dc0c307b84c759beefcd",
     "24b7ef07cc928e656211ae0c4767a46e1f1d212458be3cf442dd31842e06c6c4"},
    {"resnet101", 44549160, 626,
     "72376a8a23df2e9b16b92c0401630bd9b57d1d4ae11415897624bba7dfdfd976",
     "06870983fe3d8f04135efa3ee96d56ba00f5c887353cc528df9a3078c39eca25",
     "c9d7293d438a5e89db35d4bdb05b881ddf3476fc42d8dc9570e9edb87e295065"},
    {"resnet152", 60192808, 932,
     "de32e2bfc835d938ff4d0085aab916bd6622aa2af10ce5692e304d366be9f56f",
     "3e8a404c8d0a27d721800861cef6d4073ab85b3751e3cddb8e4176ab661a6f56",
     "c62639417b534fc7828bdeb617daaeae04dcc93476e26a91d11f930632f92431"},
    {"vgg11", 132863336, 22,
     "b38617afb5581bf3b32a8ed65ee7e7aca3a19ea5bafa7de23ada55ad243ae9d8",
     "48d52f58d1ef80003fcc8a8ec5caf35367a6d7123b6c82b839ca2e0a59dae3be",
     "22b6feb1d920594873dc0cdb7d16f6482932d325b71641f808a5fbdf73bdcccc"},
    {"vgg13", 133047848, 26,
     "20ce33fda78f78a8a97ec667a3379ba2da46725e6c48c635464a1a3808d84259",
     "3a0ef258e8ff60dc51ce4fcdca6f539f3a1b8cda01c0e7942555b6f4e1cf5d16",
     "7c5747b631fd48266130679e3efd511de8356b8fd5ca2dcb801b428cb5974f68"},
    {"vgg16", 138357544, 32,
     "b628f277d195f69ac114ee79433a2bd7ac64ce25128d7cb0a8d136489385bf8a",
     "8f3a2b9b44d59c1f2500c106e020b11c95dd2ad53db5a01f2884eb798a9ffc24",
     "a93caed290b6e661eb24ac54b43f7e5c9b7fd40bdecfa746712a52bcc510f76c"},
    {"vgg19", 143667240, 38,
     "d889f0547ed59fbdaeede21c9d2ab244f12e283508103f4cd073e50e55cc3622",
     "f9f22fb5f387f7406051a7e20723e7ae27a89616234564ffe1bfabcbc44959ef",
     "534f65540cd424bfb30f9a57c385d2e2797cde580dfb12de37289ff2d7b6074c"},
    {"vgg11_bn", 132868840, 62,
     "a45245226f1806de19d52a49e60e3e63a38232bcbe2807936a137378131d9ba4",
     "0ffb5b2ee44375ad9d2ac2c2634f058b95992e21f40e78858efdd7902977230d",
     "540f838378e7d17db61f08d94235b1f6cf872499f5f2601ac62a6ae7fe950e12"},
    {"vgg13_bn", 133053736, 76,
     "150a2ffa03c913c75ac7c4a2118a1ae42e2047f453398af7b2c4e8a0e3640dc7",
     "ac4eae7f01c343e77ea7c697102f945ab399d45b32b61040396289bec693e56c",
     "5205a49e1b3fefa7c1ff4ea760d58f194aacfdb9c5b1c3b39935a40075de9e0d"},
    {"vgg16_bn", 138365992, 97,
     "de68bea10f12c3b88cdf45cbb27230cbadffb052386d93e949dcd20de09d210c",
     "d6d5ff475a707742caa857f811ffecf23d6fa9728f016fe5d5c598d02c2ce578",
     "d5fcf71c65ee808dedbc53416743ebfd908768f131683942ba5e04c2f3b2fcd6"},
    {"vgg19_bn", 143678248, 118,
     "aca2e40c329146a8d2b747412b499b045b348d5b1d9ba17f1ea2678f6dbbca4d",
     "b909d731fcbe7bdfc495cc57bfdce9e2dd39dadaffb2a5d2309b61df8e15148e",
     "7184160f7ef7b6dd5d684c2b665f399900a6ecfeca2a857a893bb1fa2a9ef344"},
};
// clang-format on

struct Steps {
  std::unique_ptr<Module> model;
  std::int64_t size;   // of the images
  std::uint64_t seed;  // of their pixels
  std::vector<double> logits, losses, gradients;
  double values, buffers;
};

/// Three steps of SGD on four images: `logits` of the first, the losses, after one backward the norms of the gradients
/// of the first parameter, the middle one, the last but one and of all; the norms of all values at the end, and of all
/// running statistics.
void check_steps(const Steps& expected) {
  Module& model = *expected.model;
  INFO(model.str());
  model.initialise(std::uint64_t{0});
  Tensor x = empty({4, 3, expected.size, expected.size});
  Mt19937(expected.seed).uniform(x.span<float>(), -2, 2);
  const Tensor labels = from_values<std::int64_t>({4}, {3, 1, 4, 1});
  optim::SGD optimizer(model, {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f});
  const auto gradient = [&](int slot) { return norm({std::as_const(model.parameters()).gradient(slot)}); };
  for (std::size_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Variable y = model(x);
    const Variable loss = ops::nll_loss(ops::log_softmax(y), labels);
    CHECK(loss.value().data<float>()[0] == close(expected.losses[step]));
    loss.backward();
    if (step == 0) {
      const int slots = model.parameters().slot_count();
      for (std::size_t i = 0; i < 3; ++i) CHECK(y.value().data<float>()[i] == close(expected.logits[i]).margin(1e-6));
      CHECK(gradient(0) == close(expected.gradients[0]));
      CHECK(gradient(slots / 2) == close(expected.gradients[1]));
      CHECK(gradient(slots - 2) == close(expected.gradients[2]));
      CHECK(norm({std::as_const(model.parameters()).gradients()}) == close(expected.gradients[3]));
    }
    optimizer.step();
  }
  std::vector<Tensor> running;
  for (const NamedTensor& buffer : model.parameters().buffers())
    if (buffer.tensor.dtype() == DType::f32) running.push_back(buffer.tensor);
  CHECK(norm({std::as_const(model.parameters()).values()}) == close(expected.values));
  CHECK(norm(running) == close(expected.buffers));
}

constexpr std::array<int, 4> kOneEach = {1, 1, 1, 1};

}  // namespace

TEST_CASE("networks have torchvision's sizes, texts and names") {
  for (const Row& row : kRows) {
    CAPTURE(row.name);
    const std::unique_ptr<Module> whole = make_network(row.name);  // without values
    CHECK(whole->parameter_count() == row.parameters);
    CHECK(text_digest(whole->str()) == row.text);
    const std::unique_ptr<Module> narrow = make_network(row.name, {.width = 4});
    CHECK(narrow->state_dict().size() == row.tensors);
    CHECK(names_digest(*narrow) == row.names);
  }
  CHECK(kRows.size() + 2 == named_networks().size());
}

TEST_CASE("networks draw torchvision's initial weights, bit for bit") {
  for (const Row& row : kRows) {
    CAPTURE(row.name);
    const std::unique_ptr<Module> model = make_network(row.name, {.classes = 7, .width = 4});
    model->initialise(std::uint64_t{0});
    CHECK(values_digest(*model) == row.values);
  }
  ResNet zeroed(18, {.classes = 7, .width = 4, .zero_init_residual = true});
  zeroed.initialise(std::uint64_t{0});
  CHECK(values_digest(zeroed) == "a197c82d14180d85b2b0ed9303b44cd414764d1a599297dbcb078bf04e03cc50");
}

// The same steps in PyTorch with double precision, from the same initial weights. The seeds of the images are such that
// no argument of a relu is so near 0 that rounding could change its sign.
TEST_CASE("networks train as torchvision's") {
  const NetworkOptions residual = {.classes = 7, .width = 16}, alex = {.classes = 7, .width = 16, .dropout = 0},
                       vgg = {.classes = 7, .width = 8, .dropout = 0};
  // clang-format off
  const Steps networks[] = {
      {std::make_unique<ResNet>(ResNet::Block::basic, kOneEach, residual), 64, 40,
       {0.2706098, -0.1554951, -0.103971}, {2.235767, 0.7966484, 0.2027104},
       {8.654256, 0.1214137, 4.010438, 11.65948}, 41.16044, 25.22233},
      {std::make_unique<ResNet>(ResNet::Block::bottleneck, kOneEach, residual), 64, 19,
       {0.434907, -0.4871945, 0.4088844}, {2.2765, 0.7079705, 0.1946678},
       {19.3336, 0.1518054, 8.002918, 22.62015}, 72.48256, 46.47181},
      {std::make_unique<AlexNet>(alex), 64, 38,
       {0.01330771, -0.008129321, 0.0189359}, {1.946035, 1.925921, 1.889009},
       {0.01899994, 0.04808587, 0.2400804, 0.6377047}, 27.95543, 0},
      {std::make_unique<VGG>(11, false, vgg), 32, 5,
       {-0.01542987, 0.01144485, 0.003370934}, {1.9408, 1.903644, 1.828852},
       {0.009700675, 0.003424946, 0.4564131, 0.8890785}, 27.48724, 0},
      {std::make_unique<VGG>(11, true, vgg), 32, 42,
       {-0.01303522, 0.01831507, 0.01475924}, {1.939483, 1.820792, 1.573839},
       {0.1590102, 0.007632314, 0.913205, 1.658774}, 33.16138, 16.78135},
  };
  // clang-format on
  for (const Steps& expected : networks) check_steps(expected);
}

TEST_CASE("a ResNet's stem for small images has stride 1 and no pool") {
  ResNet model(18, {.classes = 10, .width = 4, .stem = Stem::cifar});
  CHECK_THAT(model.str(), ContainsSubstring("(conv1): Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), "
                                            "bias=False)"));
  CHECK(model.str().find("maxpool") == std::string::npos);
  CHECK(model(zeros({2, 3, 9, 9})).shape() == Shape{2, 10});
}

TEST_CASE("networks with synchronised batch norms print them") {
  const std::string text = make_network("resnet18", {.sync_batch_norm = true})->str();
  CHECK_THAT(text, ContainsSubstring("(bn1): SyncBatchNorm(64, eps=1e-05, momentum=0.1"));
  CHECK(text.find("BatchNorm2d") == std::string::npos);
  CHECK(make_network("vgg11_bn", {.sync_batch_norm = true})->str().find("BatchNorm2d") == std::string::npos);
}

TEST_CASE("networks refuse names and options that they do not have") {
  CHECK_THROWS_WITH(make_network("resnet19"),
                    ContainsSubstring("unknown network 'resnet19', expected one of simple_cnn, "
                                      "linear, alexnet, resnet18, "));
  CHECK_THROWS_AS(ResNet(19), UsageError);
  CHECK_THROWS_AS(VGG(12), UsageError);
  CHECK_THROWS_AS(ResNet(18, {.dropout = 0.1}), UsageError);
  CHECK_THROWS_AS(AlexNet({.stem = Stem::cifar}), UsageError);
  CHECK_THROWS_AS(AlexNet({.sync_batch_norm = true}), UsageError);
  CHECK_THROWS_AS(VGG(11, false, {.sync_batch_norm = true}), UsageError);
  CHECK_THROWS_AS(VGG(11, true, {.zero_init_residual = true}), UsageError);
  CHECK_THROWS_AS(make_network("simple_cnn", {.classes = 7}), UsageError);
  CHECK_THROWS_AS(make_network("linear", {.width = 7}), UsageError);
  CHECK_THROWS_AS(ResNet(18, {.width = 0}), UsageError);
}

TEST_CASE("a classifier of another size is an error that names it, or is left out") {
  ResNet large(18, {.classes = 9, .width = 4}), small(18, {.classes = 5, .width = 4});
  large.initialise(std::uint64_t{1});
  CHECK_THROWS_WITH(small.load_state_dict(large.state_dict()),
                    "the state is of another model: \"fc.weight\" is f32[9, 32], expected f32[5, 32]");
  const std::string own = values_digest(small);
  const LeftOut left = small.load_what_fits(large.state_dict());
  CHECK(left.kept == std::vector<std::string>{"fc.weight", "fc.bias"});
  CHECK(left.unused == std::vector<std::string>{"fc.weight", "fc.bias"});
  CHECK(values_digest(small) != own);
  CHECK(sha256_hex(std::as_bytes(small.state_dict()[0].tensor.span<float>())) ==
        sha256_hex(std::as_bytes(large.state_dict()[0].tensor.span<float>())));
}

TEST_CASE("the networks for MNIST have names, too") {
  const std::unique_ptr<Module> cnn = make_network("simple_cnn", {.classes = 10, .in_channels = 1});
  CHECK(cnn->parameter_count() == 421642);
  CHECK(make_network("linear")->parameter_count() == 7850);
  CHECK(find_network("linear").gives_log_probabilities);
  CHECK(find_network("vgg19_bn").size == 224);
  CHECK_FALSE(find_network("vgg19_bn").gives_log_probabilities);
}
