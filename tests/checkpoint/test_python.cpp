// The format's own implementation reads what duet writes, and duet reads what it writes.
#include <cstdint>
#include <string>

#include "lib/io/checkpoint.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/networks.h"
#include "tests/support/catch2.h"
#include "tests/support/python.h"
#include "tests/support/scratch.h"

using namespace duet_test;

namespace {

duet::Checkpoint sample_checkpoint() {
  duet::Checkpoint checkpoint;
  checkpoint.position.epoch = 2;
  checkpoint.step = 938;
  checkpoint.arch = "SimpleCNN";
  checkpoint.best_acc1 = 97.25;
  checkpoint.model = {{"fc.weight", duet::from_values<float>({2, 3}, {1, -2, 3.5f, 4, 0, 1e-40f})},
                      {"half", duet::from_values<duet::Float16>({2}, {duet::Float16(0.1f), duet::Float16(-2)})},
                      {"steps", duet::from_values<std::int64_t>({}, {7})}};
  checkpoint.optimizer = {{"momentum", duet::from_values<float>({2}, {0.5f, 0.25f})}};
  return checkpoint;
}

}  // namespace

TEST_CASE("Python's safetensors reads a checkpoint") {
  if (!python_has("safetensors.numpy, numpy"))
    DUET_SKIP("no Python with safetensors and numpy (DUET_PYTHON names one)");
  const duet_test::Scratch scratch;
  duet::save_checkpoint(scratch.folder(), sample_checkpoint());
  CHECK(run_python(R"(
import sys, numpy
from safetensors import safe_open
from safetensors.numpy import load_file
path = sys.argv[1] + "/checkpoint-00000938.safetensors"
tensors = load_file(path)
assert sorted(tensors) == ["fc.weight", "half", "optimizer.momentum", "steps"], tensors
weight = tensors["fc.weight"]
assert weight.dtype == numpy.float32 and weight.shape == (2, 3)
assert (weight == numpy.array([[1, -2, 3.5], [4, 0, 1e-40]], numpy.float32)).all()
assert tensors["half"].dtype == numpy.float16 and (tensors["half"] == numpy.array([0.1, -2], numpy.float16)).all()
assert tensors["steps"].shape == () and tensors["steps"] == 7 and tensors["steps"].dtype == numpy.int64
with safe_open(path, "np") as file:
    metadata = file.metadata()
assert metadata["epoch"] == "2" and metadata["step"] == "938" and metadata["arch"] == "SimpleCNN", metadata
assert float(metadata["best_acc1"]) == 97.25
)",
                   scratch.folder()));
}

TEST_CASE("PyTorch loads a checkpoint's model into a module of its own") {
  if (!python_has("safetensors.torch, torch"))
    DUET_SKIP("no Python with safetensors and torch (DUET_PYTHON names one)");
  const duet_test::Scratch scratch;
  duet::Checkpoint checkpoint = sample_checkpoint();
  checkpoint.model = {{"weight", duet::from_values<float>({1, 2}, {2, 3})},
                      {"bias", duet::from_values<float>({1}, {4})}};
  checkpoint.optimizer = {};
  duet::save_checkpoint(scratch.folder(), checkpoint);
  CHECK(run_python(R"(
import sys, torch
from safetensors.torch import load_file
layer = torch.nn.Linear(2, 1)
layer.load_state_dict(load_file(sys.argv[1] + "/checkpoint-00000938.safetensors"))
assert layer(torch.tensor([[10.0, 100.0]])).item() == 324
)",
                   scratch.folder()));
}

TEST_CASE("a batch norm's state goes from PyTorch to duet and back") {
  if (!python_has("safetensors.torch, torch"))
    DUET_SKIP("no Python with safetensors and torch (DUET_PYTHON names one)");
  const duet_test::Scratch scratch;
  REQUIRE(run_python(R"(
import sys, torch
from safetensors.torch import save_file
net = torch.nn.Sequential(torch.nn.BatchNorm2d(2))
x = torch.arange(16.0).reshape(2, 2, 2, 2)
net(x)
net(x * x)
save_file({"x": x, "y": net.eval()(x).detach()}, sys.argv[1] + "/values")
save_file(net.state_dict(), sys.argv[1] + "/state")
)",
                     scratch.folder()));
  duet::nn::Sequential model;
  model.add<duet::nn::BatchNorm2d>(2);
  duet::copy_by_name(duet::load_tensors(scratch.path("state")).tensors, model.state_dict(), "state");
  CHECK(*model.state_dict().back().tensor.data<std::int64_t>() == 2);
  const duet::NamedTensors values = duet::load_tensors(scratch.path("values")).tensors;
  model.eval();
  const duet::Variable y = model(values[0].tensor);
  for (std::int64_t i = 0; i < 16; ++i)
    CHECK(y.value().data<float>()[i] == duet_test::Approx(values[1].tensor.data<float>()[i]).epsilon(1e-6));
  model.train();
  model(values[0].tensor);
  duet::save_tensors(scratch.path("back"), model.state_dict());
  CHECK(run_python(R"(
import sys, torch
from safetensors.torch import load_file
net = torch.nn.Sequential(torch.nn.BatchNorm2d(2))
net.load_state_dict(load_file(sys.argv[1] + "/back"))
assert net[0].num_batches_tracked == 3, net[0].num_batches_tracked
)",
                   scratch.folder()));
}

TEST_CASE("a ResNet's state goes from torchvision to duet and back") {
  if (!python_has("safetensors.torch, torchvision")) DUET_SKIP("no Python with safetensors and torchvision");
  const duet_test::Scratch scratch;
  REQUIRE(run_python(R"(
import sys, torch, torchvision
from safetensors.torch import save_file
torch.manual_seed(1)
net = torchvision.models.resnet18(num_classes=3)
x = torch.randn(4, 3, 64, 64)
net(x)
save_file({"x": x, "y": net.eval()(x).detach()}, sys.argv[1] + "/values")
save_file(net.state_dict(), sys.argv[1] + "/state")
)",
                     scratch.folder()));
  const duet::NamedTensors state = duet::load_tensors(scratch.path("state")).tensors;
  const auto model = duet::nn::make_network("resnet18", {.classes = 3});
  model->load_state_dict(state);
  const duet::NamedTensors values = duet::load_tensors(scratch.path("values")).tensors;
  model->eval();
  const duet::Variable y = (*model)(values[0].tensor);
  for (std::int64_t i = 0; i < y.value().count(); ++i)
    CHECK(y.value().data<float>()[i] == duet_test::Approx(values[1].tensor.data<float>()[i]).epsilon(1e-4));
  model->train();
  (*model)(values[0].tensor);
  duet::save_tensors(scratch.path("back"), model->state_dict());
  CHECK(run_python(R"(
import sys, torch, torchvision
from safetensors.torch import load_file
net = torchvision.models.resnet18(num_classes=3)
net.load_state_dict(load_file(sys.argv[1] + "/back"), strict=True)
assert net.bn1.num_batches_tracked == 2, net.bn1.num_batches_tracked
assert torch.equal(net.fc.weight, load_file(sys.argv[1] + "/state")["fc.weight"])
)",
                   scratch.folder()));
}

TEST_CASE("a checkpoint that Python loaded and saved again is a checkpoint") {
  if (!python_has("safetensors.numpy, numpy"))
    DUET_SKIP("no Python with safetensors and numpy (DUET_PYTHON names one)");
  const duet_test::Scratch scratch;
  duet::save_checkpoint(scratch.folder(), sample_checkpoint());
  REQUIRE(run_python(R"(
import sys
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
path = sys.argv[1] + "/checkpoint-00000938.safetensors"
with safe_open(path, "np") as file:
    metadata = file.metadata()
save_file(dict(reversed(load_file(path).items())), path, metadata=dict(reversed(metadata.items())))
)",
                     scratch.folder()));
  const duet::LoadedCheckpoint loaded = duet::load_checkpoint(scratch.folder());
  CHECK(loaded.warnings.empty());
  CHECK(loaded.checkpoint.step == 938);
  CHECK(loaded.checkpoint.best_acc1 == 97.25);
  REQUIRE(loaded.checkpoint.model.size() == 3);
  REQUIRE(loaded.checkpoint.optimizer.size() == 1);
  CHECK(loaded.checkpoint.optimizer[0].tensor.data<float>()[1] == 0.25f);
}

TEST_CASE("duet reads what Python's safetensors writes") {
  if (!python_has("safetensors.numpy, numpy"))
    DUET_SKIP("no Python with safetensors and numpy (DUET_PYTHON names one)");
  const duet_test::Scratch scratch;
  REQUIRE(run_python(R"(
import sys, numpy
from safetensors.numpy import save_file
save_file({"module.conv1.bias": numpy.arange(3, dtype=numpy.float32), "module.n": numpy.array(5, numpy.int64),
           "module.empty": numpy.zeros((0, 2), numpy.float64), "module.u": numpy.array([255], numpy.uint8),
           "module.h": numpy.array([0.1], numpy.float16)},
          sys.argv[1] + "/python.safetensors", metadata={"epoch": "4"})
)",
                     scratch.folder()));
  const duet::TensorFile file = duet::load_tensors(scratch.path("python.safetensors"));
  CHECK(file.metadata == duet::Metadata{{"epoch", "4"}});
  const duet::NamedTensors into = {{"conv1.bias", duet::zeros({3})},
                                   {"n", duet::zeros({}, duet::DType::i64)},
                                   {"empty", duet::zeros({0, 2}, duet::DType::f64)},
                                   {"u", duet::zeros({1}, duet::DType::u8)},
                                   {"h", duet::zeros({1}, duet::DType::f16)}};
  duet::copy_by_name(file.tensors, into, "python.safetensors");
  CHECK(into[0].tensor.data<float>()[2] == 2);
  CHECK(into[1].tensor.data<std::int64_t>()[0] == 5);
  CHECK(into[3].tensor.data<std::uint8_t>()[0] == 255);
  CHECK(into[4].tensor.data<duet::Float16>()[0].bits == 0x2E66);
}
