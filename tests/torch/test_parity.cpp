// 20 steps of LibTorch modules under duet's DistributedDataParallel, against PyTorch's: element by element with what
// tests/torch/parity.py writes, and without Python with the mean of the shards' gradients.
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/rank_threads.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/torch/networks.h"
#include "torch/ddp.h"
#include "torch/wrapped_module.h"

using namespace duet_test;

namespace {

constexpr int kSteps = 20;
constexpr double kLimit = 1e-6;

/// "parameter.fc1.bias", "gradient.fc1.bias", "buffer.bn.running_mean"; gradients that are not there are left out.
using Values = std::map<std::string, Tensor>;

struct Start {
  Values values;  // rank 0's parameters
  std::vector<StepBatch> batches;
  std::string script;  // a TorchScript file; empty: the network is made here
};

template <class Module>
Values values_of(const Module& module) {
  const auto tensors = duet::torch::tensors_of(module);
  Values values;
  for (const auto& [name, value] : tensors.parameters) {
    values.emplace("parameter." + name, value.detach().clone());
    if (value.grad().defined()) values.emplace("gradient." + name, value.grad().clone());
  }
  for (const auto& [name, value] : tensors.buffers) values.emplace("buffer." + name, value.clone());
  return values;
}

template <class Network>
Start own_start() {
  Start start{values_of(*make_with_values<Network>()), {}, ""};
  for (int step = 0; step < kSteps; ++step) start.batches.push_back(Network::batch(step));
  return start;
}

/// A dictionary of tensors that Python has saved.
Values read_values(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  duet::require<duet::DataError>(file.is_open(), "cannot read ", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  Values values;
  for (const auto& entry : torch::pickle_load(bytes).toGenericDict())
    values.emplace(entry.key().toStringRef(), entry.value().toTensor());
  return values;
}

template <class Network>
Start python_start(const std::string& folder) {
  Start start{read_values(folder + "/" + Network::kName + ".pt"), {}, ""};
  for (int step = 0; step < kSteps; ++step)
    start.batches.push_back({start.values.at("x")[step], start.values.at("y")[step], step});
  if (std::is_same_v<Network, Script>) start.script = folder + "/module.pt";
  return start;
}

template <class Network>
auto make(const Start& start) {
  if constexpr (std::is_same_v<Network, Script>) {
    if (!start.script.empty()) return std::make_shared<torch::jit::Module>(torch::jit::load(start.script));
  }
  return Network::make();
}

template <class Module>
void set_parameters(const Module& module, const Start& start) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, value] : duet::torch::tensors_of(module).parameters)
    Tensor(value).copy_(start.values.at("parameter." + name));
}

torch::optim::SGD make_optimizer(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.02).momentum(0.5));
}

template <class Network>
Values train(duet::ddp::ProcessGroup& group, const Start& start) {
  const auto module = make<Network>(start);
  const std::vector<Tensor> parameters = parameters_of(*module);
  if (group.rank() == 0) set_parameters(*module, start);  // the others get them
  // Small buckets, so that each step has several.
  duet::torch::DistributedDataParallel net(*module, group,
                                           {.bucket_limits = {1000, 4000},
                                            .find_unused_parameters = std::is_same_v<Network, UnusedBranches>,
                                            .compare_parameters_every = 7});
  torch::optim::SGD optimizer = make_optimizer(parameters);
  for (const StepBatch& batch : start.batches) {
    drop_gradients(parameters);
    Network::loss(net, batch, {group.rank(), group.size()}).backward();
    optimizer.step();
  }
  return values_of(*module);
}

/// The same without duet: the mean of the shards' gradients, one after the other.
template <class Network>
Values train_shards_in_turn(const Start& start, int ranks) {
  const auto module = make<Network>(start);
  set_parameters(*module, start);
  const std::vector<Tensor> parameters = parameters_of(*module);
  std::vector<Tensor> buffers;
  for (const auto& buffer : duet::torch::tensors_of(*module).buffers) buffers.push_back(buffer.value);
  torch::optim::SGD optimizer = make_optimizer(parameters);
  for (const StepBatch& batch : start.batches) {
    drop_gradients(parameters);
    std::vector<Tensor> of_rank_0;
    for (int rank = 0; rank < ranks; ++rank) {
      (Network::loss(*module, batch, {rank, ranks}) / ranks).backward();
      if (rank == 0) of_rank_0 = copies(buffers);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(of_rank_0[i]);
    optimizer.step();
  }
  return values_of(*module);
}

std::vector<std::string> names_of(const Values& values) {
  std::vector<std::string> names;
  for (const auto& entry : values) names.push_back(entry.first);
  return names;
}

/// The largest |a - b| / max(1, |b|); NaN where there is one.
double largest_relative_difference(const Values& a, const Values& b) {
  std::vector<Tensor> largest;
  for (const auto& [name, value] : b) {
    const Tensor expected = value.to(torch::kDouble);
    largest.push_back(((a.at(name).to(torch::kDouble) - expected).abs() / expected.abs().clamp_min(1)).max());
  }
  return torch::stack(largest).max().item<double>();
}

/// Trains on all ranks, checks that these have the same bits, and returns how far rank 0's numbers are from the
/// expected ones.
template <class Network>
double difference(const Start& start, int ranks, const std::string& backend, const Values& expected) {
  INFO(Network::kName << " on " << ranks << " ranks over " << backend);
  std::vector<Values> results(static_cast<std::size_t>(ranks));
  duet::ddp::run_rank_threads(ranks,
                              [&](duet::ddp::ProcessGroup& group) {
                                results[static_cast<std::size_t>(group.rank())] = train<Network>(group, start);
                              },
                              {.backend = backend});
  for (const Values& result : results)
    for (const auto& [name, value] : result)  // a rank's statistics are its own after the last step
      CHECK((name.starts_with("buffer.") || torch::equal(value, results[0].at(name))));
  REQUIRE(names_of(results[0]) == names_of(expected));
  const double largest = largest_relative_difference(results[0], expected);
  CHECK(largest <= kLimit);
  return largest;
}

template <class Network>
void compare_with_shards() {
  at::set_num_threads(1);
  const Start start = own_start<Network>();
  for (const int ranks : {1, 2, 3, 4})
    difference<Network>(start, ranks, "shm", train_shards_in_turn<Network>(start, ranks));
  difference<Network>(start, 3, "memory", train_shards_in_turn<Network>(start, 3));
  if (duet::ddp::why_no_gloo().empty())  // next to LibTorch's own copy of Gloo
    difference<Network>(start, 2, "gloo", train_shards_in_turn<Network>(start, 2));
}

template <class Network>
void compare_with_python(const std::string& folder) {
  const Start start = python_start<Network>(folder);
  for (const int ranks : {1, 2, 3, 4}) {
    const Values expected = read_values(folder + "/" + Network::kName + "." + std::to_string(ranks) + ".pt");
    double largest = 0;
    for (const char* backend : {"shm", "memory", "gloo"})
      if (backend != std::string("gloo") || duet::ddp::why_no_gloo().empty())
        largest = std::max(largest, difference<Network>(start, ranks, backend, expected));
    std::printf("%s on %d rank(s): at most %.1e\n", Network::kName, ranks, largest);
  }
}

}  // namespace

TEST_CASE("LibTorch: SimpleCNN ends with the numbers of PyTorch's DDP") { compare_with_shards<SimpleCnn>(); }
TEST_CASE("LibTorch: unused branches end with the numbers of PyTorch's DDP") { compare_with_shards<UnusedBranches>(); }
TEST_CASE("LibTorch: batch norm ends with the numbers of PyTorch's DDP") { compare_with_shards<BatchNorm>(); }
TEST_CASE("LibTorch: a transformer's layer ends with the numbers of PyTorch's DDP") {
  compare_with_shards<Transformer>();
}
TEST_CASE("LibTorch: a TorchScript network ends with the numbers of PyTorch's DDP") { compare_with_shards<Script>(); }

/// Run by tests/torch/parity.py.
TEST_CASE("LibTorch: all networks end with the numbers of PyTorch's DDP in Python", "[.python]") {
  const char* folder = std::getenv("DUET_PARITY");
  REQUIRE(folder != nullptr);
  at::set_num_threads(1);
  compare_with_python<SimpleCnn>(folder);
  compare_with_python<UnusedBranches>(folder);
  compare_with_python<BatchNorm>(folder);
  compare_with_python<Transformer>(folder);
  compare_with_python<Script>(folder);
}
