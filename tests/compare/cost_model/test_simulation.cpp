// The simulation of a step against closed forms and published scaling.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "compare/cost_model/simulate_step.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;
using duet_test::Approx;

namespace {

Link link_with(Algorithm algorithm, double latency_us, double bytes_per_us, double overlap = 1) {
  return {.hop = {.latency_us = latency_us, .bytes_per_us = bytes_per_us},
          .algorithm = algorithm,
          .overlap_share = overlap};
}

/// 100 us + 10 us a sample, half of it backward; two buckets of 100 kB that are ready at its half and at its end.
CostModel plain_model() {
  return {.step = {.fixed_us = 100, .per_sample_us = 10},
          .backward_share = 0.5,
          .buckets = {{.bytes = 1e5, .ready_share = 0.5}, {.bytes = 1e5, .ready_share = 1}}};
}

}  // namespace

TEST_CASE("an all-reduce crosses links as its algorithm does") {
  struct Line {
    Algorithm algorithm;
    int ranks;
    double latency, bytes;
  };
  for (const Line& line :
       {Line{Algorithm::ring, 4, 6, 1.5}, Line{Algorithm::ring, 2, 2, 1}, Line{Algorithm::tree, 4, 4, 4},
        Line{Algorithm::tree, 5, 6, 6}, Line{Algorithm::recursive_doubling, 8, 3, 3},
        Line{Algorithm::recursive_doubling, 6, 4, 4}, Line{Algorithm::one_shot, 4, 6, 2},
        Line{Algorithm::direct, 4, 2, 1.5}, Line{Algorithm::direct, 1, 0, 0}}) {
    INFO(name(line.algorithm) << " among " << line.ranks);
    const Crossings times = crossings(line.algorithm, line.ranks);
    CHECK(times.latency == line.latency);
    CHECK(times.bytes == line.bytes);
  }
  CHECK(all_reduce_us(link_with(Algorithm::ring, 5, 1000), 4, 2000) == Approx(6 * 5 + 1.5 * 2));
}

TEST_CASE("a measured link predicts what was measured, and more ranks by its backend's algorithm") {
  for (const char* backend : {"shm", "gloo", "tcp", "nccl", "memory"})
    for (const int ranks : {2, 3, 4}) {
      const MeasuredLink measured{.backend = backend, .ranks = ranks, .cost = {.latency_us = 40, .bytes_per_us = 1000}};
      CHECK(all_reduce_us(link_of(measured), ranks, 5000) == Approx(45));
    }
  const MeasuredLink gloo{.backend = "gloo", .ranks = 2, .cost = {.latency_us = 40, .bytes_per_us = 1000}};
  CHECK(all_reduce_us(link_of(gloo), 4, 5000) == Approx(40 + 1.5 * 5));
  const MeasuredLink nccl{.backend = "nccl", .ranks = 2, .cost = {.latency_us = 40, .bytes_per_us = 1000}};
  CHECK(all_reduce_us(link_of(nccl), 4, 5000) == Approx(6 * 20 + 1.5 * 5));
}

TEST_CASE("the expected largest of n normal numbers") {
  CHECK(expected_largest(1) == 0);
  CHECK(expected_largest(2) == Approx(1 / std::sqrt(3.14159265358979)));  // .5642
  CHECK(expected_largest(4) == Approx(1.0294).epsilon(1e-4));
  CHECK(expected_largest(8) == Approx(1.4236).epsilon(1e-4));
  // numpy.trapezoid of x n phi(x) Phi(x)^(n-1) over 400,001 points from -10 to 10.
  CHECK(expected_largest(1024) == Approx(3.24824).epsilon(1e-5));
}

TEST_CASE("communication without overlap adds up, with overlap only what is left shows") {
  const auto events = [](double share, double us) {
    return std::vector<BucketEvent>{{.ready_us = 185, .us = us, .compute_share = share},
                                    {.ready_us = 370, .us = us, .compute_share = share}};
  };
  CHECK(exposed_us(370, events(0, 100)) == 200);
  CHECK(exposed_us(370, events(1, 100)) == 100);  // the first ends at 285
  CHECK(exposed_us(370, events(1, 400)) == 615);  // the second begins at 585
  CHECK(exposed_us(370, events(0.5, 100)) == 150);
  CHECK(exposed_us(370, std::vector<BucketEvent>{{.ready_us = 185, .us = 185, .compute_share = 1}}) == 0);
  CHECK(exposed_us(370, {}) == 0);
  CHECK(exposed_us(370, events(-0.5, 100)) == 250);  // only the first runs next to backward
}

TEST_CASE("a step of ddp in closed form") {
  const CostModel model = plain_model();
  const auto step = [&](double overlap) {
    return simulate_step(
        model, {.mode = Mode::ddp, .devices = 2, .batch = 128, .link = link_with(Algorithm::direct, 0, 1000, overlap)});
  };
  CHECK(simulate_step(model, {.mode = Mode::single, .batch = 128}).total_us() == 1380);
  CHECK(step(0).ideal_us == 690);
  CHECK(step(0).smaller_batch_us == 50);
  CHECK(step(0).communication_us == 200);
  CHECK(step(0).total_us() == 940);
  CHECK(std::string(step(0).bounded_by()) == "communication");
  CHECK(step(1).communication_us == 100);
  CHECK(step(1).total_us() == 840);
}

TEST_CASE("slow-down and spread of devices lengthen the slowest device's step") {
  CostModel model = plain_model();
  model.slowdown = {{.devices = 2, .factor = 1.2}};
  model.step_spread_share = 0.05;
  const SimulatedStep step = simulate_step(
      model, {.mode = Mode::ddp, .devices = 4, .batch = 128, .link = link_with(Algorithm::direct, 0, 1e12)});
  const double own = 100 + 32 * 10;
  CHECK(step.slowdown_us == Approx(0.2 * own));
  CHECK(step.uneven_us == Approx(1.2 * own * 0.05 * 1.0294).epsilon(1e-4));
  CHECK(step.communication_us < 1e-6);
  CHECK(std::string(step.bounded_by()) == "slow-down");
  // 3 devices: the largest shard has 43 rows.
  const SimulatedStep three = simulate_step(
      model, {.mode = Mode::ddp, .devices = 3, .batch = 128, .link = link_with(Algorithm::direct, 0, 1e12)});
  CHECK(three.ideal_us + three.smaller_batch_us == Approx(100 + 43 * 10));
}

TEST_CASE("a step of dp in closed form") {
  CostModel model = plain_model();
  model.input_per_sample_us = 1;
  model.update_us = 20;
  model.dp = DpCopies{.scatter_bytes_per_sample = 100,
                      .gather_bytes_per_sample = 10,
                      .reduce_bytes = 50000,
                      .cost = {.latency_us = 2, .bytes_per_us = 1000}};
  const SimulatedJob job{.mode = Mode::dp, .devices = 2, .batch = 128};
  const SimulatedStep step = simulate_step(model, job);
  CHECK(step.ideal_us + step.smaller_batch_us == 740);
  CHECK(step.undivided_us == 64);
  CHECK(step.scatter_us == Approx(8.4));
  CHECK(step.replicate_us == 0);
  CHECK(step.gather_us == Approx(2.64));
  CHECK(step.reduce_us == Approx(52));
  CHECK(step.total_us() == Approx(740 + 64 + 8.4 + 2.64 + 52));
  model.dp->replicate_bytes = 50000;
  CHECK(simulate_step(model, job).replicate_us == Approx(52));
  CHECK(simulate_step(model, {.mode = Mode::dp, .devices = 4, .batch = 128}).reduce_us == Approx(3 * 52));
  model.dp->scatter_bytes_per_sample = 0;  // memory that devices share
  CHECK(simulate_step(model, job).scatter_us == 0);
}

TEST_CASE("averaging sums parameter by parameter after backward") {
  CostModel model = plain_model();
  model.parameter_bytes = {1000, 2000, 100000};
  const SimulatedStep step = simulate_step(
      model, {.mode = Mode::averaging, .devices = 2, .batch = 128, .link = link_with(Algorithm::direct, 5, 1000)});
  CHECK(step.communication_us == Approx(11 + 12 + 110));
}

TEST_CASE("between hosts each of them sends its bytes once") {
  CostModel model = plain_model();
  model.buckets = {{.bytes = 10000, .ready_share = 1}};
  model.links = {{.backend = "shm", .ranks = 4, .cost = {.latency_us = 12, .bytes_per_us = 1000}}};
  const SimulatedStep step = simulate_step(
      model, {.mode = Mode::ddp, .devices = 8, .hosts = 2, .batch = 128, .link = link_with(Algorithm::ring, 10, 100)});
  CHECK(step.communication_us == Approx(12 + 10 + 2 * 10 + 100));
}

TEST_CASE("1,024 devices are simulated, and more of them never shorten communication") {
  const CostModel model = duet_test::made_up_model();
  double last = 0;
  for (int hosts = 2; hosts <= 128; hosts *= 2) {
    const SimulatedStep step =
        simulate_step(model, {.devices = 8 * hosts, .hosts = hosts, .batch = 1024, .link = named_link("100gbe").link});
    CHECK(std::isfinite(step.total_us()));
    CHECK(step.communication_us >= last);
    last = step.communication_us;
  }
}

TEST_CASE("the break-even batch of two devices") {
  CostModel model = plain_model();
  fill_derived(model);
  CHECK(model.communication_us == 0);
  CHECK_FALSE(model.break_even_batch);
  model.links = {{.backend = "shm", .ranks = 2, .cost = {.latency_us = 0, .bytes_per_us = 1000}}};
  fill_derived(model);
  CHECK(model.communication_us == 200);
  CHECK(model.break_even_batch == 40);  // 100 + 10 b / 2 + 200 = 100 + 10 b
  model.slowdown = {{.devices = 2, .factor = 2.1}};
  fill_derived(model);
  CHECK_FALSE(model.break_even_batch);
  model.dp = DpCopies{.cost = {.latency_us = 0, .bytes_per_us = 1000}};
  model.slowdown.clear();
  fill_derived(model);
  CHECK(model.break_even_batch == 2);  // dp, whose copies are free here
}

TEST_CASE("what cannot be simulated is refused") {
  const CostModel model = plain_model();
  CHECK_THROWS_AS(simulate_step(model, {.devices = 256, .batch = 128}), UsageError);
  CHECK_THROWS_AS(simulate_step(model, {.devices = 4, .hosts = 3}), UsageError);
  CHECK_THROWS_AS(simulate_step(model, {.devices = 4, .hosts = 2}), UsageError);
  CHECK_THROWS_AS(simulate_step(model, {.mode = Mode::single, .devices = 2}), UsageError);
  CHECK_THROWS_WITH(simulate_step(model, {.devices = 2}), ContainsSubstring("model.links has no all-reduce"));
  CHECK_THROWS_WITH(simulate_step(model, {.mode = Mode::dp, .devices = 2}), ContainsSubstring("model.dp is null"));
  CHECK_THROWS_WITH(simulate_step(model, {.mode = Mode::averaging, .devices = 2, .link = Link{}}),
                    ContainsSubstring("model.parameter_bytes is empty"));
  CHECK_THROWS_WITH(named_link("usb"), ContainsSubstring("--link: unknown 'usb', expected pcie4"));
}

TEST_CASE("named links have published figures with their sources") {
  CHECK(named_link("pcie4").link.hop.bytes_per_us == Approx(31508).epsilon(1e-4));
  CHECK(named_link("nvlink4").link.hop.bytes_per_us == 450e3);
  CHECK(named_link("10gbe").link.hop.bytes_per_us == Approx(1177).epsilon(1e-3));
  CHECK(named_link("100gbe").link.hop.bytes_per_us == Approx(11769).epsilon(1e-3));
  CHECK(named_link("ndr").link.hop.bytes_per_us == 50e3);
  for (const NamedLink& link : named_links()) CHECK(link.source.size() > 30);
}

// Published: benchmarks/distributed/ddp/README.md of pytorch/pytorch (commit bf69c149), by the authors of "PyTorch
// Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020, arXiv 2006.15704): seconds an iteration
// (median) with 32 images on each GPU, on DGX-1 machines with 8 V100, 4 x 100 Gbit/s InfiniBand each, 25 MiB buckets.
// Its inputs, and nothing fitted: time on 1 GPU with DDP, torchvision's numbers of parameters, one NVLink 2 (25 GB/s a
// direction, NVIDIA's Tesla V100 whitepaper), NCCL's latencies (src/graph/tuning.cc). Not published, so assumed: that
// backward is two thirds of a step and gradients become ready evenly. Without NCCL's slow-down of compute, which is not
// published either, the model is 2 to 5.3 % too fast.
// The paper's own figure 9 (1 to 256 GPUs) is not reproduced here: it states no times of its links, buckets or
// stragglers, and its slow-down on 256 GPUs of a shared cluster is beyond what 100 Gbit/s explain.
TEST_CASE("published scaling of DDP is predicted within 10 % from its own inputs") {
  struct Published {
    const char* network;
    double parameters, one_gpu_s;
    std::vector<double> several_s;  // 2, 4, 8 and 2 x 8 GPUs
  };
  const std::vector<Published> published = {{"resnet50", 25557032, 0.100, {0.103, 0.103, 0.104, 0.104}},
                                            {"resnet101", 44549160, 0.171, {0.176, 0.176, 0.179, 0.179}},
                                            {"resnext50_32x4d", 25028904, 0.147, {0.153, 0.153, 0.157, 0.157}},
                                            {"resnext101_32x8d", 88791336, 0.425, {0.438, 0.439, 0.447, 0.450}}};
  for (const Published& network : published) {
    CostModel model{.step = {.per_sample_us = network.one_gpu_s * 1e6 / 32},
                    .backward_share = 2.0 / 3,
                    .buckets = usual_buckets(4 * network.parameters)};
    const Link nvlink = link_with(Algorithm::ring, 3.4, 25e3), infiniband = link_with(Algorithm::ring, 9.6, 50e3);
    double devices = 2;
    for (const double measured_s : network.several_s) {
      const bool two_hosts = devices == 16;
      SimulatedJob job{.devices = static_cast<int>(devices), .batch = 32 * devices, .link = nvlink};
      if (two_hosts) {
        const Crossings times = crossings(Algorithm::ring, 8);
        model.links = {{.backend = "nccl",
                        .ranks = 8,
                        .cost = {.latency_us = times.latency * 3.4, .bytes_per_us = 25e3 / times.bytes}}};
        job.hosts = 2;
        job.link = infiniband;
      }
      const double predicted_s = simulate_step(model, job).total_us() / 1e6;
      INFO(network.network << " on " << devices << " GPUs: predicted " << predicted_s << " s");
      CHECK(std::fabs(predicted_s / measured_s - 1) < 0.1);
      CHECK(predicted_s > network.one_gpu_s);
      devices *= 2;
    }
  }
}

TEST_CASE("hosts of one device each use the network alone") {
  const CostModel model = duet_test::made_up_model();
  const Link network{.hop = {.latency_us = 50, .bytes_per_us = 100}};
  const SimulatedStep step =
      simulate_step(model, {.mode = Mode::ddp, .devices = 2, .hosts = 2, .batch = 128, .link = network});
  CHECK(std::isfinite(step.total_us()));
  CHECK(step.communication_us > 0);
  CHECK(all_reduce_us(Link{}, 1, 1e6) == 0);
}
