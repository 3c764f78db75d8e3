#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/cli/command_lines.h"
#include "tests/support/catch2.h"
#include "train/options/options.h"
#include "train/system/display.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;

namespace {

const std::vector<std::vector<std::string>> kCommands = {
    {}, {"compare"}, {"show"}, {"predict"}, {"train"}, {"launch"}, {"bench"}, {"bench", "all_reduce"}, {"info"}};

std::string help_of(std::vector<std::string> command, const char* flag = "--help") {
  command.emplace_back(flag);
  return printed(command);
}

void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) CHECK_THAT(text, duet_test::ContainsSubstring(part));
}

}  // namespace

TEST_CASE("defaults are the tutorial's") {
  const auto train = std::get<TrainOptions>(parse({"train"}));
  CHECK(train.mode == Mode::single);
  CHECK(train.devices == 1);
  CHECK(train.epochs == 10);
  CHECK(train.batch == 128);
  CHECK(train.lr == 0.01);
  CHECK(train.momentum == 0.5);
  CHECK(train.seed == 1234);
  const auto compare = std::get<CompareOptions>(parse({"compare"}));
  CHECK(compare.epochs == 1);
  CHECK(compare.modes == std::vector<Mode>{Mode::single, Mode::averaging, Mode::dp, Mode::ddp});
  CHECK(compare.out == "out");
  CHECK(compare.scaling == "strong");
  CHECK(compare.batch == 128);
}

TEST_CASE("options are read") {
  const auto train = std::get<TrainOptions>(
      parse({"train", "--mode", "ddp", "--devices", "4", "--batch=64", "--lr", "0.05", "--compat", "torch"}));
  CHECK(train.mode == Mode::ddp);
  CHECK(train.devices == 4);
  CHECK(train.batch == 64);
  CHECK(train.lr == 0.05);
  CHECK(train.compat == Compat::torch);
  const auto compare =
      std::get<CompareOptions>(parse({"compare", "--modes", "dp,ddp", "--devices", "2,3", "--json", "-"}));
  CHECK(compare.modes == std::vector<Mode>{Mode::dp, Mode::ddp});
  CHECK(compare.devices == std::vector<int>{2, 3});
  CHECK(std::get<CompareOptions>(parse({"compare", "--devices", "1..4"})).devices == std::vector<int>{1, 2, 4});
  CHECK(std::get<CompareOptions>(parse({"compare", "--devices", "3..7"})).devices == std::vector<int>{3, 6, 7});
  CHECK(compare.json == "-");
  CHECK(std::get<CompareOptions>(parse({"compare", "--json", "--quiet"})).json == "-");
  CHECK(std::get<CompareOptions>(parse({"compare", "--json", "results.json"})).json == "results.json");
  CHECK(std::get<InfoOptions>(parse({"info", "--json"})).json == "-");
  CHECK(std::get<InfoOptions>(parse({"info"})).json.empty());
  CHECK(std::get<CompareOptions>(parse({"compare", "--devices", "1", "--devices", "2"})).devices ==
        std::vector<int>{2});
  CHECK(std::get<CompareOptions>(parse({"compare", "--modes", "dp,ddp", "--modes=single,dp"})).modes ==
        std::vector<Mode>{Mode::single, Mode::dp});
  const auto backends = std::get<CompareOptions>(parse({"compare", "--backend", "shm", "--backend", "tcp,gloo"}));
  CHECK(backends.backends == std::vector<std::string>{"tcp", "gloo"});
  CHECK(backends.backend == "tcp");
  CHECK(std::get<CompareOptions>(parse({"compare", "--scaling", "weak"})).scaling == "weak");
  CHECK(std::get<CompareOptions>(parse({"compare", "--batch", "32", "--batch=8"})).batch == 8);
  CHECK(complaint({"compare", "--batch", "2", "--devices", "4", "--scaling", "weak"}).empty());
  const auto launch = std::get<LaunchOptions>(parse({"launch", "-n", "3", "--", "program", "--flag", "-n", "value"}));
  CHECK(launch.job.ranks == 3);
  CHECK(launch.job.command == std::vector<std::string>{"program", "--flag", "-n", "value"});
  const auto second = std::get<LaunchOptions>(parse({"launch", "--nproc-per-node", "2", "--nnodes", "2", "--node-rank",
                                                     "1", "--rdzv-endpoint", "[::1]:7", "--", "a"}));
  CHECK(second.job.node_rank == 1);
  CHECK(endpoint_of(second).address == "::1");
  CHECK(endpoint_of(second).port == 7);
  CHECK(endpoint_of(std::get<LaunchOptions>(parse({"launch", "--nnodes", "2", "--rdzv-endpoint", "host", "--", "a"})))
            .port == 29500);
  CHECK(endpoint_of(launch).port == 0);
}

TEST_CASE("a comparison has one number of blocks for all of its rows") {
  const auto blocks = [](const std::vector<std::string>& devices) {
    return std::get<CompareOptions>(parse(devices)).blocks;
  };
  CHECK(blocks({"compare", "--devices", "1,2,4,8"}) == 8);
  CHECK(blocks({"compare", "--devices", "1,2,3"}) == 32);
  CHECK(blocks({"compare", "--devices", "16"}) == 32);
  CHECK(blocks({"compare", "--devices", "1,2,3", "--blocks", "16"}) == 16);
  CHECK(blocks({"compare", "--devices", "1,2,3", "--device", "cuda"}) == 0);
  CHECK(std::get<TrainOptions>(parse({"train", "--blocks", "32"})).blocks == 32);
  CHECK_THAT(complaint({"train", "--blocks", "12"}), duet_test::ContainsSubstring("12"));
  CHECK_THAT(complaint({"train", "--blocks", "16", "--compat", "torch"}),
             duet_test::ContainsSubstring("with --compat torch a batch has no blocks"));
  CHECK_THAT(complaint({"train", "--blocks", "16", "--device", "cuda"}),
             duet_test::ContainsSubstring("--blocks is for CPU devices"));
}

TEST_CASE("networks for colour images have options and defaults of their own") {
  const auto train = std::get<TrainOptions>(
      parse({"train", "--model", "resnet50", "--image-size", "64", "--classes", "7", "--stem=cifar", "--sync-bn",
             "--loader-workers", "2", "--skip-broken", "--data", "folder"}));
  CHECK(train.model == "resnet50");
  CHECK(train.image_size == 64);
  CHECK(train.classes == 7);
  CHECK(train.stem == "cifar");
  CHECK(train.sync_bn);
  CHECK(train.loader_workers == 2);
  CHECK(train.skip_broken);
  CHECK(train.batch == 32);
  CHECK(train.train_images == 0);
  CHECK(std::get<TrainOptions>(parse({"train", "--model", "vgg11", "--batch", "128"})).batch == 128);
  CHECK(std::get<TrainOptions>(parse({"train"})).batch == 128);

  const auto compare = std::get<CompareOptions>(parse({"compare", "--model", "resnet18"}));
  CHECK(compare.batch == 32);
  CHECK(compare.train_images == 320);
  CHECK(compare.test_images == 100);
  const auto given = std::get<CompareOptions>(
      parse({"compare", "--model", "resnet18", "--batch", "8", "--data", "synthetic", "--train-images", "0"}));
  CHECK(given.batch == 8);
  CHECK(given.train_images == 0);
  CHECK(given.test_images == 0);

  CHECK(std::get<CompareOptions>(parse({"compare", "--model", "net.pt", "--input", "3x64x64"})).train_images == 320);
  CHECK_THAT(complaint({"train", "--model", "resnet19"}), duet_test::ContainsSubstring("unknown 'resnet19'"));
  CHECK_THAT(complaint({"train", "--stem", "small"}), duet_test::ContainsSubstring("imagenet or cifar"));
  CHECK_THAT(complaint({"train", "--sync-bn", "--device", "cuda"}),
             duet_test::ContainsSubstring("--sync-bn is for CPU devices"));
  CHECK_THAT(complaint({"train", "--sync-bn", "--mode", "averaging"}),
             duet_test::ContainsSubstring("--sync-bn is for modes single, dp and ddp, not averaging"));
  CHECK_THAT(complaint({"train", "--model", "resnet18", "--device", "cuda", "--graph", "on"}),
             duet_test::ContainsSubstring("colour images come from the host in every step"));
}

TEST_CASE("the options of predict are read") {
  const auto defaults = std::get<PredictOptions>(parse({"predict", "results.json"}));
  CHECK(defaults.results == "results.json");
  CHECK(defaults.devices == std::vector<int>{1, 2, 4, 8});
  CHECK(defaults.hosts == std::vector<int>{1});
  CHECK(defaults.scaling == "strong");
  const auto given = std::get<PredictOptions>(
      parse({"predict", "r", "--devices", "8,2", "--hosts", "1..48", "--gbit", "2.5", "--latency-us", "7", "--mode",
             "dp,ddp", "--batch", "64", "--scaling", "weak", "--json", "--out", "a.html"}));
  CHECK(given.devices == std::vector<int>{2, 8});
  CHECK(given.hosts == std::vector<int>{1, 2, 4, 8, 16, 32, 48});
  CHECK(given.gbit == 2.5);
  CHECK(given.latency_us == 7);
  CHECK(given.modes == std::vector<Mode>{Mode::dp, Mode::ddp});
  CHECK(given.batch == 64);
  CHECK(given.scaling == "weak");
  CHECK(given.json == "-");
  CHECK(std::get<PredictOptions>(parse({"predict", "--links"})).links);
  CHECK(std::get<PredictOptions>(parse({"predict", "r", "--devices", "1", "--devices", "2"})).devices ==
        std::vector<int>{2});
}

TEST_CASE("the options of show and --share are read") {
  const auto both = std::get<ShowOptions>(parse({"show", "x", "y/results.json", "--json"}));
  CHECK(both.a == "x");
  CHECK(both.b == "y/results.json");
  CHECK(both.json == "-");
  CHECK(std::get<ShowOptions>(parse({"show", "x"})).b.empty());
  CHECK(std::get<CompareOptions>(parse({"compare", "--share", "x"})).share == "x");
  CHECK(std::get<CompareOptions>(parse({"compare"})).share.empty());
}

TEST_CASE("the options of bench all_reduce are those of nccl-tests") {
  const auto defaults = std::get<CollectiveOptions>(parse({"bench", "all_gather"}));
  CHECK(defaults.collective == "all_gather");
  CHECK(defaults.min_bytes == 8);
  CHECK(defaults.max_bytes == 128 << 20);
  CHECK(defaults.factor == 2);
  CHECK(defaults.iterations == 20);
  CHECK(defaults.warm_up == 5);
  CHECK(defaults.check == 1);
  const auto given = std::get<CollectiveOptions>(
      parse({"bench",     "all_reduce", "-b", "1K", "-e", "4M",        "-f",       "4",           "-n",
             "7",         "-w",         "0",  "-c", "0",  "--backend", "shm,gloo", "--algorithm", "library,naive_ring",
             "--devices", "4"}));
  CHECK(given.min_bytes == 1024);
  CHECK(given.max_bytes == 4 << 20);
  CHECK(given.factor == 4);
  CHECK(given.iterations == 7);
  CHECK(given.warm_up == 0);
  CHECK(given.check == 0);
  CHECK(given.backends == std::vector<std::string>{"shm", "gloo"});
  CHECK(given.algorithms == std::vector<std::string>{"library", "naive_ring"});
  CHECK(given.devices == 4);
  const auto twice =
      std::get<CollectiveOptions>(parse({"bench", "all_reduce", "--backend", "shm", "--backend", "tcp"}));
  CHECK(twice.backends == std::vector<std::string>{"tcp"});
}

TEST_CASE("wrong options are named in one line") {
  using Lines = std::vector<std::pair<std::vector<std::string>, std::string>>;
  const Lines lines = {
      {{"train", "--device", "tpu"}, "--device: unknown 'tpu', expected cpu or cuda"},
      {{"train", "--device", "cpu:1"}, "--device: unknown 'cpu:1', expected cpu or cuda"},
      {{"train", "--mode", "dpp"}, "--mode: unknown 'dpp', expected single, averaging, dp or ddp"},
      {{"train", "--mode", "seed"}, "--mode: unknown 'seed', expected single, averaging, dp or ddp"},
      {{"train", "--mode", "dp", "--devices", "0"}, "--devices is 0, expected 1 to 1024"},
      {{"train", "--mode", "dp", "--devices", "100000"}, "--devices is 100000, expected 1 to 1024"},
      {{"train", "--devices", "2"}, "mode single uses 1"},
      {{"train", "--batch", "0"}, "--batch is 0"},
      {{"train", "--mode", "ddp", "--devices", "4", "--batch", "3"}, "--batch is 3, smaller than the 4 devices"},
      {{"train", "--lr", "nan"}, "--lr"},
      {{"train", "--momentum", "1"}, "--momentum is 1"},
      {{"train", "--optimizer", "lamb"}, "--optimizer: unknown 'lamb', expected sgd, adam or adamw"},
      {{"train", "--optimizer", "adam", "--momentum", "0.9"}, "--momentum is for --optimizer sgd, not adam"},
      {{"compare", "--optimizer", "adamw", "--momentum", "0"}, "--momentum is for --optimizer sgd, not adamw"},
      {{"train", "--weight-decay", "-1"}, "--weight-decay is -1, expected 0 or more"},
      {{"train", "--compare-every", "5"}, "--compare-every is for mode ddp, not single"},
      {{"train", "--elastic"}, "--elastic needs --mode ddp"},
      {{"train", "--mode", "ddp", "--elastic", "--workers", "thread"}, "--elastic needs --workers process"},
      {{"train", "--mode", "ddp", "--elastic", "--backend", "gloo"},
       "--elastic needs --backend auto, shm, tcp or nccl"},
      {{"train", "--mode", "ddp", "--elastic", "--compat", "torch"}, "--elastic needs --compat duet"},
      {{"train", "--checkpoint", "x", "--checkpoint-every", "-1"}, "--checkpoint-every is -1, expected 0 or more"},
      {{"train", "--epochs", "0"}, "--epochs is 0"},
      {{"train", "--epochs", "many"}, "--epochs"},
      {{"train", "--backend", "udp"}, "--backend: unknown 'udp', expected auto, shm, tcp, gloo, mpi, nccl or memory"},
      {{"train", "--seed=-1"}, "--seed is -1, expected 0 to 18446744073709551615"},
      {{"compare", "--seed", "18446744073709551616"}, "--seed is 18446744073709551616, expected 0 to"},
      {{"train", "--workers", "fork"}, "--workers: unknown 'fork', expected process or thread"},
      {{"train", "--mode", "dp", "--workers", "thread"}, "--workers thread is for modes averaging and ddp, not dp"},
      {{"train", "--mode", "ddp", "--workers", "thread", "--device", "cuda"}, "--workers thread is for CPU devices"},
      {{"compare", "--backend", "memory"}, "--backend memory is for --workers thread"},
      {{"compare", "--backend", "tcp,mpi"}, "duet compare starts its own ranks, but --backend mpi is for ranks that"},
      {{"train", "--mode", "ddp", "--backend", "mpi", "--workers", "thread"}, "--backend mpi is for --workers process"},
      {{"compare", "--backend", "shm,udp"},
       "--backend: unknown 'udp', expected auto, shm, tcp, gloo, mpi, nccl or memory"},
      {{"train", "--graph", "maybe"}, "--graph: unknown 'maybe', expected auto, on or off"},
      {{"train", "--graph-steps", "-1"}, "--graph-steps is -1, expected 0 to 1024"},
      {{"compare", "--graph", "on"}, "--graph on: CPU devices have no graphs"},
      {{"train", "--graph", "on", "--device", "cuda", "--mode", "averaging"},
       "--graph on: in mode averaging ranks add gradients"},
      {{"train", "--compat", "jax"}, "--compat: unknown 'jax'"},
      {{"train", "--model", "resnet"}, "--model: unknown 'resnet'"},
      {{"compare", "--modes", ""}, "--modes: "},
      {{"compare", "--modes", "dp,dp"}, "--modes: dp twice"},
      {{"compare", "--modes", "dp", "ddp"}, "ddp"},
      {{"compare", "--backend", "shm,tcp,shm"}, "--backend: shm twice"},
      {{"compare", "--modes", "dp,x"}, "--modes: unknown 'x', expected single, averaging, dp or ddp"},
      {{"train", "--precision", "fp8"}, "--precision: unknown 'fp8', expected fp32, tf32 or bf16"},
      {{"compare", "--devices", "1,x"}, "--devices is 1,x, expected numbers from 1 to 1024, as 1,2,4 or 1..8"},
      {{"compare", "--devices", "0"}, "--devices is 0, expected numbers from 1 to 1024"},
      {{"compare", "--devices", "1,2,100000"}, "--devices is 1,2,100000, expected numbers from 1 to 1024"},
      {{"compare", "--devices", "4..1"}, "--devices is 4..1, expected the smaller number first"},
      {{"compare", "--devices", "2,2"}, "--devices is 2,2, expected every number once"},
      {{"train", "--mode", "dp", "--devices", "1..4"}, "--devices is 1..4, expected one number; duet compare and"},
      {{"bench", "all_reduce", "--devices", "1,2"}, "--devices is 1,2, expected one number; duet compare and"},
      {{"train", "--mode", "ddp", "--backend", "nccl"}, "--backend nccl is for --device cuda"},
      {{"compare", "--backend", "shm,nccl"}, "--backend nccl is for --device cuda"},
      {{"predict", "r", "--link", "usb"}, "--link: unknown 'usb', expected pcie4, nvlink4,"},
      {{"show", "a", "b", "--wide"}, "--wide is for one result, not for two"},
      {{"compare", "--batch", "0"}, "--batch is 0, expected 1 or more"},
      {{"compare", "--batch", "32,128"},
       "--batch is 32,128, expected one number; run duet compare for each, then duet show"},
      {{"compare", "--batch", "x"}, "--batch"},
      {{"compare", "--batch", "2", "--devices", "1,4"}, "--batch is 2, smaller than the 4 devices"},
      {{"compare", "--batch", "9223372036854775807", "--devices", "4", "--scaling", "weak"},
       "--batch is 9223372036854775807, too large for each of 4 devices"},
      {{"compare", "--scaling", "linear"}, "--scaling: unknown 'linear', expected strong or weak"},
      {{"compare", "--time-budget=-1"}, "--time-budget is -1"},
      {{"train", "--copies", "--devices", "2"}, "--copies is for --untrained only"},
      {{"train", "--untrained"}, "--untrained is for --bursts"},
      {{"launch", "-n", "2"}, "no program given"},
      {{"launch", "-n", "0", "--", "a"}, "-n is 0"},
      {{"launch", "--nnodes", "0", "--", "a"}, "--nnodes is 0"},
      {{"launch", "--nnodes", "2:1", "--", "a"}, "--nnodes is 2:1, expected 1 to 1024, or MIN:MAX"},
      {{"launch", "--nnodes", "1:2", "--rdzv-endpoint", "h", "--", "a"}, "--nnodes is 1:2, but only a job with --elas"},
      {{"launch", "--master-addr", "h:1", "--", "a"}, "--master-addr is h:1, expected a host without a port"},
      {{"launch", "--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "h:1", "--", "a"}, "--node-rank is 2"},
      {{"launch", "--nnodes", "2", "--", "a"}, "--nnodes is 2, but no --rdzv-endpoint"},
      {{"launch", "--nnodes", "2", "--standalone", "--", "a"}, "--nnodes is 2, but --standalone"},
      {{"launch", "--nnodes", "2", "--rdzv-endpoint", "h", "--max-restarts", "1", "--", "a"}, "--max-restarts is 1"},
      {{"launch", "--max-restarts=-1", "--", "a"}, "--max-restarts is -1"},
      {{"launch", "--rdzv-endpoint", "h:1", "--master-addr", "h", "--", "a"}, "--rdzv-endpoint is h:1, but --master"},
      {{"launch", "--standalone", "--master-port", "5", "--", "a"}, "--master-port is 5, but --standalone"},
      {{"launch", "--rdzv-endpoint", "h:x", "--", "a"}, "--rdzv-endpoint is h:x, expected a port"},
      {{"launch", "--rdzv-endpoint", ":1", "--", "a"}, "--rdzv-endpoint is :1, expected HOST"},
      {{"launch", "--tee", "3", "--", "a"}, "--tee is 3, but no --log-dir"},
      {{"launch", "--tee", "4", "--log-dir", "d", "--", "a"}, "--tee: '4': expected 0 (nothing)"},
      {{"launch", "--redirects", "2:1", "-n", "2", "--log-dir", "d", "--", "a"},
       "rank 2 is not one of the ranks 0 to 1"},
      {{"launch", "--redirects", "0:1,x", "--log-dir", "d", "--", "a"}, "'x' is not RANK:NUMBER"},
      {{"launch", "--rdzv-timeout", "0", "--", "a"}, "--rdzv-timeout is 0"},
      {{"launch", "--grace=-1", "--", "a"}, "--grace is -1"},
      {{"launch", "--stop-limit", "nan", "--", "a"}, "--stop-limit is nan"},
      {{"show"}, "duet show: no folder or results.json given"},
      {{"show", "a", "--json"}, "--json is for two results; of one results.json is JSON already"},
      {{"show", "a", "b", "c"}, "not expected: c"},
      {{"predict"}, "duet predict: no results.json given"},
      {{"predict", "r", "--devices", "0"}, "--devices is 0, expected numbers from 1 to 1024, as 1,2,4 or 1..8"},
      {{"predict", "r", "--batch", "2000000000000000"}, "--batch is 2000000000000000, expected 0 to 1e+15"},
      {{"predict", "r", "--devices", "8..1"}, "--devices is 8..1, expected the smaller number first"},
      {{"predict", "r", "--hosts", "1,x"}, "--hosts is 1,x, expected numbers"},
      {{"predict", "r", "--hosts", "2,2"}, "--hosts is 2,2, expected every number once"},
      {{"predict", "r", "--hosts", "4"}, "--hosts is 4, but no --link or --gbit is given"},
      {{"predict", "r", "--hosts", "256", "--link", "ndr"},
       "8 devices on each of 256 hosts are 2048, expected at most"},
      {{"predict", "r", "--link", "ndr", "--gbit", "1"}, "--link is ndr, but --latency-us and --gbit describe another"},
      {{"predict", "r", "--latency-us", "1"}, "--latency-us without --gbit"},
      {{"predict", "r", "--algorithm", "tree"}, "--algorithm is for a link that --link or --gbit names"},
      {{"predict", "r", "--algorithm", "star"}, "--algorithm: unknown 'star', expected ring, tree"},
      {{"predict", "r", "--mode", "ddp,single"}, "--mode: unknown 'single', expected ddp, dp or averaging"},
      {{"predict", "r", "--mode", "dp,dp"}, "--mode: dp twice"},
      {{"predict", "r", "--scaling", "linear"}, "--scaling: unknown 'linear', expected strong or weak"},
      {{"predict", "r", "--out", "a.png"}, "--out is a.png, expected a name that ends with .html"},
      {{"bench", "leap"},
       "duet bench: unknown 'leap', expected all_reduce, all_gather, broadcast, reduce_scatter or all_to_all"},
      {{"bench", "all_reduse"}, "unknown 'all_reduse', did you mean all_reduce?"},
      {{"train", "--libtorch", "wrapper"}, "--libtorch is for --bursts"},
      {{"compare", "--vs-torch", "python3", "--device", "cuda"}, "--vs-torch is for CPU devices"},
      {{"compare", "--vs-torch", "python3", "--optimizer", "adam"},
       "--vs-torch: the peer trains by sgd, in fp32 and with plain batch norm; got --optimizer"},
      {{"bench"}, "duet bench: no benchmark, expected all_reduce, all_gather"},
      {{"compare", "--vs-torch", "python3", "--time-budget", "0"}, "--vs-torch times PyTorch in rounds, but"},
      {{"compare", "--vs-torch", "python3", "--model", "linear"},
       "--vs-torch: the peer is simple_cnn or a network of torchvision, not linear"},
      {{"bench", "broadcast", "--algorithm", "naive_ring"}, "--algorithm: unknown 'naive_ring', expected library"},
      {{"bench", "all_reduce", "--backend", "udp"}, "--backend: unknown 'udp', expected auto, shm, tcp, gloo"},
      {{"bench", "all_reduce", "--backend", "mpi", "--workers", "thread"}, "--backend mpi is for --workers process"},
      {{"bench", "all_reduce", "--dtype", "half"}, "--dtype: unknown 'half', expected f32, f16, bf16"},
      {{"bench", "all_reduce", "--device", "tpu"}, "--device: unknown 'tpu', expected cpu or cuda"},
      {{"bench", "all_reduce", "--workers", "fork"}, "--workers: unknown 'fork', expected process or thread"},
      {{"bench", "all_reduce", "--backend", "shm,nccl"}, "--backend nccl is for --device cuda"},
      {{"bench", "all_reduce", "--backend", "memory"}, "--backend memory is for --workers thread"},
      {{"bench", "all_reduce", "--dtype", "f16", "--algorithm", "chunked_ring"},
       "--algorithm: other than library is for f32 in the host's memory, not for f16 with --device cpu"},
      {{"bench", "all_reduce", "--device", "cuda", "--algorithm", "library,naive_ring"},
       "not for f32 with --device cuda"},
      {{"bench", "all_reduce", "--dtype", "i64", "-b", "4"}, "--min-bytes is 4, expected 8 or more"},
      {{"bench", "all_reduce", "-b", "1K", "-e", "512"}, "--max-bytes is 512, smaller than --min-bytes, 1024"},
      {{"bench", "all_reduce", "-b", "2"}, "--min-bytes is 2, expected 4 or more"},
      {{"bench", "all_reduce", "-f", "1"}, "--factor is 1, expected 2 or more"},
      {{"bench", "all_reduce", "-c", "2"}, "--check is 2, expected 0 to 1"},
      {{"train", "--model", "dir/net.pth"},
       "--model is dir/net.pth, which isn't a network that duet runs, expected FILE.pt (TorchScript"},
      {{"compare", "--unknown"}, "--unknown"},
  };
  for (const auto& [arguments, expected] : lines) {
    const std::string message = complaint(arguments);
    INFO(expected);
    CHECK_THAT(message, duet_test::ContainsSubstring(expected));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("help names every option with its default") {
  const std::string compare = help_of({"compare"}), train = help_of({"train"});
  check_contains(compare, {"--modes",   "--devices",     "--device", "--threads-per-device",
                           "--data",    "--download",    "--epochs", "--batch",
                           "--lr",      "--momentum",    "--seed",   "--time-budget",
                           "--out",     "--quiet",       "--json",   "--train-images",
                           "--share",   "--test-images", "--compat", "--model",
                           "--scaling", "128",           "1234",     "0.01",
                           "0.5",       "1,2,4,8 up"});
  check_contains(train, {"--mode", "--checkpoint", "--checkpoint-every", "--resume", "--result", "--fingerprints",
                         "--replicas", "--loss"});
  check_contains(help_of({"launch"}),
                 {"--nproc-per-node", "--nnodes", "--node-rank", "--rdzv-endpoint", "--master-addr", "--master-port",
                  "--standalone", "--max-restarts", "--log-dir", "--redirects", "--tee", "--no-pin", "--port-range",
                  "--grace", "--stop-limit", "--verbose", "seconds", "29500"});
  for (const char* hidden : {"--bursts", "--untrained", "--copies", "--libtorch"}) {
    INFO(hidden);
    CHECK(compare.find(hidden) == std::string::npos);
    CHECK(train.find(hidden) == std::string::npos);
  }
  check_contains(help_of({"predict"}),
                 {"--devices", "1..8", "--hosts", "--link", "--latency-us", "--gbit", "--algorithm", "--mode",
                  "--batch", "--scaling", "strong", "--json", "--out", "--links"});
  check_contains(help_of({}), {"compare"});
  CHECK(printed({"--version"}) == "duet " DUET_VERSION "\n");
}

TEST_CASE("help has at most 80 columns, and options in groups") {
  for (const std::vector<std::string>& command : kCommands) {
    std::istringstream help(help_of(command));
    for (std::string line; std::getline(help, line);) {
      INFO(line);
      CHECK(width(line) <= 80);
    }
  }
  const auto groups_of = [](const std::string& command) {
    std::istringstream help(help_of({command}));
    std::vector<std::string> groups;
    for (std::string line; std::getline(help, line);)
      if (line.ends_with(':') && line[0] != ' ') groups.push_back(line);
    return groups;
  };
  const std::vector<std::string> all = {"Common:", "Data:", "Network:", "Ranks:", "GPU:", "Files:"};
  CHECK(groups_of("train") == all);
  CHECK(groups_of("compare") == all);
  CHECK(groups_of("launch") == std::vector<std::string>{"Positionals:", "Common:", "Ranks:", "Files:"});
  const std::string train = help_of({"train"});
  const auto group_of = [&](const std::string& option) {
    const std::size_t title = train.rfind("\n\n", train.find("\n  --" + option + " ")) + 2;
    return train.substr(title, train.find(':', title) - title);
  };
  CHECK(group_of("epochs") == "Common");
  CHECK(group_of("download") == "Data");
  CHECK(group_of("stem") == "Network");
  CHECK(group_of("backend") == "Ranks");
  CHECK(group_of("graph") == "GPU");
  CHECK(group_of("resume") == "Files");
}

TEST_CASE("short help fits a screen, and each option's text has at most 30 words") {
  constexpr std::size_t kColumn = 24, kScreen = 24, kWords = 30;
  for (const std::vector<std::string>& command : kCommands) {
    const auto said = [&](const char* flag) {
      std::istringstream text(help_of(command, flag));
      std::vector<std::string> lines;
      for (std::string line; std::getline(text, line);) lines.push_back(line);
      return lines;
    };
    const std::vector<std::string> brief = said("-h"), all = said("--help");
    INFO(brief.back());
    CHECK(brief.size() <= kScreen);
    CHECK(brief.size() <= all.size());
    CHECK_THAT(brief.back() + brief[brief.size() - 2], duet_test::ContainsSubstring("--help"));
    std::size_t words = 0;
    bool in_values = false;
    for (const std::string& line : all) {
      const bool continues = line.starts_with(std::string(kColumn, ' '));
      if (!continues) words = in_values = false;
      const bool has_text = continues || (line.size() > kColumn && line.substr(kColumn - 2, 2) == "  ");
      std::istringstream text(has_text ? line.substr(kColumn) : "");
      for (std::string word; text >> word && !in_values; ++words) in_values = word == "Values:";
      INFO(line);
      CHECK(words <= kWords + (in_values ? 1 : 0));
    }
  }
}

TEST_CASE("help names the values that an option takes") {
  const auto one_line = [](std::string text) {
    std::string line;
    std::istringstream words(text);
    for (std::string word; words >> word;) line += word + " ";
    return line;
  };
  const std::string train = one_line(help_of({"train"})), predict = one_line(help_of({"predict"}));
  check_contains(train,
                 {"Values: single, averaging, dp or ddp ", "Values: simple_cnn, linear, alexnet, resnet18, ",
                  "Values: auto, shm, tcp, gloo, mpi, nccl or memory ", "Values: cpu or cuda ", "Values: torch "});
  check_contains(predict, {"Values: pcie4, nvlink4, 10gbe, 100gbe or ndr ", "Values: ddp, dp or averaging "});
}

TEST_CASE("help arranges only options that a command has") {
  std::string all;
  for (const std::vector<std::string>& command : kCommands) {
    if (command.empty()) continue;  // it's the program's own help
    std::string help = help_of(command);
    std::replace(help.begin(), help.end(), ',', ' ');
    std::replace(help.begin(), help.end(), '\n', ' ');
    all += help;
  }
  for (const std::string& option : arranged_options()) {
    INFO(option);
    CHECK_THAT(all, duet_test::ContainsSubstring("--" + option + " "));
  }
}
