// 20 steps of LibTorch modules under duet's DistributedDataParallel, against PyTorch's.
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ddp/gloo/load.h"
#include "ddp/rank_threads.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/torch/networks.h"
#include "torch/ddp.h"

using duet_test::Approx;
using namespace duet_test;

namespace {

constexpr int kSteps = 20;

struct Result {
  std::vector<Tensor> parameters, gradients;
  double buffers = 0;  // their sum
};

struct Recorded {
  std::string_view network;
  int ranks;
  double parameters[4], gradients[4], buffers;
};

/// By torch.nn.parallel.DistributedDataParallel of torch 2.15.0 over gloo, a process per rank, with SGD(lr=0.02,
/// momentum=0.5): the probes of rank 0's parameters, of its last gradients, and the sum of its buffers.
constexpr Recorded kRecorded[] = {
    {"SimpleCnn",
     1,
     {-14.219067222, -1.360073380, -0.271208576, -1.130800999},
     {4.675459637, -1.286526495, -0.149772501, -0.191820070},
     0.000000000},
    {"Branches",
     1,
     {0.826847599, -0.014865564, -0.672593579, -2.076003783},
     {0.276643531, 0.050178837, -0.316099327, -0.238997649},
     0.000000000},
    {"BatchNorm",
     1,
     {0.901808453, 0.328976194, -1.042410985, -0.687530999},
     {0.013575602, 0.015539461, 0.089496826, 0.014653590},
     23.014894933},
    {"Transformer",
     1,
     {0.734168217, 2.398366789, -2.074987268, 0.713831037},
     {0.149152481, -0.041390961, -0.085464194, 0.046630571},
     0.000000000},
    {"Script",
     1,
     {1.026811753, -0.404666677, -0.619143345, -0.159003235},
     {-0.265433597, 0.346373381, 1.891654603, 0.613108292},
     0.000000000},
    {"SimpleCnn",
     2,
     {-14.219067028, -1.360072664, -0.271208532, -1.130800700},
     {4.675456626, -1.286526757, -0.149772525, -0.191820148},
     0.000000000},
    {"Branches",
     2,
     {0.745209178, 0.100537954, -0.855602474, -2.122990056},
     {0.782076879, -0.620169780, 0.376292941, -0.173374807},
     0.000000000},
    {"BatchNorm",
     2,
     {0.908111439, 0.333894509, -1.041717155, -0.697598121},
     {0.024804426, 0.040870558, 0.095542435, -0.028179732},
     23.038773619},
    {"Transformer",
     2,
     {0.734168274, 2.398366800, -2.074987268, 0.713831082},
     {0.149152555, -0.041390941, -0.085464165, 0.046630580},
     0.000000000},
    {"Script",
     2,
     {1.026811759, -0.404666688, -0.619143277, -0.159003303},
     {-0.265433583, 0.346373523, 1.891654768, 0.613108403},
     0.000000000},
    {"SimpleCnn",
     3,
     {-14.219065962, -1.360072682, -0.271208382, -1.130801547},
     {4.675455678, -1.286526756, -0.149772696, -0.191820194},
     0.000000000},
    {"Branches",
     3,
     {0.705118510, 0.268884903, -0.955213715, -2.205212172},
     {0.629813528, -0.213912377, 0.022800569, -0.130186194},
     0.000000000},
    {"BatchNorm",
     3,
     {0.910162484, 0.339077142, -1.041370454, -0.704897530},
     {0.011939776, 0.030342953, 0.093860026, -0.020481188},
     23.059591591},
    {"Transformer",
     3,
     {0.734168252, 2.398366822, -2.074987285, 0.713831044},
     {0.149152460, -0.041390975, -0.085464168, 0.046630561},
     0.000000000},
    {"Script",
     3,
     {1.026811585, -0.404666606, -0.619143340, -0.159003298},
     {-0.265433541, 0.346373403, 1.891654782, 0.613108441},
     0.000000000},
    {"SimpleCnn",
     4,
     {-14.219066432, -1.360072776, -0.271208224, -1.130801383},
     {4.675462949, -1.286527012, -0.149772425, -0.191820032},
     0.000000000},
    {"Branches",
     4,
     {0.726883364, 0.202669591, -0.886677153, -2.170501337},
     {0.564787167, -0.236785468, -0.008409420, -0.223566702},
     0.000000000},
    {"BatchNorm",
     4,
     {0.909743581, 0.336697680, -1.039926099, -0.702576721},
     {0.008624034, 0.025142811, 0.093927818, -0.007399347},
     23.077632509},
    {"Transformer",
     4,
     {0.734168210, 2.398366798, -2.074987267, 0.713831047},
     {0.149152506, -0.041390966, -0.085464212, 0.046630547},
     0.000000000},
    {"Script",
     4,
     {1.026811783, -0.404666604, -0.619143356, -0.159003247},
     {-0.265433594, 0.346373412, 1.891654677, 0.613108349},
     0.000000000},
};

torch::optim::SGD make_optimizer(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.02).momentum(0.5));
}

template <class Module>
Result result_of(const Module& module, const std::vector<Tensor>& parameters) {
  Result result{copies(parameters), copies(gradients_of(parameters))};
  for (const auto& buffer : duet::torch::tensors_of(module).buffers)
    result.buffers += buffer.value.to(torch::kDouble).sum().template item<double>();
  return result;
}

template <class Network>
Result train(duet::ddp::ProcessGroup& group) {
  auto module = Network::make();
  const std::vector<Tensor> parameters = parameters_of(*module);
  if (group.rank() == 0) {  // whose values the others get
    const torch::NoGradGuard no_grad;
    const std::vector<Tensor> values = parameters_of(*make_with_values<Network>());
    for (std::size_t i = 0; i < values.size(); ++i) Tensor(parameters[i]).copy_(values[i]);
  }
  // Small buckets, so that each step has several.
  duet::torch::DistributedDataParallel net(*module, group,
                                           {.bucket_limits = {1000, 4000},
                                            .find_unused_parameters = std::is_same_v<Network, UnusedBranches>,
                                            .compare_parameters_every = 7});
  torch::optim::SGD optimizer = make_optimizer(parameters);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    Network::loss(net, step, {group.rank(), group.size()}).backward();
    optimizer.step();
  }
  return result_of(*module, parameters);
}

/// The same without duet: the mean of the shards' gradients, one after the other.
template <class Network>
Result train_shards_in_turn(int ranks) {
  auto module = make_with_values<Network>();
  const std::vector<Tensor> parameters = parameters_of(*module);
  torch::optim::SGD optimizer = make_optimizer(parameters);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    std::vector<Tensor> buffers;
    for (const auto& buffer : duet::torch::tensors_of(*module).buffers) buffers.push_back(buffer.value);
    std::vector<Tensor> of_rank_0;
    for (int rank = 0; rank < ranks; ++rank) {
      (Network::loss(*module, step, {rank, ranks}) / ranks).backward();
      if (rank == 0) of_rank_0 = copies(buffers);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(of_rank_0[i]);
    optimizer.step();
  }
  return result_of(*module, parameters);
}

template <class Network>
void compare(int ranks, const std::string& backend) {
  INFO(Network::kName << " on " << ranks << " ranks over " << backend);
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  duet::ddp::run_rank_threads(
      ranks,
      [&](duet::ddp::ProcessGroup& group) { results[static_cast<std::size_t>(group.rank())] = train<Network>(group); },
      {.backend = backend});
  for (const Result& result : results) {
    CHECK(same_bits(result.parameters, results[0].parameters));
    CHECK(same_bits(result.gradients, results[0].gradients));
  }
  const Result expected = train_shards_in_turn<Network>(ranks);
  CHECK(largest_difference(results[0].parameters, expected.parameters) < 1e-6);
  CHECK(largest_difference(results[0].gradients, expected.gradients) < 1e-6);
  const auto* const recorded = std::find_if(std::begin(kRecorded), std::end(kRecorded), [&](const Recorded& row) {
    return row.network == Network::kName && row.ranks == ranks;
  });
  REQUIRE(recorded != std::end(kRecorded));
  const std::vector<double> values = probes(results[0].parameters), gradients = probes(results[0].gradients);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(values[i] == Approx(recorded->parameters[i]).margin(1e-5));
    CHECK(gradients[i] == Approx(recorded->gradients[i]).margin(1e-5));
  }
  CHECK(results[0].buffers == Approx(recorded->buffers).margin(1e-5));
}

template <class Network>
void compare_all() {
  at::set_num_threads(1);
  for (const int ranks : {1, 2, 3, 4}) compare<Network>(ranks, "shm");
  compare<Network>(3, "memory");
  if (duet::ddp::why_no_gloo().empty()) compare<Network>(2, "gloo");  // next to LibTorch's own copy of Gloo
}

}  // namespace

TEST_CASE("LibTorch: SimpleCNN ends with the numbers of PyTorch's DDP") { compare_all<SimpleCnn>(); }
TEST_CASE("LibTorch: unused branches end with the numbers of PyTorch's DDP") { compare_all<UnusedBranches>(); }
TEST_CASE("LibTorch: batch norm ends with the numbers of PyTorch's DDP") { compare_all<BatchNorm>(); }
TEST_CASE("LibTorch: a transformer's layer ends with the numbers of PyTorch's DDP") { compare_all<Transformer>(); }
TEST_CASE("LibTorch: a TorchScript network ends with the numbers of PyTorch's DDP") { compare_all<Script>(); }
