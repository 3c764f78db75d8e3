// One rank of a test over MPI: `mpi_worker SCENARIO`, started by mpirun. Prints what is wrong, if anything.
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/store/store.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/collective_faults.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kLong = std::size_t{4} << 20;  // elements, far beyond what is sent at once

std::unique_ptr<ProcessGroup> connect(Milliseconds timeout = 60s) {
  return init_process_group({.backend = "mpi", .timeout = timeout});
}

std::vector<float> numbers(std::size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

void expect(bool good, const std::string& what) { require<CommError>(good, "wrong: ", what); }

void run_collectives() {
  const auto group = connect();
  expect(group->backend() == std::string("mpi"), concat("the backend is ", group->backend()));
  const auto half = group->split(group->rank() % 2, -group->rank());  // the same two ranks are in two groups
  for (ProcessGroup* const one : {group.get(), half.get(), group.get()})
    for (const std::string& fault : faults_of(*one)) expect(false, fault);
}

/// One group after the other, and two at a time.
void run_groups() {
  for (int i = 0; i < 3; ++i) {
    const auto one = connect(), other = connect();
    std::vector<float> values = numbers(1000, 1), more = numbers(1000, 2);
    Work first = other->all_reduce(std::span<float>(more)), second = one->all_reduce(std::span<float>(values));
    second.wait();
    first.wait();
    expect(values[999] == 1000.0f * static_cast<float>(one->size()), "the sum of one group");
    expect(more[999] == 1001.0f * static_cast<float>(one->size()), "the sum of the other group");
  }
}

/// Rank 1 takes long messages late and in another order; and while it waits for something else.
void run_messages() {
  const auto group = connect();
  std::vector<float> one = numbers(kLong, 0), other = numbers(kLong, 7);
  if (group->rank() == 0) {
    Work first = group->send(std::span<float>(one), 1, 1), second = group->send(std::span<float>(other), 1, 2);
    first.wait();
    second.wait();
    Work third = group->send(std::span<float>(one), 1, 3);
    third.wait();
    group->store()->set("taken", "");
  }
  if (group->rank() == 1) {
    std::vector<float> to_one(kLong), to_other(kLong), to_third(kLong);
    std::this_thread::sleep_for(200ms);
    group->recv(std::span<float>(to_other), 0, 2).wait();
    group->recv(std::span<float>(to_one), 0, 1).wait();
    expect(to_one == one && to_other == other, "a message that was taken late");
    Work third = group->recv(std::span<float>(to_third), 0, 3);
    group->store()->get("taken");  // before wait()
    third.wait();
    expect(to_third == one, "a message for which no thread waited");
  }
  group->barrier().wait();
}

/// The text of an operation's error, which comes when the time is over.
std::string error_in_time(Milliseconds timeout, const std::function<Work()>& start) {
  const auto begin = Clock::now();
  try {
    start().wait();
  } catch (const CommError& error) {
    const auto took = Clock::now() - begin;
    expect(took >= timeout && took < timeout + 500ms, concat("the error came after ", microseconds(took), " us"));
    return error.what();
  }
  return "no error";
}

void run_late() {
  constexpr Milliseconds kTimeout{700};
  const auto group = connect(kTimeout);
  std::vector<float> values = numbers(kLong, 0);
  const std::string op = group->rank() == 0 ? "recv" : group->rank() == 2 ? "send" : "";
  if (!op.empty()) {
    const std::string text = error_in_time(kTimeout, [&] {
      return op == "recv" ? group->recv(std::span<float>(values), 1) : group->send(std::span<float>(values), 3);
    });
    std::cout << concat("rank ", group->rank(), ": ", text, "\n") << std::flush;
  }
  std::this_thread::sleep_for(op.empty() ? 2500ms : 1500ms);
}

/// While a rank waits for another, its core is free.
void run_idle() {
  const auto group = connect();
  if (group->rank() == 0) std::this_thread::sleep_for(3s);
  const std::clock_t begin = std::clock();
  const auto started = Clock::now();
  group->barrier().wait();
  const double used = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (group->rank() != 0) expect(used < 0.3, concat(used, " s of a core in ", microseconds_since(started), " us"));
}

void run_throwing() {
  const auto group = connect();
  for (int i = 0;; ++i) {
    std::vector<float> values = numbers(50'000, 0);
    if (i == 5 && group->rank() == 1) throw DataError("label 10 of image 7");
    group->all_reduce(std::span<float>(values), ReduceOp::max).wait();
  }
}

void run_dying() {
  const auto group = connect();
  std::vector<float> values = numbers(kLong, 0);
  for (int i = 0;; ++i) {
    Work work = group->all_reduce(std::span<float>(values), ReduceOp::max);
    if (i == 5 && group->rank() == 1) ::raise(SIGKILL);
    work.wait();
  }
}

/// A program that uses MPI itself.
void run_program(int level) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, level, &provided);
  {
    const auto group = connect();
    float sum = 1;
    group->all_reduce(std::span<float>(&sum, 1)).wait();
    int ranks = 0, one = 1;
    MPI_Allreduce(&one, &ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    expect(static_cast<float>(ranks) == sum, "MPI's own sum");
  }
  MPI_Finalize();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> scenarios = {
      {"collectives", run_collectives},
      {"groups", run_groups},
      {"messages", run_messages},
      {"late", run_late},
      {"idle", run_idle},
      {"throwing", run_throwing},
      {"dying", run_dying},
      {"program", [] { run_program(MPI_THREAD_MULTIPLE); }},
      {"single_threaded", [] { run_program(MPI_THREAD_SINGLE); }},
      {"other_size", [] { make_mpi_transport(*std::make_unique<MemoryStore>(), 0, 3); }},
  };
  try {
    scenarios.at(argc > 1 ? argv[1] : "")();
    return 0;
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}
