#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/init.h"
#include "ddp/launch/rank_resolver.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "lib/error.h"
#include "tests/ddp/launch/launches.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

using Map = std::map<std::string, std::string>;

LaunchedRank resolve(const Map& set) {
  return resolve_rank([&](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    if (found == set.end()) return {};
    return found->second;
  });
}

std::vector<int> numbers(const RankInfo& place) {
  return {place.rank, place.world_size, place.local_rank, place.local_world_size, place.node_rank};
}

const Map kTorchrun = {{"RANK", "3"},       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"},
                       {"GROUP_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "none"}};
const Map kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},           {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "prterun-host-17@1"}, {"PMIX_RANK", "1"}};
const Map kPmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
const Map kSlurm = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "2"},
                    {"SLURM_PROCID", "4"},         {"SLURM_NTASKS", "5"},
                    {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "2"},
                    {"SLURM_STEP_NUM_TASKS", "5"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}};

Map with(Map map, const Map& more) {
  for (const auto& [name, value] : more) map[name] = value;
  return map;
}

Map without(Map map, const std::string& name) {
  map.erase(name);
  return map;
}

void refused(const Map& map, const std::string& text) {
  CHECK_THROWS_WITH(resolve(map), ContainsSubstring(text));
  CHECK_THROWS_AS(resolve(map), UsageError);
}

/// Sets variables of this process for as long as it lives.
struct SetVariables {
  explicit SetVariables(Map map) : map_(std::move(map)) {
    for (const auto& [name, value] : map_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~SetVariables() {
    for (const auto& [name, value] : map_) ::unsetenv(name.c_str());
  }
  SetVariables(const SetVariables&) = delete;
  SetVariables& operator=(const SetVariables&) = delete;
  Map map_;
};

/// The sums that two ranks get which init_process_group() leads together, or what went wrong.
std::vector<std::string> meet(Milliseconds timeout = 20s) {
  std::vector<std::string> outcomes(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto group = init_process_group({.rank = rank, .join_timeout = timeout});
        float sum = static_cast<float>(rank + 1);
        group->all_reduce({&sum, 1, DType::f32}).wait();
        outcomes[static_cast<std::size_t>(rank)] = concat(sum);
        group->barrier().wait();
      } catch (const std::exception& error) {
        outcomes[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

const std::vector<std::string> kBoth = {"3", "3"};

}  // namespace

TEST_CASE("every launcher's variables are understood") {
  CHECK(numbers(resolve(kTorchrun).place) == std::vector<int>{3, 4, 1, 2, 1});
  CHECK(resolve(kTorchrun).launcher == "torchrun");
  CHECK(resolve(with(kTorchrun, {{"DUET_JOB", "x"}})).launcher == "duet launch");
  const LaunchedRank pod = resolve({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NNODES", "2"}});
  CHECK(numbers(pod.place) == std::vector<int>{1, 2, 0, 1, 1});
  CHECK(pod.launcher == "Kubernetes (PyTorchJob)");
  CHECK(numbers(resolve({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).place) == std::vector<int>{1, 2, 1, 2, 0});
  CHECK(numbers(resolve(kOpenMpi).place) == std::vector<int>{1, 2, 1, 2, 0});
  CHECK(resolve(kOpenMpi).launcher == "Open MPI");
  CHECK(resolve(kOpenMpi).job == "prterun-host-17@1");
  CHECK(numbers(resolve(kPmi).place) == std::vector<int>{1, 2, 0, 1, 0});
  CHECK_FALSE(resolve(kPmi).job.empty());
  CHECK(resolve(kPmi).job == resolve(kPmi).job);
  CHECK(numbers(resolve(kSlurm).place) == std::vector<int>{4, 5, 0, 1, 2});
  CHECK(resolve(kSlurm).job == "77.2");
  CHECK(describe(resolve(kPmi)) ==
        "rank 1 of 2, local rank 0 of 1 on node 0, by MPICH or Intel MPI (PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 "
        "MPI_LOCALNRANKS=1)");
}

TEST_CASE("the rows of schedulers and of other MPIs are understood, and name the first host") {
  const Map pair = {{"PMI_RANK", "3"}, {"PMI_SIZE", "6"}};
  const std::vector<std::pair<Map, std::string>> rows = {
      {with(pair, {{"PALS_RANKID", "3"}, {"PALS_LOCAL_RANKID", "1"}, {"PALS_LOCAL_SIZE", "2"}, {"PALS_NODEID", "1"}}),
       "PALS"},
      {{{"MV2_COMM_WORLD_RANK", "3"},
        {"MV2_COMM_WORLD_SIZE", "6"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}},
       "MVAPICH"},
      {with(pair, {{"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}}), "MPICH or Intel MPI"},
      {{{"JSM_NAMESPACE_RANK", "3"},
        {"JSM_NAMESPACE_SIZE", "6"},
        {"JSM_NAMESPACE_LOCAL_RANK", "1"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "2"}},
       "jsrun"},
      {with(pair,
            {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "6"}, {"FLUX_TASK_LOCAL_ID", "1"}, {"FLUX_JOB_NNODES", "3"}}),
       "Flux"},
      {{{"RANK", "3"}, {"WORLD_SIZE", "6"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}}, "environment"}};
  for (const auto& [variables, launcher] : rows) {
    CAPTURE(launcher);
    const LaunchedRank rank = resolve(variables);
    CHECK(rank.launcher == launcher);
    const std::vector<int> place = numbers(rank.place);
    CHECK(std::vector<int>(place.begin(), place.end() - 1) == std::vector<int>{3, 6, 1, 2});
  }
  // Plain numbers that are a scheduler's have its place on the host.
  CHECK(numbers(resolve(with(kSlurm, {{"RANK", "4"}, {"WORLD_SIZE", "5"}})).place) == std::vector<int>{4, 5, 0, 1, 2});
  for (const auto& [list, host] : std::vector<std::pair<std::string, std::string>>{
           {"n[01-03,7],m2", "n01"}, {"m2,n[1-4]", "m2"}, {"r[2,5]n[08-9]-ib", "r2n08-ib"}, {"one", "one"}}) {
    CHECK(resolve(with(kSlurm, {{"SLURM_JOB_NODELIST", list}})).first_host == host);
  }
}

TEST_CASE("launchers that start each other are distinguished") {
  CHECK(resolve(with(kTorchrun, kOpenMpi)).launcher == "torchrun");
  CHECK(resolve(with(kOpenMpi, kSlurm)).launcher == "Open MPI");
  CHECK(resolve(with(kOpenMpi, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})).launcher == "environment");
  CHECK(resolve(with(kSlurm, {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}})).launcher == "Slurm");
}

TEST_CASE("what is no job of ranks is none") {
  CHECK(resolve({}).launcher.empty());
  CHECK(numbers(resolve({}).place) == std::vector<int>{0, 1, 0, 1, 0});
  CHECK(resolve(without(kSlurm, "SLURM_STEP_ID")).launcher.empty());  // a batch script
  CHECK(resolve(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})).launcher.empty());
}

TEST_CASE("half-set, contradictory and senseless variables are named") {
  refused({{"RANK", "1"}}, "half set: RANK=1, but environment variable WORLD_SIZE expected");
  refused({{"WORLD_SIZE", "2"}}, "environment variable RANK expected, but not set");
  refused(without(kTorchrun, "LOCAL_WORLD_SIZE"), "LOCAL_RANK=1, but environment variable LOCAL_WORLD_SIZE");
  refused(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "variables of Open MPI are half set: OMPI_COMM_WORLD_RANK=1");
  refused(without(without(kPmi, "MPI_LOCALRANKID"), "MPI_LOCALNRANKS"), "environment variable MPI_LOCALRANKID");
  refused(without(kSlurm, "SLURM_LOCALID"), "environment variable SLURM_LOCALID expected");
  refused(without(kSlurm, "SLURM_STEP_TASKS_PER_NODE"), "environment variable SLURM_STEP_TASKS_PER_NODE");
  refused(without(kSlurm, "SLURM_NODEID"), "environment variable SLURM_NODEID expected");
  refused({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "3"}, {"FLUX_TASK_LOCAL_ID", "0"}, {"FLUX_JOB_NNODES", "2"}},
          "FLUX_JOB_NNODES=2, but environment variable LOCAL_WORLD_SIZE expected");
  refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(y2)"}}), "expected a list like 2(x3),1");
  refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2"}}), "which has no node 2");
  refused(with(kTorchrun, {{"RANK", "4"}}), "out of range: RANK=4 WORLD_SIZE=4");
  refused(with(kTorchrun, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2");
  refused(with(kTorchrun, {{"RANK", "many"}}), "environment variable RANK must be a number, got \"many\"");
  refused(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
          "contradict each other: RANK=0 WORLD_SIZE=2, but OMPI_COMM_WORLD_RANK=1");
  refused(with(kOpenMpi, with(kPmi, {{"PMI_RANK", "0"}})), "Open MPI and MPICH or Intel MPI contradict each other");
}

TEST_CASE("ranks of one host meet without an address, and leave nothing behind") {
  const Scratch scratch;
  const std::string as_mpi =
      "export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$RANK "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job TMPDIR=" +
      scratch.folder() +
      "; unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT "
      "TORCHELASTIC_RUN_ID; exec " DUET_DDP_WORKER;
  const Outcome met = run(2, {"/bin/sh", "-c", as_mpi + " meet_twice"});
  CHECK(met.result.message.empty());
  for (int rank = 0; rank < 2; ++rank) CHECK(met.out.at(rank) == kBoth);
  CHECK(scratch.names().empty());
  const Outcome alone = run(2, {"/bin/sh", "-c", as_mpi + " missing"}, {.join_timeout = 300ms});
  CHECK_THAT(alone.result.message, ContainsSubstring("rank 1 of 2 did not join within 300 ms"));
  CHECK(scratch.names().empty());
}

TEST_CASE("a job on several hosts needs an address") {
  const SetVariables setting(kPmi);
  CHECK_THROWS_WITH(init_process_group(), ContainsSubstring("on several hosts") && ContainsSubstring("MASTER_ADDR"));
}

TEST_CASE("ranks do not meet in a folder that others can use") {
  const Scratch scratch;
  const SetVariables setting({{"TMPDIR", scratch.folder()}});
  {
    const MeetingFolder folder("a/b job", 3);
    CHECK(scratch.names().at(0) == concat("duet-", ::geteuid(), "-a_b_job-3"));
  }
  CHECK(scratch.names().empty());
  const std::string open = scratch.path(concat("duet-", ::geteuid(), "-j-0"));
  std::filesystem::create_directory(open);
  ::chmod(open.c_str(), 0755);
  CHECK_THROWS_WITH(MeetingFolder("j", 0), ContainsSubstring("not a folder that only this user can use"));
}

TEST_CASE("where torchrun's own store has the port, the ranks take one of the next, each run its own") {
  const TcpStore agent({.port = 0, .run = "agent", .serve = true});
  const SetVariables setting({{"RANK", "0"},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", std::to_string(agent.port())},
                              {"TORCHELASTIC_RUN_ID", "mine"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const TcpStore other({.port = agent.port(), .more_ports = 16, .run = "another run", .serve = true});
  CHECK(other.port() > agent.port());
  CHECK(meet() == kBoth);
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
  CHECK_THAT(meet(60ms).at(0), ContainsSubstring("errno 98"));
  CHECK_THROWS_WITH(TcpStore({.port = other.port(), .run = "mine"}), ContainsSubstring("serves another run"));
}
