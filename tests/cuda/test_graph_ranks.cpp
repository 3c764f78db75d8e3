// Ranks over NCCL whose steps, all_reduce and all, are recorded and replayed as CUDA graphs.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <utility>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/cuda/training.h"

using namespace duet;
using namespace duet_test;
using ddp::Buffer;
using ddp::DistributedDataParallelOptions;
using std::chrono::milliseconds;

namespace {

/// Small, with dropout and several gradients.
std::unique_ptr<nn::Module> network() {
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Flatten>();
  net->add<nn::Linear>(784, 8);
  net->add<nn::Dropout>(0.5);
  net->add<nn::Linear>(8, 10);
  net->add<nn::LogSoftmax>();
  net->initialise(7);
  return net;
}

/// Every gradient is a bucket of its own.
const DistributedDataParallelOptions kManyBuckets = {.bucket_limits = {1}};

std::unique_ptr<Training> rank_of(ProcessGroup& group, std::int64_t images, std::int64_t batch, bool recorded,
                                  const DistributedDataParallelOptions& options = kManyBuckets) {
  return std::make_unique<Training>(network(), images, batch, recorded, gpu_of(group.rank()), &group, options);
}

/// Reads the second bucket on the host, which a recorded step cannot.
struct CuriousHook final : ddp::CommHook {
  ddp::Work start(ProcessGroup& group, const ddp::GradBucket& bucket) override {
    const Buffer& buffer = bucket.gradients;
    if (looks && bucket.index == 1) on_cpu(borrow(buffer.data, {buffer.count}, buffer.dtype, buffer.device));
    return group.all_reduce(buffer);
  }
  void finish(ProcessGroup&, const ddp::GradBucket&) override {}
  bool looks = false;
};

/// A number that all ranks add up, outside of all graphs.
float sum_over(ProcessGroup& group) {
  const Tensor one = from_values<float>({1}, {1}).to(gpu_of(group.rank()));
  group.all_reduce(one).wait();
  return *on_cpu(one).data<float>();
}

}  // namespace

DUET_NCCL_TEST(2, "nccl: recorded steps of ranks train the very bits of plain ones") {
  const int size = GENERATE(2, 4);
  if (size > backend(DeviceKind::cuda).device_count()) DUET_SKIP("too few GPUs");
  const int several = GENERATE(1, 2);
  run_nccl_ranks(size, [&](ProcessGroup& group) {
    // The last batch has 6 rows: one or two a rank where there are four.
    const auto plain = rank_of(group, 22, 8, false), recorded = rank_of(group, 22, 8, true);
    recorded->set_several(several);
    for (int epoch = 0; epoch < 4; ++epoch) {
      for (Training* training : {plain.get(), recorded.get()})
        if (epoch == 2) training->optimizer().set_lr(0.02f);
      const float expected = plain->epoch(), sum = recorded->epoch();
      CHECK(sum == expected);
      CHECK(sum_over(group) == static_cast<float>(size));
      CHECK(same_values(*recorded, *plain));
    }
    CHECK(recorded->graph().recordings() == 4);
    CHECK(recorded->graph().replays() == 9);
    CHECK(plain->wrapper().steps() == 12);
    CHECK(recorded->wrapper().steps() == 3);
  });
}

DUET_NCCL_TEST(2, "nccl: a rank that does not join a replay is named") {
  std::latch ended(2);
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        const auto training = rank_of(group, 16, 8, true);
        for (int epoch = 0; epoch < 2; ++epoch) training->epoch();
        CHECK(training->graph().replays() == 2);
        if (group.rank() == 1) return ended.arrive_and_wait();
        try {
          training->epoch();
          training->epoch();
        } catch (...) {
          ended.arrive_and_wait();
          throw;
        }
      },
      with_timeout(milliseconds(5000)));
  CHECK_THAT(failures[0],
             ContainsSubstring("a recorded step from collective #") &&
                 ContainsSubstring("failed on rank 0: it has not ended within 5000 ms; rank 1 did not join"));
  CHECK(failures[1] == "");
}

DUET_NCCL_TEST(2, "nccl: a rank that dies in a replay ends the others at once") {
  const auto failures = try_nccl_ranks(
      2,
      [](ProcessGroup& group) {
        const auto training = rank_of(group, 16, 8, true);
        for (int epoch = 0; epoch < 100; ++epoch) {
          training->epoch([&](Training&) {
            // Within a replayed step that is launched and not waited for.
            require<DataError>(group.rank() == 0 || epoch < 2, "a damaged file");
          });
        }
      },
      with_timeout(std::chrono::seconds(60)));
  CHECK(failures[1] == "a damaged file");
  CHECK_THAT(failures[0], ContainsSubstring("failed on rank 0: ") &&
                              ContainsSubstring("the group failed on rank 1: it was dropped"));
}

DUET_NCCL_TEST(2, "nccl: work with a part on the host is not recorded, and has no side effects") {
  run_nccl_ranks(2, [](ProcessGroup& group) {
    const auto plain = rank_of(group, 16, 8, false), recorded = rank_of(group, 16, 8, true);
    for (Training* training : {plain.get(), recorded.get()}) training->epoch();
    const Tensor x = zeros({1}, DType::f32, gpu_of(group.rank()));
    const auto wait = [&] { group.barrier().wait(); };
    const auto send = [&] { group.send(x, 1 - group.rank()).wait(); };
    const auto host = [&] {
      double number = 1;
      group.all_reduce({&number, 1, DType::f64}).wait();
    };
    const auto leave = [&] { (void)group.all_reduce(x); };
    const std::pair<std::function<void()>, const char*> cases[] = {
        {wait, "barrier: the host waits for it, so it cannot be part of a recorded step"},
        {send, "send: messages cannot be part of a recorded step"},
        {host, "a copy from the host on cuda:"},
        {leave, "recording a step"}};
    for (Training* training : {plain.get(), recorded.get()}) {
      training->epoch([&](Training& now) {
        if (training == plain.get() || now.loader().stamp().step != 2) return;
        StepKey key = now.key();
        key.lr = 77;  // a new one, which is to be recorded
        for (const auto& [spoil, message] : cases) {
          const auto spoilt = [&now, &spoil = spoil] {  // clang 14 captures no structured binding by itself
            const Tensor loss = now.step();
            spoil();
            return loss;
          };
          CHECK_THROWS_WITH(now.graph().run(key, spoilt), ContainsSubstring(message));
        }
      });
      training->epoch();
    }
    CHECK(same_values(*recorded, *plain));
    CHECK(sum_over(group) == 2);
  });
}

DUET_NCCL_TEST(2, "nccl: a recording that fails within backward leaves DistributedDataParallel as it was") {
  run_nccl_ranks(2, [](ProcessGroup& group) {
    const auto hook = std::make_shared<CuriousHook>();
    DistributedDataParallelOptions options = kManyBuckets;
    options.comm_hook = hook;
    const auto plain = rank_of(group, 16, 8, false), recorded = rank_of(group, 16, 8, true, options);
    for (Training* training : {plain.get(), recorded.get()}) training->epoch();
    hook->looks = true;
    CHECK_THROWS_WITH(recorded->epoch(), ContainsSubstring("a copy to the host on cuda:"));
    hook->looks = false;
    recorded->loader().set_position({1, 0});
    for (Training* training : {plain.get(), recorded.get()}) training->epoch();
    CHECK(recorded->graph().replays() == 2);
    CHECK(same_values(*recorded, *plain));
  });
}

DUET_NCCL_TEST(2, "nccl: steps that ranks compare or join are not recorded") {
  run_nccl_ranks(2, [](ProcessGroup& group) {
    const auto compared = rank_of(group, 16, 8, true, {.compare_parameters_every = 3});
    compared->epoch();
    CHECK_THROWS_WITH(compared->epoch(), ContainsSubstring("with compare_parameters_every = 3: the ranks compare"));
    const auto joined = rank_of(group, 16, 8, true);
    joined->wrapper().join([&] { joined->epoch(); });
    CHECK_THROWS_WITH(joined->wrapper().join([&] { joined->epoch(); }),
                      ContainsSubstring("a step within join() cannot"));
  });
}

DUET_NCCL_TEST(2, "nccl: work that is left over when its group is closed says so") {
  ddp::Work left[2];
  run_nccl_ranks(2, [&](ProcessGroup& group) {
    const Device device = gpu_of(group.rank());
    StepRecorder& recorder = *backend(device.kind).recorder(device);
    const Tensor x = zeros({1}, DType::f32, device);
    recorder.begin(0, 1);
    left[group.rank()] = group.all_reduce(x);
    recorder.cancel();
  });
  for (ddp::Work& work : left) CHECK_THROWS_WITH(work.wait(), "the process group is closed");
}

DUET_NCCL_TEST(2, "nccl: a group that ends drops the recordings of its collectives") {
  std::unique_ptr<Training> left[2];
  run_nccl_ranks(2, [&](ProcessGroup& group) {
    auto& training = left[group.rank()] = rank_of(group, 16, 8, true);
    for (int epoch = 0; epoch < 2; ++epoch) training->epoch();
  });
  for (auto& training : left) CHECK_THROWS_WITH(training->epoch(), ContainsSubstring("has no recording"));
}
