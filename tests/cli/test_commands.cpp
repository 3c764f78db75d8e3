// Unknown names of commands and options, empty and idle values, and torchrun's names of options.
#include <algorithm>
#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/base/threads.h"
#include "tests/cli/command_lines.h"
#include "tests/support/catch2.h"
#include "train/options/options.h"
#include "train/system/machine.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;

namespace {

LaunchOptions launch(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "launch");
  arguments.insert(arguments.end(), {"--", "program", "--some_flag", "-n", "3"});
  return std::get<LaunchOptions>(parse(arguments));
}

}  // namespace

TEST_CASE("an unknown command is answered with the nearest one") {
  CHECK(complaint({"tran"}) == "unknown command 'tran', did you mean train? (see duet --help)");
  CHECK(complaint({"lanch", "-n", "2"}) == "unknown command 'lanch', did you mean launch? (see duet --help)");
  CHECK(complaint({"bnech", "step"}) == "unknown command 'bnech', did you mean bench? (see duet --help)");
  CHECK(complaint({"fly"}) ==
        "unknown command 'fly', expected compare, show, predict, train, launch, bench or info (see duet --help)");
  CHECK(complaint({"bench", "all_reduc"}) == "duet bench: unknown 'all_reduc', did you mean all_reduce?");
}

TEST_CASE("an empty text is neither a number nor an entry of a list") {
  CHECK_THAT(complaint({"train", "--mode", "dp", "--devices", ""}),
             ContainsSubstring("--devices is '', expected 1 to 1024"));
  CHECK_THAT(complaint({"train", "--lr", ""}), ContainsSubstring("--lr is '', expected 0 or more"));
  CHECK_THAT(complaint({"compare", "--devices", "1,,2"}), ContainsSubstring("--devices is 1,,2, expected numbers"));
  CHECK_THAT(complaint({"compare", "--modes", "dp,"}), ContainsSubstring("--modes: unknown '', expected single"));
  CHECK_THAT(complaint({"bench", "all_reduce", "--backend", "shm,,tcp"}),
             ContainsSubstring("--backend: unknown '', expected auto"));
}

TEST_CASE("values without an effect are refused") {
  CHECK_THAT(complaint({"train", "--timeout", "0"}), ContainsSubstring("--timeout is 0, expected 0.001 to 800000"));
  CHECK_THAT(complaint({"train", "--graph-steps", "3"}),
             ContainsSubstring("--graph-steps is 3, but CPU devices have no graphs"));
}

TEST_CASE("an unknown option is answered with the nearest one") {
  CHECK_THAT(complaint({"train", "--epoch", "3"}),
             ContainsSubstring("--epoch") && ContainsSubstring("did you mean --epochs?"));
  CHECK_THAT(complaint({"bench", "all_reduce", "--iteration=3"}), ContainsSubstring("did you mean --iterations?"));
  CHECK_THAT(complaint({"train", "--wings"}), ContainsSubstring("--wings") && !ContainsSubstring("did you mean"));
}

TEST_CASE("help is a command, too") {
  CHECK(printed({"help"}) == printed({"--help"}));
  CHECK(printed({}) == printed({"--help"}));
  CHECK(printed({"help", "train"}) == printed({"train", "--help"}));
  CHECK(printed({"help", "bench", "all_reduce"}) == printed({"bench", "all_reduce", "--help"}));
  CHECK_THAT(complaint({"help", "tran"}), ContainsSubstring("did you mean train?"));
}

TEST_CASE("launch takes torchrun's options in both spellings, and leaves the program's alone") {
  for (const char dash : {'-', '_'}) {
    const auto spelled = [dash](std::string option) {
      std::replace(option.begin() + 2, option.end(), '-', dash);
      return option;
    };
    const LaunchOptions one = launch({spelled("--nproc-per-node"),
                                      "2",
                                      spelled("--max-restarts"),
                                      "3",
                                      spelled("--rdzv-id"),
                                      "my-job",
                                      spelled("--rdzv-backend") + "=c10d",
                                      spelled("--rdzv-endpoint"),
                                      "h:1",
                                      spelled("--log-dir"),
                                      "a_b",
                                      "--tee",
                                      "3",
                                      spelled("--no-pin"),
                                      spelled("--rdzv-timeout"),
                                      "7",
                                      spelled("--stop-limit"),
                                      "9",
                                      spelled("--replace-timeout"),
                                      "0.5"});
    CHECK(one.job.ranks == 2);
    CHECK(one.job.max_restarts == 3);
    CHECK(one.job.run_id == "my-job");
    CHECK(endpoint_of(one).port == 1);
    CHECK(one.job.log_folder == "a_b");
    CHECK(one.no_pin);
    CHECK(one.job.join_timeout == std::chrono::seconds(7));
    CHECK(one.job.stop_limit == std::chrono::seconds(9));
    CHECK(one.job.replace_timeout == std::chrono::milliseconds(500));
    CHECK(one.job.command == std::vector<std::string>{"program", "--some_flag", "-n", "3"});
    const LaunchOptions two = launch({"--nnodes", "2", spelled("--node-rank"), "1", spelled("--master-addr"), "h",
                                      spelled("--master-port"), "5", spelled("--rdzv-backend"), "static"});
    CHECK(two.job.node_rank == 1);
    CHECK(endpoint_of(two).address == "h");
    CHECK(endpoint_of(two).port == 5);
    const LaunchOptions three = launch({"--nnodes=2:3", "-n", "4", "--elastic", spelled("--no-python"), "-t", "3", "-r",
                                        "1", spelled("--log-dir"), "d", spelled("--rdzv-endpoint"), "[::1]:7"});
    CHECK(three.job.nodes == 3);
    CHECK(three.job.min_ranks == 8);
    CHECK(endpoint_of(three).address == "::1");
  }
  const std::string help = printed({"launch", "--help"});
  CHECK_THAT(help, ContainsSubstring("--nproc-per-node") && !ContainsSubstring("--nproc_per_node"));
}

TEST_CASE("launch counts cores and GPUs for -n") {
  CHECK(launch({"-n", "cpu"}).job.ranks == usable_cores());
  CHECK(launch({"--nproc-per-node=4"}).job.ranks == 4);
  const std::string why = why_unavailable(DeviceKind::cuda);
  if (why.empty()) {
    CHECK(launch({"-n", "auto"}).job.ranks == backend(DeviceKind::cuda).device_count());
    CHECK(launch({"-n", "gpu"}).job.ranks == backend(DeviceKind::cuda).device_count());
  } else {
    CHECK(launch({"-n", "auto"}).job.ranks == usable_cores());
    CHECK_THROWS_WITH(parse({"launch", "-n", "gpu", "--", "a"}), ContainsSubstring("-n gpu: there is no GPU: " + why));
  }
  CHECK_THAT(complaint({"launch", "-n", "all", "--", "a"}),
             ContainsSubstring("-n: unknown 'all', expected a number, auto, gpu or cpu"));
}

TEST_CASE("launch refuses values of torchrun's options that it does not support") {
  CHECK_THAT(complaint({"launch", "--rdzv-backend", "etcd", "--", "a"}),
             ContainsSubstring("--rdzv-backend: unknown 'etcd', expected static or c10d"));
  CHECK_THAT(complaint({"launch", "--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:1", "--", "a"}),
             ContainsSubstring("--rdzv-backend is c10d with --nnodes 2, but no --node-rank"));
  CHECK(complaint({"launch", "--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", "h:1", "--node-rank", "0",
                   "--", "a"})
            .empty());
}

TEST_CASE("--port-range is two ports in order, for ranks only, with rank 0's among them") {
  CHECK(std::get<TrainOptions>(parse({"train", "--mode", "ddp", "--port-range", "5-6"})).port_range == "5-6");
  const auto hosts = std::get<LaunchOptions>(
      parse({"launch", "--nnodes", "2", "--rdzv-endpoint", "host", "--port-range", "30000-30010", "--", "a"}));
  CHECK(hosts.job.port_range == "30000-30010");
  CHECK(endpoint_of(hosts).port == 30000);
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& why) {
    CHECK_THAT(complaint(arguments), ContainsSubstring(why));
  };
  refused({"launch", "--port-range", "30000", "--", "a"}, "--port-range is \"30000\", expected FIRST-LAST");
  refused({"launch", "--port-range", "3-1", "--", "a"}, "--port-range is \"3-1\", expected FIRST-LAST");
  refused({"launch", "--port-range", "5-6", "--master-port", "7", "--", "a"},
          "the range of ports is 5-6, but rank 0 is to have port 7");
  refused({"train", "--mode", "ddp", "--port-range", "1-65536"}, "two ports from 1 to 65535");
  refused({"train", "--mode", "dp", "--port-range", "5-6"}, "--port-range is for modes averaging and ddp, not dp");
  for (const char* command : {"train", "launch"})
    CHECK_THAT(printed({command, "--help"}), ContainsSubstring("--port-range"));
}
