// One rank of a test: `ddp_worker SCENARIO ARGUMENTS...`, started by launch().
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "ddp/average_gradients.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/error_file.h"
#include "ddp/init.h"
#include "ddp/launch.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "tests/ddp/train.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

using Arguments = std::vector<std::string>;

/// y = w x without a bias.
struct Scalar : nn::Linear {
  explicit Scalar(float value) : nn::Linear(1, 1, false) { parameters().values().span<float>()[0] = value; }
  float gradient() { return parameters().gradients().span<float>()[0]; }
};

/// Two layers of which forward uses one.
struct HalfUsed : nn::Module {
  HalfUsed() {
    register_module("used", used);
    register_module("unused", unused);
  }
  Variable forward(nn::Context& context, const Variable& x) const override { return used.forward(context, x); }
  using nn::Module::forward;
  std::string type_name() const override { return "HalfUsed"; }
  nn::Linear used{1, 1, false}, unused{1, 1, false};
};

/// (w x)^2, whose gradient is 2 x^2 w.
Variable square(nn::Module& net, float x) {
  return ops::mse_loss(net(from_values<float>({1, 1}, {x})), from_values<float>({1, 1}, {0.0f}));
}

void run_training(const Arguments& arguments) {
  const auto group = init_process_group();
  // Only rank 0 has the right seed: the others get its values.
  nn::SimpleCNN model(kSeed + static_cast<std::uint64_t>(group->rank()));
  DistributedDataParallelOptions options;
  if (arguments.size() > 2) options.bucket_limits = {std::stoul(arguments[2])};
  DistributedDataParallel net(model, *group, options);
  train(model, net, std::stol(arguments.at(1)), group->rank(), group->size());
  std::cout << fingerprint(model) << std::endl;
}

void run_gradient(const Arguments& arguments) {
  const auto group = init_process_group();
  Scalar model(5);
  const float x = static_cast<float>(group->rank() + 1);
  if (arguments.at(1) == "average") {
    square(model, x).backward();
    average_gradients(model, *group);
  } else {
    DistributedDataParallel net(model, *group,
                                {.rule = arguments[1] == "torch" ? GradientRule::torch : GradientRule::sum});
    square(net, x).backward();
  }
  std::cout << model.gradient() << std::endl;
}

void run_no_sync(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group, {.rule = GradientRule::torch});
  const float x = std::sqrt(static_cast<float>(group->rank() + 1) / 2);
  square(net, x).backward();
  std::cout << model.gradient() << std::endl;
  {
    const auto guard = net.no_sync();
    square(net, x).backward();
    std::cout << model.gradient() << std::endl;
  }
  square(net, x).backward();
  std::cout << model.gradient() << std::endl;
}

void run_twice(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group);
  square(net, 1).backward();
  square(net, 1).backward();
}

void run_unused(const Arguments& arguments) {
  const auto group = init_process_group();
  HalfUsed model;
  model.initialise(3);
  DistributedDataParallel net(model, *group, {.find_unused_parameters = arguments.at(1) == "allowed"});
  square(net, 1).backward();
  std::cout << model.parameters().gradient(1).span<float>()[0] << std::endl;
}

/// Rank r trains r + 1 steps.
void run_join(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group, {.rule = GradientRule::torch});
  optim::SGD opt(model, {.lr = 0.25f});
  net.join([&] {
    for (int step = 0; step <= group->rank(); ++step) {
      opt.zero_grad();
      square(net, 1).backward();
      opt.step();
    }
  });
  std::cout << model.parameters().values().span<float>()[0] << " " << net.times().steps << std::endl;
}

/// Running statistics, where rank 0 stops first; batches of rank r have the mean 4 r.
void run_join_buffers(const Arguments&) {
  const auto group = init_process_group();
  nn::BatchNorm2d model(1);
  DistributedDataParallel net(model, *group);
  const float mean = 4 * static_cast<float>(group->rank());
  const Tensor x = from_values<float>({2, 1, 1, 1}, {mean - 1, mean + 1});
  net.join([&] {
    for (int step = 0; step <= 2 * group->rank(); ++step) {
      model.zero_grad();
      ops::mse_loss(net(x), from_values<float>({2, 1, 1, 1}, {0.0f, 0.0f})).backward();
    }
  });
  std::printf("%.3f\n", static_cast<double>(model.state_dict().at(2).tensor.span<float>()[0]));
  std::fflush(stdout);
}

void run_sync_batch_norm(const Arguments&) {
  const auto group = init_process_group();
  SyncNet model(kSeed);
  DistributedDataParallel net(model, *group);
  train(model, net, 27, group->rank(), group->size());
  std::cout << fingerprint(model) << std::endl;
}

/// Rank 1's parameter goes astray behind the first step.
void run_compare(const Arguments&) {
  const auto group = init_process_group();
  Scalar model(1);
  DistributedDataParallel net(model, *group, {.compare_parameters_every = 3});
  for (int step = 1;; ++step) {
    model.zero_grad();
    square(net, 1).backward();
    if (step == 1 && group->rank() == 1) model.parameters().values().span<float>()[0] += 1;
  }
}

/// All ranks reduce for ever; at the 20th time rank 1 does `act`.
void run_until(const std::function<void()>& act) {
  const auto group = init_process_group();
  std::vector<float> values(50000, 1.0f);
  for (int i = 0;; ++i) {
    if (i == 20 && group->rank() == 1) act();
    group->all_reduce(std::span<float>(values), ReduceOp::max).wait();
  }
}

Work start(ProcessGroup& group, const std::string& op, std::span<float> in, std::span<float> out) {
  const auto piece = in.size() / 4, size = static_cast<std::size_t>(group.size());
  const auto one = [&](std::span<float> values) { return values.first(piece); };
  const auto many = [&](std::span<float> values) { return values.first(piece * size); };
  if (op == "all_reduce") return group.all_reduce(in);
  if (op == "reduce") return group.reduce(in, 0);
  if (op == "broadcast") return group.broadcast(in, 0);
  if (op == "gather") return group.gather(one(in), many(out), 0);
  if (op == "scatter") return group.scatter(many(in), one(out), 0);
  if (op == "all_gather") return group.all_gather(one(in), many(out));
  if (op == "reduce_scatter") return group.reduce_scatter(many(in), one(out));
  if (op == "all_to_all") return group.all_to_all(many(in), many(out));
  if (op == "recv") return group.rank() == 1 ? group.send(in, 0) : group.recv(out, 1);
  return group.barrier();
}

/// One collective after the other; rank 1 dies inside the sixth. Its peers have to notice by themselves.
void run_dying(const Arguments& arguments) {
  ::signal(SIGTERM, SIG_IGN);
  const auto group = init_process_group({.backend = arguments.at(1)});
  std::vector<float> in(240'000), out(240'000);
  for (int i = 0;; ++i) {
    Work work = start(*group, arguments.at(2), in, out);
    if (i == 5 && group->rank() == 1) ::raise(SIGKILL);
    work.wait();
  }
}

/// Sums and visits to the store.
void run_rounds(const Arguments& arguments) {
  const auto group = init_process_group({.backend = arguments.size() > 2 ? arguments[2] : "auto"});
  std::vector<float> values(1000, static_cast<float>(group->rank() + 1));
  float all = 0;
  for (int i = 0; i < std::stoi(arguments.at(1)); ++i) {
    group->all_reduce(std::span<float>(values), ReduceOp::avg).wait();
    group->store()->set(concat("round/", i, "/", group->rank()), std::to_string(values[0]));
    all += std::stof(group->store()->get(concat("round/", i, "/", (group->rank() + 1) % group->size())));
  }
  group->barrier().wait();  // rank 0 serves the store
  std::cout << all << std::endl;
}

void run_lines(const Arguments& arguments) {
  for (int i = 0; i < std::stoi(arguments.at(1)); ++i) {
    const std::string line(200, static_cast<char>('a' + rank_info().rank));
    std::printf("%s\n", line.c_str());
  }
  std::printf("no end");
}

void run_sleep(const Arguments& arguments) {
  if (arguments.size() > 1) ::signal(SIGTERM, SIG_IGN);
  std::cout << ::getpid() << std::endl;
  for (;;) ::pause();
}

/// Starts a process of its own that would outlive the rank.
void run_orphan(const Arguments&) {
  const int status = std::system("sleep 1000 & echo $!");
  std::exit(status == 0 && rank_info().rank == 0 ? 3 : 0);
}

/// Starts a process that leaves group, session and parent behind, and tells its number.
void run_detached(const Arguments& arguments) {
  if (std::system("setsid sleep 1000 >/dev/null 2>&1 & echo $!") == 0) run_sleep({arguments[0]});
}

void run_meet_twice(const Arguments&) {
  for (int i = 0; i < 2; ++i) {
    const auto group = init_process_group();
    float sum = static_cast<float>(group->rank() + 1);
    group->all_reduce({&sum, 1, DType::f32}).wait();
    std::cout << sum << std::endl;
  }
}

/// Rank 1 fails first; rank 0 is the first to tell and to end.
void run_errors(const Arguments&) {
  const int rank = rank_info().rank;
  const auto folder = std::filesystem::path(std::getenv(kErrorFileVariable)).parent_path().parent_path();
  const auto wait_for = [](const std::filesystem::path& file) {
    while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  if (rank == 0) wait_for(folder / "failed");
  const CommError error(rank == 0 ? "lost rank 1" : "lost the network");
  if (rank == 1) {
    std::ofstream(folder / "failed") << "\n";
    wait_for(folder / "rank_0" / "error.json");
  }
  std::exit(report_failure(error));
}

/// One of four ranks on two hosts.
void run_on_hosts(const Arguments& arguments) {
  const auto group = init_process_group({.timeout = std::chrono::milliseconds(1500)});
  std::vector<float> values(50'000, static_cast<float>(group->rank() + 1));
  group->all_reduce(std::span<float>(values)).wait();
  if (arguments[0] != "endless") {
    std::cout << concat(group->backend(), " ", values[0], "\n") << std::flush;
    return;
  }
  for (int i = 0;; ++i) {
    group->all_reduce(std::span<float>(values), ReduceOp::max).wait();
    if (i == 5) std::cout << "going" << std::endl;
  }
}

int run(const Arguments& arguments) {
  const std::string& name = arguments.at(0);
  if (name == "train") run_training(arguments);
  if (name == "gradient") run_gradient(arguments);
  if (name == "no_sync") run_no_sync(arguments);
  if (name == "twice") run_twice(arguments);
  if (name == "unused") run_unused(arguments);
  if (name == "join") run_join(arguments);
  if (name == "join_buffers") run_join_buffers(arguments);
  if (name == "compare") run_compare(arguments);
  if (name == "sync_batch_norm") run_sync_batch_norm(arguments);
  if (name == "kill") run_until([] { ::raise(SIGKILL); });
  if (name == "throw") run_until([] { throw DataError("label 10 of image 7"); });
  if (name == "die") run_dying(arguments);
  if (name == "exit") std::exit(rank_info().rank == 1 ? 3 : 0);
  if (name == "meet" || name == "alone" || name == "endless") run_on_hosts(arguments);
  if (name == "rounds") run_rounds(arguments);
  if (name == "lines") run_lines(arguments);
  if (name == "sleep" || name == "restarting") run_sleep(arguments);
  if (name == "detached") run_detached(arguments);
  if (name == "errors") run_errors(arguments);
  if (name == "meet_twice") run_meet_twice(arguments);
  if (name == "orphan") run_orphan(arguments);
  if (name == "environment") std::cout << std::getenv(arguments.at(1).c_str()) << std::endl;
  if (name == "missing" && rank_info().rank != 1) init_process_group();
  return 0;
}

/// What spawn() is for: the same program, its ranks started by itself.
int run_spawning(const Arguments& arguments) {
  const int first = spawn([](int rank) { std::cout << "first " << rank << std::endl; }, 2);
  if (first != 0) return first;
  return spawn(
      [&](int rank) {
        const auto group = init_process_group();
        float sum = static_cast<float>(rank + 1);
        group->all_reduce({&sum, 1, DType::f32}).wait();
        std::cout << "second " << rank << " " << sum << std::endl;
        if (arguments.size() > 1 && rank == 1) throw DataError("as asked");
        group->barrier().wait();
      },
      2);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argv + 1, argv + argc);
  if (arguments.at(0) == "spawn") return run_spawning(arguments);
  if (arguments.at(0) == "launch") {  // a launcher in a process of its own, for tests that kill it
    const LaunchResult result = launch({.ranks = 2,
                                        .command = {argv[0], arguments.at(1)},
                                        .max_restarts = arguments.at(1) == "restarting" ? 3 : 0,
                                        .grace = std::chrono::seconds(10)});
    std::fprintf(stderr, "%s\n", result.message.c_str());
    return result.exit_code;
  }
  if (arguments.at(0) == "host") {  // "host NODE ADDRESS SCENARIO": the launcher of one of two hosts
    const LaunchResult result = launch({.ranks = 2,
                                        .command = {argv[0], arguments.at(3)},
                                        .nodes = 2,
                                        .node_rank = std::stoi(arguments.at(1)),
                                        .master_address = arguments.at(2),
                                        .master_port = 29517,
                                        .join_timeout = std::chrono::seconds(arguments[3] == "alone" ? 2 : 20)});
    std::fprintf(stderr, "%s\n", result.message.c_str());
    return result.exit_code;
  }
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}
