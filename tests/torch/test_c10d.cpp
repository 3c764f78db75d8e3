// duet under PyTorch's c10d, from C++.
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/rank_threads.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"
#include "torch/c10d/backend.h"

namespace ddp = duet::ddp;
using duet::DType;
using duet::torch::C10dStore;
using duet::torch::make_c10d_backend;
using duet::torch::make_c10d_group;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// A network of fixed values, and this rank's rows of a batch.
struct Training {
  Training() {
    at::Tensor values = torch::linspace(-0.5, 0.5, 8 * 32 + 32 + 32 * 4 + 4);
    std::int64_t begin = 0;
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{32, 8}, {32}, {4, 32}, {4}}) {
      const std::int64_t count = c10::multiply_integers(shape);
      parameters.push_back(torch::sin(values.narrow(0, begin, count) * 37).view(shape).requires_grad_(true));
      begin += count;
    }
  }
  at::Tensor loss(int rank, int size, int step) const {
    const at::Tensor x = torch::cos(torch::arange(24 * 8).view({24, 8}) * (step + 1));
    const at::Tensor hidden =
        torch::tanh(torch::linear(x.chunk(size)[static_cast<std::size_t>(rank)], parameters[0], parameters[1]));
    return torch::linear(hidden, parameters[2], parameters[3]).pow(2).mean();
  }
  void step() {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& value : parameters) value.sub_(value.grad(), 0.1);
  }
  std::vector<at::Tensor> parameters;
};

using Parameters = std::vector<at::Tensor>;
using Buckets = std::vector<std::vector<std::size_t>>;
using Names = std::unordered_map<std::size_t, std::string>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
template <class Reducer, class... More>
constexpr bool kTakes = std::is_constructible_v<Reducer, Parameters, Buckets, Group, std::vector<bool>, std::int64_t,
                                                bool, bool, Names, std::int64_t, More...>;

/// A Reducer whose gradients are views of buckets. Versions differ in the last arguments.
template <class Reducer>
std::unique_ptr<Reducer> make_reducer(const Parameters& parameters, const Group& group) {
  const auto make = [&](auto... more) {
    return std::make_unique<Reducer>(parameters, Buckets{{3}, {1, 2}, {0}}, group, std::vector<bool>(4, false), 1 << 20,
                                     false, true, Names(), 1 << 20, more...);
  };
  if constexpr (kTakes<Reducer>)
    return make();
  else if constexpr (kTakes<Reducer, bool>)
    return make(false);
  else if constexpr (kTakes<Reducer, bool, bool>)
    return make(false, false);
  else
    return make(false, false, std::vector<std::int64_t>());
}

std::string c10_error_of(const std::function<void()>& task) {
  try {
    task();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace

TEST_CASE("c10d's Reducer over duet ends with the bits of duet's own sums") {
  const int ranks = GENERATE(1, 2, 4);  // of 3 the Reducer multiplies by a rounded third
  std::vector<std::vector<at::Tensor>> by_reducer(static_cast<std::size_t>(ranks)), by_hand = by_reducer;
  const auto place = [](const ddp::ProcessGroup& group) { return static_cast<std::size_t>(group.rank()); };
  ddp::run_rank_threads(ranks, [&](ddp::ProcessGroup& group) {
    Training training;
    for (int step = 0; step < 5; ++step) {
      for (at::Tensor& value : training.parameters) value.mutable_grad() = at::Tensor();
      training.loss(group.rank(), group.size(), step).backward();
      for (const at::Tensor& value : training.parameters) {
        const at::Tensor grad = value.grad().div_(group.size());
        group.all_reduce({grad.data_ptr(), grad.numel(), DType::f32}).wait();
      }
      training.step();
    }
    by_hand[place(group)] = training.parameters;
  });
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = make_c10d_group(ddp::init_process_group(std::make_shared<C10dStore>(store), rank, ranks));
      Training training;
      const auto reducer = make_reducer<c10d::Reducer>(training.parameters, group);
      for (int step = 0; step < 5; ++step) {
        for (at::Tensor& value : training.parameters)
          if (value.grad().defined()) value.mutable_grad().zero_();
        reducer->prepare_for_forward();
        const at::Tensor loss = training.loss(rank, ranks, step);
        reducer->prepare_for_backward({loss});
        loss.backward();
        training.step();
      }
      by_reducer[static_cast<std::size_t>(rank)] = training.parameters;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < by_hand.size(); ++rank)
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(torch::equal(by_reducer[rank][i], by_hand[0][i]));
      CHECK(torch::equal(by_hand[rank][i], by_hand[0][i]));
    }
}

TEST_CASE("PyTorch's store serves as duet's") {
  const auto hash = c10::make_intrusive<c10d::HashStore>();
  C10dStore store(hash);
  store.set("a", std::string("1\0", 2));
  CHECK(store.get("a") == std::string("1\0", 2));
  CHECK(store.add("n", 5) == 5);
  CHECK(store.add("n", -7) == -2);
  CHECK(store.check({"a", "n"}));
  CHECK_FALSE(store.check({"a", "b"}));
  CHECK(store.compare_set("c", "", "new") == "new");
  CHECK(store.compare_set("c", "old", "newer") == "new");
  CHECK(store.compare_set("d", "old", "new") == "old");
  CHECK(store.multi_get({"c", "n"}) == std::vector<std::string>{"new", "-2"});
  store.append("c", "er");
  CHECK(store.get("c") == "newer");
  CHECK(store.num_keys() == 3);
  CHECK(store.delete_key("c"));
  CHECK_FALSE(store.delete_key("c"));
  CHECK(store.secret() == C10dStore(hash).secret());
  CHECK_THROWS_WITH(store.wait({"a", "x", "y"}, 10ms), "waited 10 ms for the store's keys x, y, which no rank has set");
}

TEST_CASE("a rank that does not come to c10d's store is named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK(c10_error_of([&] { make_c10d_backend(store, 1, 3, {.join_timeout = 20ms}); }) ==
        "ranks 0, 2 of 3 did not join within 20 ms (waiting on rank 1)");
  CHECK(c10_error_of([&] { make_c10d_backend(store, 3, 3); }) ==
        "Invalid rank 3, rank should be in the interval [0, 2]");
}

TEST_CASE("a work that no thread waits for ends in the background, and keeps its tensors") {
  const auto backend = make_c10d_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  std::vector<at::Tensor> tensors{torch::arange(6).view({2, 3}).t()};
  const at::Tensor before = tensors[0].clone();
  const auto work = backend->allreduce(tensors, {});
  const auto future = work->getFuture();
  CHECK(work->getFuture() == future);
  future->wait();
  CHECK(work->isCompleted());
  CHECK(torch::equal(future->value().toTensorVector().at(0), before));
  const auto weak = [&] {
    std::vector<at::Tensor> dropped{torch::ones(4)};
    backend->broadcast(dropped, {});
    return c10::weak_intrusive_ptr(dropped[0].getIntrusivePtr());
  }();
  backend->barrier({})->wait();  // the queue may have been busy still, and the broadcast started behind it
  backend->barrier({});
  CHECK(weak.expired());
  CHECK(backend->getSequenceNumberForGroup() == 4);
  backend->shutdown();
  CHECK(c10_error_of([&] { backend->barrier({}); }) == "duet:barrier: the process group has been shut down");
  CHECK(work->wait());
}

TEST_CASE("calls start behind the callbacks of a future that has not completed") {
  const auto backend = make_c10d_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  std::vector<at::Tensor> tensors{torch::ones(2)};
  std::vector<std::string> order;
  std::promise<void> attached;
  // The queue's thread is held up, so that the callback that calls is attached before its future completes.
  backend->allreduce(tensors, {})->getFuture()->addCallback([&](c10::ivalue::Future&) {
    attached.get_future().wait();
  });
  const auto future = backend->allreduce(tensors, {})->getFuture();
  future->addCallback([&](c10::ivalue::Future&) {
    std::vector<at::Tensor> own{torch::full({2}, 3)};
    const auto work = backend->allreduce(own, {});
    CHECK(work->getFuture()->completed());
    CHECK(work->wait(1h));
    CHECK(work->isCompleted());
    order.emplace_back("callback");
    throw std::runtime_error("of a callback");  // a warning, as no thread would get it
  });
  const auto later = backend->allreduce(tensors, {});
  std::thread program([&] {
    later->wait();
    order.emplace_back("program");
  });
  attached.set_value();
  program.join();
  CHECK(order == std::vector<std::string>{"callback", "program"});
}

TEST_CASE("a callback that waits for a call behind it, and one that lets go of the backend") {
  auto backend = make_c10d_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  std::vector<at::Tensor> tensors{torch::ones(2)};
  std::promise<void> called;
  c10::intrusive_ptr<c10d::Work> later;
  std::string text;
  std::promise<void> done;
  backend->allreduce(tensors, {})->getFuture()->addCallback([&](c10::ivalue::Future&) {
    called.get_future().wait();
    text = c10_error_of([&] { later->wait(); });
    backend.reset();
    done.set_value();
  });
  later = backend->allreduce(tensors, {});
  called.set_value();
  done.get_future().wait();
  CHECK(text == "duet:all_reduce: a callback waits for a call that starts after the callback");
  CHECK(later->wait());
}

TEST_CASE("a call during the shutdown of another thread is refused, and holds nothing up") {
  const auto backend = make_c10d_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  std::vector<at::Tensor> tensors{torch::ones(2)};
  std::promise<void> attached, refused;
  // The queue's thread is held up, so that it is busy when the call is made.
  backend->allreduce(tensors, {})->getFuture()->addCallback([&](c10::ivalue::Future&) {
    attached.get_future().wait();
  });
  backend->allreduce(tensors, {})->getFuture()->addCallback([&](c10::ivalue::Future&) { refused.get_future().wait(); });
  attached.set_value();
  std::thread other([&] { backend->shutdown(); });
  std::string text;
  while (text.empty()) text = c10_error_of([&] { backend->barrier({}); });  // until the shutdown has begun
  CHECK(text == "duet:barrier: the process group is being shut down");
  refused.set_value();
  other.join();
}
