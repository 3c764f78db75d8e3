// DistributedDataParallel with every rank on a GPU, or on a logical device of one: ranks are threads here.
#include <cstddef>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "tests/cuda/gpu.h"
#include "tests/cuda/small_cnn.h"
#include "tests/cuda/steps.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;
using ddp::ProcessGroup;

namespace {

Device device_of(int rank) {
  const bool distinct = backend(DeviceKind::cuda).device_count() > rank;
  return distinct ? Device{DeviceKind::cuda, rank} : Device{DeviceKind::cuda, 0, rank};
}

Tensor numbers(int rank, Device device) {
  return from_values<float>({3}, {1.0f + static_cast<float>(rank), 2, 3}).to(device);
}

}  // namespace

DUET_CUDA_TEST("cuda: DistributedDataParallel learns what one GPU learns") {
  nn::SimpleCNN alone(7, kSmall);
  alone.to(device_of(0));
  const Array single = train(alone, alone, 0, 1);
  const Over over = GENERATE(Over::memory, Over::shm);
  for (const int size : {1, 2, 4}) {
    std::vector<Array> learned(static_cast<std::size_t>(size), Array{Shape{0}});
    run_ranks(over, size, [&](ProcessGroup& group) {
      nn::SimpleCNN model(7, kSmall);
      model.to(device_of(group.rank()));
      ddp::DistributedDataParallel net(model, group, {.bucket_limits = kSmallBuckets});
      learned[static_cast<std::size_t>(group.rank())] = train(model, net, group.rank(), size);
    });
    CAPTURE(size);
    for (const Array& values : learned) CHECK(relative_error(to_tensor(values), single) < 1e-5);
  }
}

DUET_CUDA_TEST("cuda: collectives run after the device's earlier work, and leave the result there") {
  const Over over = GENERATE(Over::memory, Over::shm);
  std::vector<std::vector<float>> sums(2), copies(2), pieces(2), all(2), passed(2);
  run_ranks(over, 2, [&](ProcessGroup& group) {
    const Device device = device_of(group.rank());
    const auto rank = static_cast<std::size_t>(group.rank());
    Tensor x = numbers(group.rank(), device);
    backend(x).scale(x, 2);
    group.all_reduce(x).wait();
    backend(x).scale(x, 10);
    sums[rank] = values_of(x);
    x = numbers(group.rank(), device);
    group.broadcast(x, 1).wait();
    copies[rank] = values_of(x);
    const Tensor table = zeros({6}, DType::f32, device), piece = zeros({3}, DType::f32, device);
    group.all_gather(numbers(group.rank(), device), table).wait();
    all[rank] = values_of(table);
    group.scatter(table, piece, 0).wait();
    pieces[rank] = values_of(piece);
    x = numbers(group.rank(), device);
    (group.rank() == 0 ? group.send(x, 1) : group.recv(x, 0)).wait();
    passed[rank] = values_of(x);
  });
  for (const auto& values : sums) CHECK(values == std::vector<float>{60, 80, 120});
  for (const auto& values : copies) CHECK(values == std::vector<float>{2, 2, 3});
  for (const auto& values : all) CHECK(values == std::vector<float>{1, 2, 3, 2, 2, 3});
  CHECK(pieces[0] == std::vector<float>{1, 2, 3});
  CHECK(pieces[1] == std::vector<float>{2, 2, 3});
  CHECK(passed[1] == std::vector<float>{1, 2, 3});
}
