// num_batches_tracked of batch norms: PyTorch's name, place and meaning.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/io/checkpoint.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::nn;

namespace {

constexpr const char* kCount = "num_batches_tracked";

std::int64_t count_of(Module& model) {
  const Tensor count = model.state_dict().back().tensor;
  return *count.to(Device{}).data<std::int64_t>();
}

Tensor some_rows() {
  Tensor x = empty({4, 2, 2, 2});
  Mt19937 generator(1);
  generator.uniform(x.span<float>(), -1.0, 1.0);
  return x;
}

/// One rank that counts its broadcasts.
class CountingGroup final : public ddp::ProcessGroup {
 public:
  CountingGroup() : ProcessGroup(0, 1) {}
  const char* backend() const override { return "counting"; }
  int broadcasts = 0;

 protected:
  ddp::Work start(const ddp::Call& call) override {
    broadcasts += call.op == ddp::Collective::broadcast;
    if (call.out.count > 0)
      copy(borrow(call.in.data, {call.in.count}, call.in.dtype),
           borrow(call.out.data, {call.out.count}, call.out.dtype));
    return {};
  }
  std::unique_ptr<ProcessGroup> connect_subset(const ddp::Subset&) const override { return nullptr; }
  bool takes(DeviceKind) const override { return true; }
};

}  // namespace

TEST_CASE("batch norms count their batches in training, as PyTorch's") {
  BatchNorm2d model(2);
  const std::vector<NamedTensor> state = model.state_dict();
  REQUIRE(state.size() == 5);
  CHECK(state[4].name == kCount);
  CHECK(state[4].tensor.dtype() == DType::i64);
  CHECK(state[4].tensor.shape() == Shape{});
  CHECK(count_of(model) == 0);
  const Tensor x = some_rows();
  model(x);
  model(x);
  CHECK(count_of(model) == 2);
  {
    const NoGrad guard;  // PyTorch counts these, too
    model(x);
  }
  CHECK(count_of(model) == 3);
  model.eval();
  model(x);
  CHECK(count_of(model) == 3);
  model.train();
  CHECK_THROWS_AS(model(zeros({1, 2, 1, 1})), ShapeError);  // one value per channel
  CHECK(count_of(model) == 3);
  model.initialise(std::uint64_t{1});
  CHECK(count_of(model) == 0);
}

TEST_CASE("under DataParallel the count is that of replica 0") {
  for (const int devices : {1, 2, 4}) {
    SyncBatchNorm model(2);
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices)});
    for (int i = 0; i < 3; ++i) net(some_rows());
    CHECK(count_of(model) == 3);
  }
}

TEST_CASE("under DistributedDataParallel the count is that of rank 0") {
  for (const bool broadcast : {true, false}) {
    std::vector<std::int64_t> counts(2);
    ddp::run_rank_threads(2, [&](ddp::ProcessGroup& group) {
      BatchNorm2d model(2);
      *model.state_dict().back().tensor.data<std::int64_t>() = 10 * (1 - group.rank());
      ddp::DistributedDataParallel net(model, group, {.broadcast_buffers = broadcast});
      CHECK(count_of(model) == 10);
      *model.state_dict().back().tensor.data<std::int64_t>() += 5 * group.rank();
      for (int i = 0; i < 3; ++i) net(some_rows());
      counts[static_cast<std::size_t>(group.rank())] = count_of(model);
    });
    CHECK(counts == std::vector<std::int64_t>{13, broadcast ? 13 : 18});
  }
}

TEST_CASE("DistributedDataParallel broadcasts all buffers of a model at once") {
  Sequential model;
  model.add<BatchNorm2d>(2);
  model.add<BatchNorm2d>(2);
  CountingGroup group;
  ddp::DistributedDataParallel net(model, group);
  const int before = group.broadcasts;
  net(some_rows());
  CHECK(group.broadcasts == before + 1);
}

TEST_CASE("a batch norm's state is read from a file with PyTorch's names") {
  const duet_test::Scratch scratch;
  const std::string path = scratch.path("torch.safetensors");
  save_tensors(path, {{"0.weight", from_values<float>({2}, {1, 2})},
                      {"0.bias", from_values<float>({2}, {3, 4})},
                      {"0.running_mean", from_values<float>({2}, {5, 6})},
                      {"0.running_var", from_values<float>({2}, {7, 8})},
                      {"0.num_batches_tracked", from_values<std::int64_t>({}, {9})}});
  Sequential model;
  model.add<BatchNorm2d>(2);
  const NamedTensors file = load_tensors(path).tensors;
  copy_by_name(file, model.state_dict(), path);
  CHECK(count_of(model) == 9);
  CHECK(model.state_dict()[2].tensor.data<float>()[1] == 6);
  Sequential other;
  other.add<BatchNorm2d>(2);
  other.load_state_dict(file);
  CHECK(count_of(other) == 9);
}

TEST_CASE("states from before the count leave it as it is, as PyTorch's do") {
  Sequential model, old;
  model.add<BatchNorm2d>(2);
  old.add<BatchNorm2d>(2);
  std::vector<NamedTensor> state = old.state_dict();
  state[3].tensor.data<float>()[0] = 4;
  state.pop_back();
  model(some_rows());
  model.load_state_dict(state);
  CHECK(count_of(model) == 1);
  CHECK(model.state_dict()[3].tensor.data<float>()[0] == 4);
  model(some_rows());
  copy_by_name(state, model.state_dict(), "file");
  CHECK(count_of(model) == 2);
  CHECK(model.state_dict()[3].tensor.data<float>()[0] == 4);
  state.erase(state.begin() + 2);
  CHECK_THROWS_AS(copy_by_name(state, model.state_dict(), "file"), DataError);
  CHECK_THROWS_WITH(model.load_state_dict(state), "the state is of another model: it has no tensor \"0.running_mean\"");
}
