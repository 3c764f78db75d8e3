// One rank of a test: `ddp_worker SCENARIO ARGUMENTS...`, started by launch().
#include "tests/ddp/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "ddp/init.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/launch.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "lib/base/environment.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/error.h"
#include "tests/support/resident.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;

namespace {

/// All ranks reduce for ever; at the 20th time rank 1 does `act`.
void run_until(const std::function<void()>& act) {
  const auto group = init_process_group();
  std::vector<float> values(50000, 1.0f);
  for (int i = 0;; ++i) {
    if (i == 20 && group->rank() == 1) act();
    group->all_reduce(std::span<float>(values), ReduceOp::max).wait();
  }
}

/// The others have long lost rank 1 when it reports its error.
void run_throwing_late() {
  try {
    run_until([] { throw DataError("label 10 of image 7"); });
  } catch (const DataError&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    throw;
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
  require<UsageError>(op == "barrier", "no collective is called '", op, "'");
  return group.barrier();
}

/// One collective after the other; rank 1 dies inside the sixth. Its peers must detect it by themselves.
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

void run_rounds(const Arguments& arguments) {
  const auto group = init_process_group({.backend = arguments.size() > 2 ? arguments[2] : "auto"});
  sum_rounds(*group, std::stoi(arguments.at(1)));
}

/// As run_rounds(), and more sums, of which nothing is printed, until the file "over" of a folder is there.
void run_rounds_until_over(const Arguments& arguments) {
  const auto group = init_process_group();
  sum_rounds(*group, std::stoi(arguments.at(1)));
  const auto file = std::filesystem::path(arguments.at(2)) / "over";
  for (float over = 0; over == 0; group->all_reduce(std::span<float>(&over, 1), ReduceOp::max).wait())
    over = std::filesystem::exists(file) ? 1.0f : 0.0f;
}

/// Sums until the file "over" of a folder is there; rank 0 prints the KiB that it has grown by since "warm" was.
void run_until_over(const Arguments& arguments) {
  const auto group = init_process_group();
  const std::filesystem::path folder = arguments.at(1);
  std::int64_t begin = 0;
  for (float over = 0; over == 0; group->all_reduce(std::span<float>(&over, 1), ReduceOp::max).wait()) {
    if (group->rank() != 0) continue;
    if (begin == 0 && std::filesystem::exists(folder / "warm")) begin = resident_kib();
    over = std::filesystem::exists(folder / "over") ? 1.0f : 0.0f;
  }
  if (group->rank() == 0) std::cout << resident_kib() - begin << std::endl;
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

/// Prints that a signal came, and goes on.
void run_stubborn(const Arguments& arguments) {
  for (const int signal : {SIGINT, SIGTERM})
    ::signal(signal, [](int) { [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "signalled\n", 10); });
  run_sleep({arguments[0]});
}

/// Starts a process of its own that would outlive the rank.
void run_orphan(const Arguments&) {
  const int status = std::system("sleep 1000 & echo $!");
  std::exit(status == 0 && rank_info().rank == 0 ? 3 : 0);
}

/// Starts a process that leaves group, session and parent behind, and prints its number.
void run_detached(const Arguments&) {
  while (std::system("setsid sleep 1000 >/dev/null 2>&1 & echo $!") == 0) ::pause();
}

/// Rank 0 becomes a launcher, whose ranks have detached processes.
void run_nested(const Arguments&) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  if (rank_info().rank == 0) ::execl(self.c_str(), self.c_str(), "launch", "detached", nullptr);
  for (;;) ::pause();
}

void run_meet_twice(const Arguments&) {
  for (int i = 0; i < 2; ++i) {
    const auto group = init_process_group();
    float sum = static_cast<float>(group->rank() + 1);
    group->all_reduce({&sum, 1, DType::f32}).wait();
    std::cout << sum << std::endl;
  }
}

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

/// Descriptors, threads and shared segments of this process.
std::array<std::ptrdiff_t, 3> used_resources() {
  std::ptrdiff_t segments = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) segments += line.find("memfd:duet") != std::string::npos;
  return {entries("/proc/self/fd"), entries("/proc/self/task"), segments};
}

/// A group that ends well, by an error on rank 1, or with messages that nobody waits for.
void make_and_close(const std::shared_ptr<Store>& store, const RankInfo& self, const InitOptions& options, int number) {
  const auto group = init_process_group(store, self.rank, self.world_size, options);
  std::vector<float> values(1000, static_cast<float>(self.rank + 1)), other(1000);
  group->all_reduce(std::span<float>(values)).wait();
  const auto sum = static_cast<float>(self.world_size * (self.world_size + 1) / 2);
  require<CommError>(values[0] == sum, "group ", number, " sums to ", values[0], ", expected ", sum);
  if (number % 4 == 1 && self.rank == 1) throw DataError("as asked");
  if (number % 4 == 1) group->barrier().wait();
  if (number % 4 == 2 && self.rank < 2) {
    const Work left = group->recv(std::span<float>(other), 1 - self.rank, 7);
    const Work sent = group->send(std::span<float>(values), 1 - self.rank, 8);
  }
}

/// Three ranks make NUMBER groups over BACKEND and one store, one after the other. In the middle rank 2 dies, and the
/// others go on without it. They print how much more they hold after half of the
/// groups than after the first, and at the end than a quarter of them before.
void run_groups(const Arguments& arguments) {
  ::signal(SIGTERM, SIG_IGN);
  RankInfo self = rank_info();
  const int groups = std::stoi(arguments.at(2)), warm = 8;
  const auto store = std::make_shared<TcpStore>(TcpStoreOptions{.host = *environment_variable("MASTER_ADDR"),
                                                                .port = std::stoi(*environment_variable("MASTER_PORT")),
                                                                .secret = given_secret(),
                                                                .serve = self.rank == 0});
  std::array<std::ptrdiff_t, 3> before{}, more{};
  const auto add_growth = [&] {
    const std::array<std::ptrdiff_t, 3> now = used_resources();
    for (std::size_t kind = 0; kind < more.size(); ++kind) more[kind] += now[kind] - before[kind];
  };
  for (int i = 0; i < groups; ++i) {
    if (i == groups / 2) add_growth();
    if (i == warm || i == groups / 4 * 3) before = used_resources();  // the server ends rank 2's thread in between
    try {
      if (i == groups / 2 && self.rank == 2) {
        const auto group = init_process_group(store, self.rank, self.world_size, {.backend = arguments.at(1)});
        ::raise(SIGKILL);
      }
      make_and_close(store, self, {.backend = arguments.at(1)}, i == groups / 2 ? 1 : i);
    } catch (const DataError&) {
    } catch (const CommError& error) {
      require<CommError>(i % 4 == 1 || i == groups / 2, "group ", i, ": ", error.what());
    }
    if (i == groups / 2) self.world_size = 2;
  }
  add_growth();
  std::cout << concat("more descriptors ", more[0], ", threads ", more[1], ", segments ", more[2], "\n") << std::flush;
  store->set(concat("over/", self.rank), "");
  store->wait({"over/0", "over/1"});  // rank 0 serves the store, and has a thread for rank 1
}

/// Rank 1 fails first; rank 0 is the first to report and to end.
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
  const bool endless = arguments[0] == "endless";
  const auto group = init_process_group();
  std::vector<float> values(50'000, static_cast<float>(group->rank() + 1));
  group->all_reduce(std::span<float>(values)).wait();
  if (arguments[0] == "sums") {
    for (int i = 0; i < 6; ++i) {
      if (i == 2 && group->rank() == 0) std::cerr << "going" << std::endl;
      for (float& value : values) value = value * 0.3f + static_cast<float>(group->rank());
      group->all_reduce(std::span<float>(values)).wait();
    }
    std::cout << concat(group->backend(), " ", sha256_hex(std::as_bytes(std::span(values))), "\n") << std::flush;
    return;
  }
  if (!endless) {
    std::cout << concat(group->backend(), " ", values[0], "\n") << std::flush;
    return;
  }
  for (int i = 0;; ++i) {
    group->all_reduce(std::span<float>(values), ReduceOp::max).wait();
    if (i == 5) std::cout << "going" << std::endl;
  }
}

void run_environment(const Arguments& arguments) { std::cout << std::getenv(arguments.at(1).c_str()) << std::endl; }

/// Rank 1 starts programs, by a shell, as a launcher and by a launcher, when it has met the others.
void run_programs(const Arguments&) {
  const auto group = init_process_group();
  if (group->rank() == 1) {
    const std::string variable = "echo \"variable [$DUET_SECRET]\"; ";
    const std::string kernel = "tr '\\0' '\\n' </proc/$PPID/environ | sed -n 's/^DUET_SECRET=/kernel: /p'; ";
    const int status = std::system((variable + kernel + "/proc/$PPID/exe launch meet").c_str());
    require<CommError>(status == 0, "a program ended with status ", status);
    std::cout << "kept " << given_secret() << std::endl;
    launch({.command = {"/proc/self/exe", "environment", kSecretVariable}});
  }
  group->barrier().wait();
}

/// Rank 1 does not come.
void run_missing(const Arguments& arguments) {
  if (rank_info().rank == 1) return run_sleep(arguments);
  init_process_group();
}

/// Rank 1 ends before the last of `groups` groups.
void run_absent(const Arguments& arguments) {
  const int groups = std::stoi(arguments.at(1));
  for (int i = 0; i < groups; ++i)
    if (i < groups - 1 || rank_info().rank != 1) init_process_group()->barrier().wait();
}

/// The first process of rank 1 removes the program, and dies.
void run_unlinked(const Arguments& arguments) {
  const auto group = init_process_group();
  if (rank_info().rank == 1 && environment_variable(kReplacementVariable) == "0") {
    std::filesystem::remove(arguments.at(1));
    ::raise(SIGKILL);
  }
  group->barrier().wait();
}

/// As a main() that prints exceptions itself, or without a handler.
void run_unreported(const Arguments& arguments) {
  const auto fail = [] { run_until([] { throw DataError("label 10 of image 7"); }); };
  if (arguments.at(1) == "uncaught") [&]() noexcept { fail(); }();
  try {
    fail();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    if (arguments.at(1) == "killed") ::raise(SIGKILL);
    std::exit(1);
  }
}

void run(const Arguments& arguments) {
  static const std::map<std::string, std::function<void(const Arguments&)>> scenarios = {
      {"kill", [](const Arguments&) { run_until([] { ::raise(SIGKILL); }); }},
      {"silent", [](const Arguments&) { run_until([] { run_sleep({}); }); }},
      {"throw", [](const Arguments&) { run_until([] { throw DataError("label 10 of image 7"); }); }},
      {"throw_late", [](const Arguments&) { run_throwing_late(); }},
      {"die", run_dying},
      {"exit", [](const Arguments&) { std::exit(rank_info().rank == 1 ? 3 : 0); }},
      {"meet", run_on_hosts},
      {"alone", run_on_hosts},
      {"sums", run_on_hosts},
      {"endless", run_on_hosts},
      {"rounds", run_rounds},
      {"rounds_until_over", run_rounds_until_over},
      {"until_over", run_until_over},
      {"lines", run_lines},
      {"sleep", run_sleep},
      {"restarting", run_sleep},
      {"stubborn", run_stubborn},
      {"detached", run_detached},
      {"nested", run_nested},
      {"errors", run_errors},
      {"meet_twice", run_meet_twice},
      {"groups", run_groups},
      {"orphan", run_orphan},
      {"environment", run_environment},
      {"programs", run_programs},
      {"missing", run_missing},
      {"absent", run_absent},
      {"unreported", run_unreported},
      {"unlinked", run_unlinked},
      {"cable", run_cable},
  };
  if (run_model_scenario(arguments) || run_network_scenario(arguments)) return;
  const auto scenario = scenarios.find(arguments.at(0));
  require<UsageError>(scenario != scenarios.end(), "ddp_worker has no scenario '", arguments[0], "'");
  scenario->second(arguments);
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

/// Keeps a file open under many numbers, and starts a launcher in a PID namespace within its own, whose /proc it sees.
int run_bystander(const Arguments& arguments) {
  for (int i = 0; i < 100; ++i)
    if (::open(arguments.at(1).c_str(), O_RDWR | O_CLOEXEC) < 0) return 1;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  return WEXITSTATUS(std::system(concat("unshare -pf ", self, " launch throw").c_str()));
}

}  // namespace

void duet_test::sum_rounds(ProcessGroup& group, int rounds) {
  std::vector<float> values(1000, static_cast<float>(group.rank() + 1));
  float all = 0;
  for (int i = 0; i < rounds; ++i) {
    group.all_reduce(std::span<float>(values), ReduceOp::avg).wait();
    group.store()->set(concat("round/", i, "/", group.rank()), std::to_string(values[0]));
    all += std::stof(group.store()->get(concat("round/", i, "/", (group.rank() + 1) % group.size())));
  }
  group.barrier().wait();  // rank 0 serves the store
  std::cout << all << std::endl;
}

int main(int argc, char** argv) {
  const Arguments arguments(argv + 1, argv + argc);
  if (arguments.at(0) == "spawn") return run_spawning(arguments);
  if (arguments.at(0) == "bystander") return run_bystander(arguments);
  if (arguments.at(0) == "launch") {  // a launcher in a process of its own, for tests that kill it
    const LaunchResult result = launch({.ranks = 2,
                                        .command = {argv[0], arguments.at(1)},
                                        .max_restarts = arguments.at(1) == "restarting" ? 3 : 0,
                                        .grace = std::chrono::seconds(60)});
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
                                        .join_timeout = std::chrono::seconds(arguments[3] == "alone" ? 2 : 60),
                                        .timeout = std::chrono::seconds(arguments[3] == "endless" ? 4 : 60)});
    std::fprintf(stderr, "%s\n", result.message.c_str());
    return result.exit_code;
  }
  try {
    return run(arguments), 0;
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}
