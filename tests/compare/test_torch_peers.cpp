// PyTorch's rows of a comparison.
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compare/cells.h"
#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "compare/results.h"
#include "compare/torch_peers.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/options/options.h"
#include "train/system/files.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;
using duet_test::Approx;

namespace {

constexpr const char* kTorch = "case \"$2\" in *torch.__version__*) echo; echo PyTorch 2.9; exit;; esac\n";

/// A program that stands in for Python: it runs `body`.
std::string program(const TemporaryFolder& folder, const std::string& body) {
  const std::string path = folder.path() + "/python";
  write_atomically(path, "#!/bin/sh\n" + body + "\n");
  ::chmod(path.c_str(), 0755);
  return path;
}

CompareOptions options_of(const std::string& python, const std::vector<std::string>& more = {}) {
  std::vector<std::string> line = {"compare",   "--vs-torch", python,    "--data", "synthetic",
                                   "--devices", "2",          "--modes", "ddp"};
  line.insert(line.end(), more.begin(), more.end());
  return std::get<CompareOptions>(parse(line));
}

/// A run of PyTorch that takes `factor` times as long as one of duet's in every round.
Run torch_run(const std::string& mode, Run run, double factor) {
  run.mode = mode;
  run.parameters_sha256.clear();
  for (double& us : run.rounds_us) us *= factor;
  run.samples_per_s /= factor;
  return run;
}

std::string answer_of(double exposed_us) {
  return nlohmann::json{{"median_us", 80}, {"mean_us", 100},        {"forward", 50},       {"backward", 20},
                        {"alone_us", 70},  {"exposed", exposed_us}, {"communication", 30}, {"moving", 4}}
      .dump();
}

}  // namespace

TEST_CASE("every number of cores has PyTorch's rows, as ranks and as threads") {
  const TemporaryFolder folder;
  const std::string python = program(folder, std::string(kTorch) + "case \"$2\" in *duet_torch*) exit;; esac");
  const CompareOptions options = options_of(python);
  TorchPeers peers(options, folder.path());
  std::vector<std::string> titles;
  for (const Cell& cell : peers.cells({{Mode::single, 1, 1}, {Mode::ddp, 2, 1}, {Mode::single, 1, 2}})) {
    CHECK_FALSE(cell.learns());
    if (!cell.torch.starts_with("LibTorch")) titles.push_back(title(options, cell));
  }
  CHECK(titles == std::vector<std::string>{"torch 1", "torch tuned 1", "torch, 2 threads 1", "torch tuned, 2 threads 1",
                                           "torch ddp 2", "torch ddp tuned 2", "torch ddp over duet 2"});
  CHECK_THAT(read_file(folder.path() + "/torch_peer.py"), ContainsSubstring("class SimpleCNN(nn.Module):"));
}

TEST_CASE("PyTorch's ranks have as many rows each, and are none where a batch has fewer rows than ranks") {
  const TemporaryFolder folder;
  const std::string python = program(folder, kTorch);
  const CompareOptions seven = options_of(python, {"--batch", "7"}), two = options_of(python, {"--batch", "2"}),
                       weak = options_of(python, {"--batch", "7", "--scaling", "weak"});
  const auto batches = [&](const CompareOptions& options) {
    std::vector<std::int64_t> rows;
    for (const Cell& cell : TorchPeers(options, folder.path()).cells({{Mode::ddp, 3, 1}}))
      if (cell.torch == "torch" || cell.torch == "torch ddp") rows.push_back(cell.batch);
    return rows;
  };
  CHECK(batches(seven) == std::vector<std::int64_t>{7, 6});
  CHECK(batches(two) == std::vector<std::int64_t>{2});
  CHECK(batches(weak) == std::vector<std::int64_t>{7, 21});
}

TEST_CASE("a peer that answers with something else is a failed row") {
  const TemporaryFolder folder;
  const std::string python = program(folder, std::string(kTorch) + R"(
for word; do case "$word" in --bursts=*) files=${word#--bursts=};; esac; done
[ "$files" ] || exit 1
echo nonsense >$files.0.answers; read steps <$files.0.commands)");
  const CompareOptions options = options_of(python);
  TorchPeers peers(options, folder.path());
  const TrainedCell learnt = peers.start(peers.cells({{Mode::single, 1, 1}})[0]);
  CHECK_FALSE(learnt.run.ok);
  CHECK(learnt.parked == nullptr);
  CHECK_THAT(learnt.run.error, ContainsSubstring("the PyTorch peer wrote something else than its times"));
}

TEST_CASE("a package or a network that PyTorch lacks is why rows are missing or fail") {
  const TemporaryFolder folder;
  const std::string python =
      program(folder, std::string(kTorch) + "echo 'AttributeError: no module torch.jit'; exit 1");
  const CompareOptions options = options_of(python);
  TorchPeers peers(options, folder.path());
  const auto about_package = ContainsSubstring("torch ddp over duet");
  peers.cells({{Mode::single, 1, 1}});
  for (const std::string& note : peers.notes()) CHECK_THAT(note, !about_package);  // on one core there are no ranks
  const std::vector<Cell> cells = peers.cells({{Mode::ddp, 2, 1}});
  REQUIRE_FALSE(peers.notes().empty());
  CHECK(peers.notes()[0] == "no row torch ddp over duet: AttributeError: no module torch.jit");
  for (const Cell& cell : cells) {
    const Run run = peers.start(cell).run;
    CHECK_FALSE(run.ok);
    CHECK(run.mode == cell.torch);
    CHECK(run.error == (cell.torch.starts_with("LibTorch") ? "no TorchScript: AttributeError: no module torch.jit"
                                                           : "AttributeError: no module torch.jit"));
  }
}

TEST_CASE("a Python that cannot import torch is a usage error with the reason") {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::string& python, const std::vector<std::string>& more = {}) {
    const CompareOptions options = options_of(python, more);
    try {
      const TorchPeers peers(options, folder.path());
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(complaint(folder.path() + "/nowhere"), ContainsSubstring("cannot start " + folder.path() + "/nowhere"));
  const std::string bare = program(folder,
                                   "case \"$2\" in *torchvision*)\n"
                                   "  echo \"ModuleNotFoundError: No module named 'torchvision'\"; exit 1\nesac\n" +
                                       std::string(kTorch));
  CHECK(complaint(bare).empty());
  CHECK(complaint(bare, {"--model", "resnet18"}) ==
        "--vs-torch " + bare + ": ModuleNotFoundError: No module named 'torchvision'");
  for (const std::string none : {"/bin/true", "/bin/echo"})
    CHECK(complaint(none) ==
          "--vs-torch " + none + ": ended without running \"import torch\", expected a Python with PyTorch");
}

TEST_CASE("PyTorch's ranks are parked, and give back what bursts measured") {
  const TemporaryFolder folder;
  const std::string python = program(folder, std::string(kTorch) + R"(
for word; do case "$word" in --bursts=*) files=${word#--bursts=};; esac; done
[ "$files" ] || exit 1
exec 3<$files.1.commands 4>$files.1.answers <$files.0.commands >$files.0.answers
echo '{"torch": "2.9", "startup_s": 2.5}'; echo '{}' >&4
while read steps && read same <&3; do
  [ "$steps" != 9 ] || { echo "out of memory" >&2; exit 1; }
  [ "$steps" = "$same" ] && echo "$steps"; echo '{}' >&4
done)");
  const CompareOptions options = options_of(python);
  TorchPeers peers(options, folder.path());
  const TrainedCell learnt = peers.start(peers.cells({{Mode::ddp, 2, 1}})[2]);
  REQUIRE(learnt.run.error.empty());
  CHECK(learnt.run.mode == "torch ddp");
  CHECK(learnt.run.startup_s == 2.5);
  CHECK_THAT(peers.notes()[0], ContainsSubstring("torch is PyTorch 2.9 under --vs-torch"));
  CHECK(learnt.parked->burst(7) == std::vector<std::string>{"7", "{}"});
  CHECK_THROWS_WITH(learnt.parked->burst(9), "while it was timed: out of memory");
}

TEST_CASE(
    "a burst of PyTorch's ranks has parts, what waits for the last rank, and what bringing gradients together costs") {
  const Run run = torch_burst_of(answer_of(10));
  CHECK(run.rounds_us == std::vector<double>{80});
  CHECK(run.step_us.forward == Approx(40));  // of a mean of 100, scaled to the median
  CHECK(run.step_us.communication == Approx(8));
  CHECK(run.step_us.update == Approx(16));
  CHECK(run.step_waiting_us->communication == Approx(4.8));
  CHECK(run.communication_us == 30);
  CHECK(run.waiting_share == Approx(0.1));
  CHECK(run.synchronisation_us == std::vector<double>{10});
  CHECK_THROWS_WITH(torch_burst_of("nonsense"),
                    ContainsSubstring("the PyTorch peer wrote something else than its times"));
  const Run timed = with_rounds({}, {run, torch_burst_of(answer_of(20))}, 1280);
  CHECK(timed.synchronisation_us == std::vector<double>{10, 10});
  CHECK(timed.communication_waiting_us.value() == Approx(11));
}

TEST_CASE("PyTorch's rows are compared with duet's, and not taken for them") {
  Results plain = duet_test::made_up(), results = plain;
  const Run dp = *find_run(results, "dp", 2), single = *find_run(results, "single", 1);
  Run failed = torch_run("LibTorch + duet", dp, 1);
  failed.ok = false;
  failed.error = "no TorchScript: no such module";
  results.runs.insert(results.runs.end(),
                      {torch_run("torch", single, 0.01), torch_run("torch ddp", dp, 3),
                       torch_run("torch ddp tuned", dp, 2), torch_run("torch ddp over duet", dp, 1), failed});
  results.runs.back().threads_per_device = 1;
  results.runs[results.runs.size() - 2].synchronisation_us = {100, 101, 102, 103};
  results.torch_notes = {"torch is PyTorch 2.9"};
  compare_with_single(results);
  CHECK(answer(results) == answer(plain));
  const Run& tuned = results.runs[results.runs.size() - 3];
  CHECK(*tuned.speedup == Approx(*dp.speedup / 2));
  CHECK_FALSE(tuned.efficiency);
  CHECK(above_limit(results, results.runs[results.runs.size() - 5]).empty());
  CHECK(against_torch(plain).empty());
  const std::string sentence = against_torch(results);
  CHECK_THAT(
      sentence,
      ContainsSubstring("dp on 2 devices is 2.00 times as fast as PyTorch's best on as many cores, torch ddp tuned ("));
  const std::vector<std::string> said = findings(results), before = findings(plain);
  CHECK(std::count(said.begin(), said.end(), sentence) == 1);
  CHECK(said.back() == "torch is PyTorch 2.9.");
  for (const std::string& one : before) CHECK(std::count(said.begin(), said.end(), one) == 1);
  CHECK(said.size() == before.size() + 3);
  const std::string screen = first_screen(results, {});
  CHECK_THAT(screen, ContainsSubstring("\n  torch ddp tuned 2 "));
  CHECK_THAT(screen, ContainsSubstring("  failed: no TorchScript: no such module"));
  const Results read = results_from_json(to_json(results));
  CHECK(to_json(read) == to_json(results));
  CHECK(read.torch_notes == results.torch_notes);
}
