// Process groups over NCCL: results, order among devices, and valid arguments.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/init.h"
#include "lib/base/trace.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/cuda/small_cnn.h"
#include "tests/cuda/steps.h"
#include "tests/support/error_of.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet_test;
using ddp::ReduceOp;

namespace {

constexpr int kCount = 5;

template <class T>
using Values = std::vector<T>;

template <class T>
T value(int rank, int i) {
  return static_cast<T>(static_cast<float>((rank + i) % 4 + 1));  // products of four fit a byte
}

template <class T>
Values<T> own_values(int rank) {
  Values<T> list;
  for (int i = 0; i < kCount; ++i) list.push_back(value<T>(rank, i));
  return list;
}

template <class T>
Tensor on_device(const Values<T>& values, Device device) {
  return from_values<T>({static_cast<std::int64_t>(values.size())}, values).to(device);
}

template <class T>
Values<T> reduced(int size, ReduceOp op) {
  Values<T> total = own_values<T>(0);
  for (int rank = 1; rank < size; ++rank) {
    for (std::size_t i = 0; i < total.size(); ++i) {
      const T one = value<T>(rank, static_cast<int>(i));
      switch (op) {
        case ReduceOp::sum:
        case ReduceOp::avg: total[i] = static_cast<T>(total[i] + one); break;
        case ReduceOp::product: total[i] = static_cast<T>(total[i] * one); break;
        case ReduceOp::min: total[i] = std::min(total[i], one); break;
        case ReduceOp::max: total[i] = std::max(total[i], one); break;
      }
    }
  }
  if (op == ReduceOp::avg)
    for (T& one : total) one = static_cast<T>(one / static_cast<T>(static_cast<float>(size)));
  return total;
}

template <class T>
Values<T> of_all(int size) {
  Values<T> list;
  for (int rank = 0; rank < size; ++rank)
    for (int i = 0; i < kCount; ++i) list.push_back(value<T>(rank, i));
  return list;
}

/// The failed checks; Catch2's macros are for one thread.
template <class T>
std::string check_collectives(ProcessGroup& group) {
  const int rank = group.rank(), size = group.size(), root = size - 1;
  const Device device = gpu_of(rank);
  const auto own = [&] { return on_device(own_values<T>(rank), device); };
  const auto zero = [&](int ranks) { return on_device(Values<T>(static_cast<std::size_t>(ranks * kCount)), device); };
  std::vector<ReduceOp> ops = {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};
  if (is_floating(dtype_of<T>())) ops.push_back(ReduceOp::avg);
  for (const ReduceOp op : ops) {
    const Tensor all = own(), one = own();
    group.all_reduce(all, op).wait();
    group.reduce(one, root, op).wait();
    if (values_of<T>(all) != reduced<T>(size, op)) return concat("all_reduce ", name(op));
    if (values_of<T>(one) != (rank == root ? reduced<T>(size, op) : own_values<T>(rank)))
      return concat("reduce ", name(op));
  }
  const Tensor sent = own(), everything = zero(size), gathered = zero(rank == root ? size : 0), piece = zero(1);
  group.broadcast(sent, root).wait();
  if (values_of<T>(sent) != own_values<T>(root)) return "broadcast";
  group.all_gather(own(), everything).wait();
  if (values_of<T>(everything) != of_all<T>(size)) return "all_gather";
  const Tensor mine = own();
  group.gather(mine, gathered, root).wait();
  if (rank == root && values_of<T>(gathered) != of_all<T>(size)) return "gather";
  group.scatter(rank == root ? everything : zero(0), piece, root).wait();
  if (values_of<T>(piece) != own_values<T>(rank)) return "scatter";
  for (const ReduceOp op : ops) {  // every rank gives the values of one rank to all pieces
    Values<T> pieces;
    for (int i = 0; i < size; ++i)
      for (const T one : own_values<T>(rank)) pieces.push_back(one);
    group.reduce_scatter(on_device(pieces, device), piece, op).wait();
    if (values_of<T>(piece) != reduced<T>(size, op)) return concat("reduce_scatter ", name(op));
  }
  const Tensor exchanged = zero(size);
  group.all_to_all(on_device(of_all<T>(size), device), exchanged).wait();
  Values<T> same;
  for (int i = 0; i < size; ++i)
    for (const T one : own_values<T>(rank)) same.push_back(one);
  if (values_of<T>(exchanged) != same) return "all_to_all";
  const auto half = group.split(rank % 2);
  const Tensor few = own();
  half->broadcast(few).wait();
  if (values_of<T>(few) != own_values<T>(rank % 2)) return "broadcast in a half of the group";
  group.barrier().wait();
  return "";
}

template <class T>
void collectives_of_every_size() {
  for (const int size : {1, 2, 3, 4}) {
    if (size > backend(DeviceKind::cuda).device_count()) continue;
    CAPTURE(size);
    std::vector<std::string> wrong(static_cast<std::size_t>(size));
    run_nccl_ranks(size, [&](ProcessGroup& group) {
      wrong[static_cast<std::size_t>(group.rank())] = check_collectives<T>(group);
    });
    for (const std::string& one : wrong) CHECK(one == "");
  }
}

}  // namespace

DUET_NCCL_TEST(1, "nccl: every collective of every dtype") {
  SECTION("f32") { collectives_of_every_size<float>(); }
  SECTION("f64") { collectives_of_every_size<double>(); }
  SECTION("i32") { collectives_of_every_size<std::int32_t>(); }
  SECTION("i64") { collectives_of_every_size<std::int64_t>(); }
  SECTION("u8") { collectives_of_every_size<std::uint8_t>(); }
  SECTION("f16") { collectives_of_every_size<Float16>(); }
  SECTION("bf16") { collectives_of_every_size<BFloat16>(); }
}

DUET_NCCL_TEST(2, "nccl: collectives run after the device's earlier work, and before its later work") {
  constexpr int kRounds = 8;
  std::vector<std::vector<float>> results(2);
  const std::uint64_t begin = Trace::position();
  run_nccl_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    std::vector<Tensor> tensors;
    std::vector<ddp::Work> works;
    for (int i = 0; i < kRounds; ++i) {
      const Tensor& x = tensors.emplace_back(on_device<float>({static_cast<float>(i)}, gpu_of(group.rank())));
      backend(x).scale(x, 2);
      works.push_back(group.all_reduce(x));
    }
    for (int i = kRounds - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      works[at].wait();
      backend(tensors[at]).scale(tensors[at], 10);
    }
    for (const Tensor& x : tensors) results[rank].push_back(values_of<float>(x)[0]);
    group.barrier().wait();
  });
  for (const auto& values : results) CHECK(values == std::vector<float>{0, 40, 80, 120, 160, 200, 240, 280});
  std::vector<TraceEvent> events;
  Trace::read(begin, events);
  for (int rank = 0; rank < 2; ++rank)
    CHECK(std::count_if(events.begin(), events.end(), [&](const TraceEvent& event) {
            return event.kind == TraceEvent::Kind::device_communication && event.device.index == rank && event.us() > 0;
          }) >= kRounds);
}

DUET_NCCL_TEST(2, "nccl: messages go around a ring, and two of them in order") {
  const int size = std::min(4, backend(DeviceKind::cuda).device_count());
  std::vector<std::vector<float>> got(static_cast<std::size_t>(size));
  run_nccl_ranks(size, [&](ProcessGroup& group) {
    const int rank = group.rank(), next = (rank + 1) % size, before = (rank + size - 1) % size;
    const Device device = gpu_of(rank);
    const Tensor first = on_device<float>({static_cast<float>(rank)}, device), second = on_device<float>({7}, device);
    const Tensor a = zeros({1}, DType::f32, device), b = zeros({1}, DType::f32, device);
    std::vector<ddp::Work> works = {group.send(first, next), group.send(second, next), group.recv(a, before),
                                    group.recv(b, before)};
    for (ddp::Work& work : works) work.wait();
    got[static_cast<std::size_t>(rank)] = {values_of<float>(a)[0], values_of<float>(b)[0]};
    const Tensor sum = on_device<float>({1}, device);
    works = {group.send(first, next), group.recv(a, before)};  // sent before the next collective
    group.all_reduce(sum).wait();
    for (ddp::Work& work : works) work.wait();
    got[static_cast<std::size_t>(rank)].push_back(values_of<float>(sum)[0] + values_of<float>(a)[0]);
  });
  for (int rank = 0; rank < size; ++rank) {
    const auto before = static_cast<float>((rank + size - 1) % size);
    CHECK(got[static_cast<std::size_t>(rank)] == std::vector<float>{before, 7, static_cast<float>(size) + before});
  }
}

DUET_NCCL_TEST(2, "nccl: buffers in the host's memory go over the device, those of another device are refused") {
  std::vector<std::string> refused(2), tags(2);
  std::vector<std::vector<double>> sums(2), all(2);
  run_nccl_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    sums[rank] = {1.0 + group.rank(), 5};
    group.all_reduce(std::span<double>(sums[rank])).wait(std::chrono::seconds(60));
    double own = group.rank();
    all[rank].resize(2);
    group.all_gather(std::span<double>(&own, 1), std::span<double>(all[rank])).wait();
    const Tensor elsewhere = zeros({2}, DType::f32, gpu_of(1 - group.rank()));
    refused[rank] = error_of<UsageError>([&] { group.all_reduce(elsewhere).wait(); });
    tags[rank] = error_of<UsageError>(
        [&] { group.send(zeros({2}, DType::f32, gpu_of(group.rank())), 1 - group.rank(), 3).wait(); });
  });
  for (const auto& values : sums) CHECK(values == std::vector<double>{3, 10});
  for (const auto& values : all) CHECK(values == std::vector<double>{0, 1});
  CHECK(refused[0] == "all_reduce: a buffer is on cuda:1, but this rank's device is cuda:0");
  CHECK(tags[1] == "send: messages over NCCL have no tags, got 3");
}

DUET_NCCL_TEST(1, "nccl: DistributedDataParallel learns what one GPU learns") {
  nn::SimpleCNN alone(7, kSmall);
  alone.to(gpu_of(0));
  const Array single = train(alone, alone, 0, 1);
  for (const int size : {1, 2, 4}) {
    if (size > backend(DeviceKind::cuda).device_count()) continue;
    std::vector<Array> learned(static_cast<std::size_t>(size), Array{Shape{0}});
    run_nccl_ranks(size, [&](ProcessGroup& group) {
      nn::SimpleCNN model(7, kSmall);
      model.to(gpu_of(group.rank()));
      ddp::DistributedDataParallel net(model, group, {.bucket_limits = kSmallBuckets});
      learned[static_cast<std::size_t>(group.rank())] = train(model, net, group.rank(), size);
    });
    CAPTURE(size);
    for (const Array& values : learned) CHECK(relative_error(to_tensor(values), single) < 1e-5);
  }
}

DUET_NCCL_TEST(2, "nccl: init_process_group connects ranks with their GPUs") {
  const Scratch scratch;
  std::vector<std::string> backends(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      try {
        const auto group = ddp::init_process_group({.backend = "nccl",
                                                    .init_method = "file://" + scratch.path("store"),
                                                    .rank = rank,
                                                    .world_size = 2,
                                                    .device = gpu_of(rank)});
        const Tensor x = on_device<float>({1}, gpu_of(rank));
        group->all_reduce(x).wait();
        backends[i] = concat(group->backend(), " ", values_of<float>(x)[0]);
      } catch (const Error& error) {
        backends[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : backends) CHECK(one == "nccl 2");
}
