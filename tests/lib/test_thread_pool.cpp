#include <sched.h>

#include <array>
#include <atomic>
#include <climits>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/pool.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/few_threads.h"
#include "tests/support/scratch.h"

using namespace duet;

TEST_CASE("every task runs once, and worker w takes the w-th run of tasks") {
  for (const int workers : {1, 2, 3, 7})
    for (const int tasks : {0, 1, 2, 3, 8, 100}) {
      ThreadPool pool(workers);
      CHECK(pool.workers() == workers);
      std::vector<int> runs(static_cast<std::size_t>(tasks), 0), worker_of(static_cast<std::size_t>(tasks), -1);
      for (int round = 0; round < 20; ++round)
        pool.run(tasks, [&](int task, int worker) {
          ++runs[static_cast<std::size_t>(task)];
          worker_of[static_cast<std::size_t>(task)] = worker;
        });
      CAPTURE(workers, tasks);
      for (int i = 0; i < tasks; ++i) {
        const int worker = worker_of[static_cast<std::size_t>(i)];
        CHECK(runs[static_cast<std::size_t>(i)] == 20);
        CHECK((tasks * worker / workers <= i && i < tasks * (worker + 1) / workers));
      }
    }
}

TEST_CASE("a worker is the same thread in every round, worker 0 the caller") {
  ThreadPool pool(3);
  std::vector<std::set<std::thread::id>> ids(3);
  for (int round = 0; round < 50; ++round)
    pool.run(3, [&](int, int worker) { ids[static_cast<std::size_t>(worker)].insert(std::this_thread::get_id()); });
  for (const auto& set : ids) CHECK(set.size() == 1);
  CHECK(ids[0].count(std::this_thread::get_id()) == 1);
  CHECK(*ids[1].begin() != *ids[2].begin());
}

TEST_CASE("the exception of the lowest task is rethrown, after all workers have stopped, and the pool goes on") {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> inside{0};
    std::atomic<bool> failed{false};
    const auto task = [&](int i, int) {
      ++inside;
      if (i < 6)
        while (!failed) std::this_thread::yield();  // the highest task fails first
      for (int k = 0; i == 4 && k < 100; ++k) std::this_thread::yield();
      --inside;
      if (i == 6) failed = true;
      if (i == 2 || i == 6) throw DataError("task " + std::to_string(i));
    };
    CHECK_THROWS_WITH(pool.run(8, task), "task 2");
    CHECK(inside == 0);
  }
  int sum = 0;
  std::mutex mutex;
  pool.run(8, [&](int i, int) {
    const std::lock_guard lock(mutex);
    sum += i;
  });
  CHECK(sum == 28);
}

TEST_CASE("an exception keeps its type, and another kind of object passes too") {
  ThreadPool pool(2);
  CHECK_THROWS_AS(pool.run(2, [](int i, int) { require<DataError>(i != 1, "bad"); }), DataError);
  CHECK_THROWS_AS(pool.run(2, [](int, int) { throw 7; }), int);
}

TEST_CASE("a second run() of a pool at the same time is an error that names both threads") {
  for (const int workers : {1, 2}) {
    ThreadPool pool(workers);
    std::atomic<bool> inside{false}, over{false};
    std::thread first([&] {
      pool.run(1, [&](int, int) {
        inside = true;
        while (!over) std::this_thread::yield();
      });
    });
    while (!inside) std::this_thread::yield();
    std::ostringstream names;
    names << "thread " << std::this_thread::get_id() << " called run() while thread " << first.get_id();
    int ran = 0;
    const std::string text = duet_test::error_of<UsageError>([&] { pool.run(1, [&](int, int) { ++ran; }); });
    over = true;
    first.join();
    CHECK_THAT(text, duet_test::ContainsSubstring(names.str()));
    CHECK(ran == 0);
    pool.run(1, [&](int, int) { ran = 1; });
    CHECK(ran == 1);
  }
}

TEST_CASE("a task that calls run() of its own pool is refused, and the pool goes on") {
  ThreadPool pool(2);
  CHECK_THROWS_AS(pool.run(1, [&](int, int) { pool.run(1, [](int, int) {}); }), UsageError);
  std::atomic<int> ran{0};
  pool.run(2, [&](int, int) { ++ran; });
  CHECK(ran == 2);
}

TEST_CASE("the start callback runs in each thread of a pool before its first task") {
  std::array<std::atomic<bool>, 3> started{};
  ThreadPool pool(3, [&](int worker) { started[static_cast<std::size_t>(worker)] = true; });
  std::atomic<int> early{0};
  pool.run(3, [&](int, int worker) { early += worker > 0 && !started[static_cast<std::size_t>(worker)]; });
  CHECK(early == 0);
  CHECK_THROWS_AS(ThreadPool(0), UsageError);
  CHECK_THROWS_AS(ThreadPool(5000), UsageError);
}

TEST_CASE("each run of a pool throws what the start callback threw in one of its threads, whose tasks don't run") {
  ThreadPool pool(3, [](int worker) { require<UsageError>(worker != 2, "no device"); });
  for (int round = 0; round < 2; ++round) {
    std::atomic<int> ran{0};
    CHECK_THROWS_WITH(pool.run(3, [&](int, int) { ++ran; }), "no device");
    CHECK(ran == 2);
  }
}

TEST_CASE("a pool of more threads than can be started names the limit, and leaves no thread behind") {
  std::string what;
  {
    const duet_test::FewThreads few(2);
    what = duet_test::error_of<Error>([&] { const ThreadPool pool(8); });
  }
  CHECK_THAT(what, duet_test::ContainsSubstring("cannot start worker thread 3 of a pool of 8: ") &&
                       duet_test::ContainsSubstring("the address space is limited to "));
}

TEST_CASE("cores can be counted and pinned to") {
  CHECK(usable_cores() >= 1);
  CHECK_FALSE(pin_current_thread(-1));
  CHECK_FALSE(pin_current_thread(1 << 20));
  bool pinned = false;
  std::thread([&] { pinned = pin_current_thread(0); }).join();
  CHECK(pinned);
}

TEST_CASE("a process can be left a part of its cores, even after their number was read") {
  const int all = own_cores(), usable = usable_cores();
  if (all < 2) DUET_SKIP("one core only");
  CHECK_FALSE(take_cores(1, all));
  CHECK_FALSE(take_cores(0, 0));
  int first = -1, seen = -1;
  std::thread([&] {  // its own affinity changes, not that of the other tests' thread
    CHECK(take_cores(1, 1));
    CHECK(pin_current_thread(0));
    CHECK_FALSE(pin_current_thread(1));
    seen = sched_getcpu();
    CHECK(own_cores() == 1);
    CHECK(usable_cores() == usable);
    CHECK(take_cores(0, all));
    CHECK(pin_current_thread(0));
    first = sched_getcpu();
  })
      .join();
  CHECK(seen >= 0);
  CHECK(seen != first);
}

TEST_CASE("pooled objects are made, shared and destroyed like others") {
  struct Counted {
    explicit Counted(int& c) : count(c) { ++count; }
    ~Counted() { --count; }
    int& count;
  };
  int count = 0;
  {
    const std::shared_ptr<Counted> a = make_pooled<Counted>(count);
    const std::shared_ptr<Counted> b = a;
    CHECK(count == 1);
  }
  CHECK(count == 0);
  PooledVector<int> numbers;
  for (int i = 0; i < 1000; ++i) numbers.push_back(i);
  CHECK(numbers[999] == 999);
}

TEST_CASE("a CPU quota of a control group counts as cores") {
  struct Case {
    const char* groups;                                      // /proc/self/cgroup
    std::vector<std::pair<std::string, std::string>> files;  // below /sys/fs/cgroup
    int cores;
  };
  const Case cases[] = {
      {"0::/\n", {}, INT_MAX},
      {"", {{"cpu.max", "100000 100000"}}, INT_MAX},
      {"0::/\n", {{"cpu.max", "max 100000"}}, INT_MAX},
      {"0::/\n", {{"cpu.max", "50000 100000\n"}}, 1},
      {"0::/\n", {{"cpu.max", "150000 100000\n"}}, 2},
      {"0::/\n", {{"cpu.max", "400000 200000\n"}}, 2},
      {"0::/pod/one\n", {{"pod/cpu.max", "250000 100000"}, {"pod/one/cpu.max", "max 100000"}}, 3},
      {"0::/pod/one\n", {{"pod/cpu.max", "800000 100000"}, {"pod/one/cpu.max", "200000 100000"}}, 2},
      {"0::/../gone\n", {{"cpu.max", "300000 100000"}}, 3},  // of another namespace
      {"4:cpu,cpuacct:/docker/ab\n0::/\n",
       {{"cpu,cpuacct/cpu.cfs_quota_us", "350000"}, {"cpu,cpuacct/cpu.cfs_period_us", "100000"}},
       4},
      {"4:cpu,cpuacct:/docker/ab\n",
       {{"cpu/docker/ab/cpu.cfs_quota_us", "1000"}, {"cpu/docker/ab/cpu.cfs_period_us", "100000"}},
       1},
      {"4:cpu:/\n", {{"cpu/cpu.cfs_quota_us", "-1"}, {"cpu/cpu.cfs_period_us", "100000"}}, INT_MAX},
      {"4:cpuset:/\n", {{"cpuset/cpu.cfs_quota_us", "100000"}, {"cpuset/cpu.cfs_period_us", "100000"}}, INT_MAX},
  };
  for (const Case& c : cases) {
    INFO(c.groups);
    const duet_test::Scratch scratch;
    const auto put = [&](const std::string& name, const std::string& text) {
      const std::filesystem::path path = scratch.path(name);
      std::filesystem::create_directories(path.parent_path());
      duet_test::write_text(path.string(), text);
    };
    put("proc/self/cgroup", c.groups);
    for (const auto& [name, text] : c.files) put("sys/fs/cgroup/" + name, text);
    CHECK(quota_cores(scratch.folder()) == c.cores);
  }
  CHECK(usable_cores() <= quota_cores());
}
