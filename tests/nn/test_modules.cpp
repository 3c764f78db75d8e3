// Modules: their text, names, states and contexts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;

namespace {

/// Nested containers, buffers between parameters, and an activation.
struct Nested : Module {
  Nested() {
    features.add<Conv2d>(1, 4, 3, Conv2dOptions{.stride = 2, .padding = 1, .bias = false});
    features.add<BatchNorm2d>(4);
    features.add<ReLU>();
    features.add<MaxPool2d>(2);
    register_module("features", features);
    register_module("head", head);
  }
  Variable forward(Context& context, const Variable& x) const override {
    return head.forward(context, flatten.forward(context, features.forward(context, x)));
  }
  using Module::forward;
  std::string type_name() const override { return "Nested"; }
  Sequential features;
  Flatten flatten;
  Linear head{4, 2};
};

std::vector<std::string> names(const std::vector<NamedTensor>& state) {
  std::vector<std::string> list;
  for (const NamedTensor& item : state) list.push_back(item.name);
  return list;
}

}  // namespace

// All texts are what print() shows of the same modules in torch 2.15.0.
TEST_CASE("layers print as PyTorch's") {
  CHECK(Linear(5, 2).str() == "Linear(in_features=5, out_features=2, bias=True)");
  CHECK(Linear(3, 3, false).str() == "Linear(in_features=3, out_features=3, bias=False)");
  CHECK(Conv2d(1, 32, 3, {.padding = 1}).str() == "Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))");
  CHECK(Conv2d(3, 6, 5, {.stride = 2, .bias = false}).str() ==
        "Conv2d(3, 6, kernel_size=(5, 5), stride=(2, 2), bias=False)");
  CHECK(Conv2d(4, 8, 3, {.stride = 2, .padding = 1, .groups = 2}).str() ==
        "Conv2d(4, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2)");
  CHECK(Conv2d(4, 8, 3, {.bias = false, .groups = 4}).str() ==
        "Conv2d(4, 8, kernel_size=(3, 3), stride=(1, 1), groups=4, bias=False)");
  CHECK(ConvTranspose2d(3, 6, 3).str() == "ConvTranspose2d(3, 6, kernel_size=(3, 3), stride=(1, 1))");
  CHECK(ConvTranspose2d(4, 6, 4, {.stride = 2, .padding = 1, .output_padding = 1, .bias = false, .groups = 2}).str() ==
        "ConvTranspose2d(4, 6, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1), output_padding=(1, 1), groups=2, "
        "bias=False)");
  CHECK(Sigmoid().str() == "Sigmoid()");
  CHECK(Tanh().str() == "Tanh()");
  CHECK(GELU().str() == "GELU(approximate='none')");
  CHECK(LeakyReLU().str() == "LeakyReLU(negative_slope=0.01)");
  CHECK(LeakyReLU(0.2).str() == "LeakyReLU(negative_slope=0.2)");
  CHECK(LayerNorm({10}).str() == "LayerNorm((10,), eps=1e-05, elementwise_affine=True, bias=True)");
  CHECK(LayerNorm({3, 4}, 1e-6, false).str() == "LayerNorm((3, 4), eps=1e-06, elementwise_affine=True, bias=False)");
  CHECK(Embedding(10, 3).str() == "Embedding(10, 3)");
  CHECK(Softmax(-1).str() == "Softmax(dim=-1)");
  CHECK(Dropout(0.25).str() == "Dropout(p=0.25, inplace=False)");
  CHECK(Dropout().str() == "Dropout(p=0.5, inplace=False)");
  CHECK(Dropout(1.0 / 3).str() == "Dropout(p=0.3333333333333333, inplace=False)");
  CHECK(Dropout(1e-5).str() == "Dropout(p=1e-05, inplace=False)");
  CHECK(Dropout(0).str() == "Dropout(p=0.0, inplace=False)");
  CHECK(ReLU().str() == "ReLU()");
  CHECK(MaxPool2d(2).str() == "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)");
  CHECK(MaxPool2d(3, 2).str() == "MaxPool2d(kernel_size=3, stride=2, padding=0, dilation=1, ceil_mode=False)");
  CHECK(Flatten().str() == "Flatten(start_dim=1, end_dim=-1)");
  CHECK(Softmax().str() == "Softmax(dim=1)");
  CHECK(LogSoftmax().str() == "LogSoftmax(dim=1)");
  CHECK(Conv2d(3, 6, 5, {.stride = 2, .padding = 2, .bias = false}).str() ==
        "Conv2d(3, 6, kernel_size=(5, 5), stride=(2, 2), padding=(2, 2), bias=False)");
  CHECK(BatchNorm2d(4).str() ==
        "BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)");
  CHECK(BatchNorm2d(3, 1e-3f, 0.01f).str() ==
        "BatchNorm2d(3, eps=0.001, momentum=0.01, affine=True, bias=True, track_running_stats=True)");
  CHECK(BatchNorm2d(3, 1.234e-5f, 1e-4f).str() ==
        "BatchNorm2d(3, eps=1.234e-05, momentum=0.0001, affine=True, bias=True, track_running_stats=True)");
  CHECK(SyncBatchNorm(3, 1e-12f, 0.5f).str() ==
        "SyncBatchNorm(3, eps=1e-12, momentum=0.5, affine=True, bias=True, track_running_stats=True)");
}

TEST_CASE("containers and models print their children, indented") {
  CHECK(Sequential().str() == "Sequential()");
  Sequential one;
  one.add<Linear>(3, 3);
  CHECK(one.str() == "Sequential(\n  (0): Linear(in_features=3, out_features=3, bias=True)\n)");
  CHECK(TutorialLinear(5, 2).str() == "TutorialLinear(\n  (fc): Linear(in_features=5, out_features=2, bias=True)\n)");
  CHECK(ASimpleNet(1).str() ==
        "ASimpleNet(\n  (linears): ModuleList(\n    (0): Linear(in_features=3, out_features=3, bias=False)\n  )\n)");
  CHECK(SimpleCNN(1).str() ==
        "SimpleCNN(\n"
        "  (conv1): Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))\n"
        "  (conv2): Conv2d(32, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))\n"
        "  (dropout1): Dropout(p=0.25, inplace=False)\n"
        "  (dropout2): Dropout(p=0.5, inplace=False)\n"
        "  (fc1): Linear(in_features=3136, out_features=128, bias=True)\n"
        "  (fc2): Linear(in_features=128, out_features=10, bias=True)\n)");
}

TEST_CASE("a ModuleList prints a run of equal children once, a Sequential each of them") {
  CHECK(ModuleList().str() == "ModuleList()");
  CHECK(ASimpleNet(3).str() ==
        "ASimpleNet(\n  (linears): ModuleList(\n"
        "    (0-2): 3 x Linear(in_features=3, out_features=3, bias=False)\n  )\n)");
  Sequential plain;
  plain.add<Linear>(3, 3);
  plain.add<Linear>(3, 3);
  CHECK(plain.str() ==
        "Sequential(\n  (0): Linear(in_features=3, out_features=3, bias=True)\n"
        "  (1): Linear(in_features=3, out_features=3, bias=True)\n)");
  ModuleList mixed;
  mixed.add<Linear>(3, 3);
  mixed.add<ReLU>();
  mixed.add<ReLU>();
  mixed.add<Linear>(3, 3);
  CHECK(mixed.str() ==
        "ModuleList(\n  (0): Linear(in_features=3, out_features=3, bias=True)\n  (1-2): 2 x ReLU()\n"
        "  (3): Linear(in_features=3, out_features=3, bias=True)\n)");
  Sequential outer;
  auto& blocks = outer.add<ModuleList>();
  for (int i = 0; i < 2; ++i) {
    auto& block = blocks.add<Sequential>();
    block.add<Linear>(3, 3);
    block.add<ReLU>();
  }
  blocks.add<Linear>(1, 1);
  CHECK(outer.str() ==
        "Sequential(\n  (0): ModuleList(\n    (0-1): 2 x Sequential(\n"
        "      (0): Linear(in_features=3, out_features=3, bias=True)\n      (1): ReLU()\n    )\n"
        "    (2): Linear(in_features=1, out_features=1, bias=True)\n  )\n)");
}

TEST_CASE("states are named and ordered as PyTorch's: a module's parameters, its buffers, then its children") {
  Nested model;
  CHECK(names(model.state_dict()) ==
        std::vector<std::string>{"features.0.weight", "features.1.weight", "features.1.bias", "features.1.running_mean",
                                 "features.1.running_var", "features.1.num_batches_tracked", "head.weight",
                                 "head.bias"});
  CHECK(names(model.features.state_dict()) == std::vector<std::string>{"0.weight", "1.weight", "1.bias",
                                                                       "1.running_mean", "1.running_var",
                                                                       "1.num_batches_tracked"});
  SimpleCNN cnn(1);
  CHECK(names(cnn.state_dict()) == std::vector<std::string>{"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                                            "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"});
  // A part's tensors are the whole's.
  CHECK(model.head.state_dict()[0].tensor.same_memory(model.state_dict()[6].tensor));
  CHECK(model.features.state_dict()[4].tensor.same_memory(model.state_dict()[4].tensor));
}

TEST_CASE("states are views, and load_state_dict copies into them") {
  Nested model, other;
  model.initialise(std::uint64_t{3});
  model.state_dict()[3].tensor.data<float>()[2] = 8;
  other.load_state_dict(model.state_dict());
  for (std::size_t i = 0; i < model.state_dict().size(); ++i) {
    const Tensor a = model.state_dict()[i].tensor, b = other.state_dict()[i].tensor;
    CHECK_FALSE(a.same_memory(b));
    CHECK(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
  }
}

TEST_CASE("load_state_dict names the tensor that does not fit, and changes nothing then") {
  Nested model;
  const auto own = model.state_dict();
  const float before = own[0].tensor.data<float>()[0];
  auto state = own;
  for (NamedTensor& item : state) item.tensor = item.tensor.clone();
  state[0].tensor.data<float>()[0] = before + 1;

  auto missing = state;
  missing.erase(missing.begin() + 4);
  CHECK_THROWS_AS(model.load_state_dict(missing), DataError);
  CHECK_THROWS_WITH(model.load_state_dict(missing),
                    "the state is of another model: it has no tensor \"features.1.running_var\"");
  auto unknown = state;
  unknown.push_back({"head.extra", zeros({1})});
  CHECK_THROWS_WITH(model.load_state_dict(unknown),
                    "the state is of another model: it has the tensor \"head.extra\" that this one lacks");
  auto shape = state;
  shape[6].tensor = zeros({4, 2});
  CHECK_THROWS_WITH(model.load_state_dict(shape),
                    "the state is of another model: \"head.weight\" is f32[4, 2], expected f32[2, 4]");
  auto dtype = state;
  dtype[7].tensor = zeros({2}, DType::f64);
  CHECK_THROWS_WITH(model.load_state_dict(dtype),
                    "the state is of another model: \"head.bias\" is f64[2], expected f32[2]; convert its "
                    "numbers first, by .float() in PyTorch");
  CHECK(own[0].tensor.data<float>()[0] == before);
  model.load_state_dict(state);
  CHECK(own[0].tensor.data<float>()[0] == before + 1);
}

TEST_CASE("slots lie in reverse order of registration, at multiples of 16 bytes, with zeros between them") {
  SimpleCNN model(1);
  const FlatParameters& store = model.parameters();
  std::int64_t offset = 0;
  for (int slot = store.slot_count() - 1; slot >= 0; --slot) {
    for (; offset % 4 != 0; ++offset) {
      CHECK(store.values().data<float>()[offset] == 0);
      CHECK(store.gradients().data<float>()[offset] == 0);
    }
    CHECK(store.slots()[static_cast<std::size_t>(slot)].offset == offset);
    CHECK(store.value(slot).data<float>() == store.values().data<float>() + offset);
    CHECK(store.gradient(slot).data<float>() == store.gradients().data<float>() + offset);
    CHECK(reinterpret_cast<std::uintptr_t>(store.gradient(slot).raw()) % 16 == 0);
    offset += store.value(slot).count();
  }
  CHECK(store.values().count() == offset);
  CHECK_THROWS_AS(store.value(8), UsageError);
}

TEST_CASE("buffers of all types lie in one piece, in the order of registration, at multiples of 16 bytes") {
  Sequential model;
  model.add<BatchNorm2d>(3);
  model.add<BatchNorm2d>(2);
  const FlatParameters& store = model.parameters();
  const Tensor all = store.buffer_run(0, 6), second = store.buffer_run(3, 3);
  CHECK(all.bytes() == 6 * 16);
  CHECK(second.bytes() == 3 * 16);
  for (std::size_t i = 0; i < 6; ++i) CHECK(store.buffers()[i].tensor.raw() == all.data<std::uint8_t>() + 16 * i);
  CHECK(second.raw() == store.buffers()[3].tensor.raw());
  CHECK(all.data<std::uint8_t>()[12] == 0);  // padding
}

TEST_CASE("a module belongs to one parent, and only whole models are initialised") {
  struct Twice : Module {
    explicit Twice(Module& child) {
      register_module("a", child);
      register_module("b", child);
    }
    std::string type_name() const override { return "Twice"; }
  };
  Linear child(2, 2);
  CHECK_THROWS_WITH(Twice(child), "module b is part of another module already");
  Nested model;
  CHECK_THROWS_AS(model.head.initialise(std::uint64_t{1}), UsageError);
  CHECK_THROWS_WITH(ModuleList()(zeros({1, 1})), "ModuleList has no forward: call its children one by one");
  CHECK_THROWS_AS(Linear(0, 2), UsageError);
  CHECK_THROWS_AS(Conv2d(1, 1, 0), UsageError);
  CHECK_THROWS_WITH(Conv2d(6, 8, 3, {.groups = 4}),
                    "Conv2d: 6 to 8 channels in 4 groups, expected groups that divide both");
  CHECK_THROWS_AS(Conv2d(4, 6, 3, {.groups = 4}), UsageError);
  CHECK_THROWS_AS(Conv2d(4, 4, 3, {.groups = 0}), UsageError);
  CHECK_THROWS_AS(Dropout(1.0), UsageError);
}

TEST_CASE("a model moves to another device with its values and buffers") {
  nn::SimpleCNN model(7), same(7);
  const Device there{DeviceKind::cpu, 1};
  model.to(there);
  CHECK(model.parameters().device() == there);
  const auto moved = model.state_dict(), kept = same.state_dict();
  REQUIRE(moved.size() == kept.size());
  for (std::size_t i = 0; i < moved.size(); ++i) {
    CHECK(moved[i].name == kept[i].name);
    CHECK(moved[i].tensor.device() == there);
    CHECK(std::ranges::equal(moved[i].tensor.span<float>(), kept[i].tensor.span<float>()));
  }
  CHECK(model(zeros({1, 1, 28, 28}, DType::f32, there)).device() == there);
}

TEST_CASE("train and eval switch dropout and batch norm of the whole model") {
  Sequential model;
  model.add<Dropout>(0.5);
  auto& norm = model.add<BatchNorm2d>(2);
  model.initialise(std::uint64_t{1});
  const Tensor x = from_values<float>({2, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  model.eval();
  CHECK_FALSE(norm.training());
  const Variable y = model(x);
  for (int i = 0; i < 8; ++i) CHECK(y.value().data<float>()[i] == duet_test::Approx(x.data<float>()[i]).epsilon(1e-4));
  CHECK(model.state_dict()[2].tensor.data<float>()[0] == 0);
  model.train();
  model(x);
  CHECK(model.state_dict()[2].tensor.data<float>()[0] != 0);
}

TEST_CASE("values of other kinds are distinguished") {
  const Value tensor(zeros({1})), list(List{tensor, Value()}), dict(Dict{{"a", tensor}});
  CHECK(std::string(tensor.kind()) == "tensor");
  CHECK(std::string(list.kind()) == "list");
  CHECK(std::string(dict.kind()) == "dict");
  CHECK(std::string(Value().kind()) == "nothing");
  CHECK(std::string(Value::opaque(3).kind()) == "object");
  CHECK(list.list()[1].is_none());
  CHECK_THROWS_AS(list.variable(), ShapeError);
  CHECK_THROWS_WITH(list.variable(), duet_test::ContainsSubstring("list"));
  CHECK_THROWS_AS(tensor.dict(), ShapeError);
}
