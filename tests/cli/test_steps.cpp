// duet bench step: ratios of its rounds, and the PyTorch peer.
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "cli/bench/step_rows.h"
#include "cli/bench/torch_peer.h"
#include "cli/options/options.h"
#include "cli/system/files.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;

namespace {

StepRow row(const std::string& name, int devices, int threads, const std::vector<double>& rounds) {
  StepRow made{.name = name, .devices = devices, .threads_per_device = threads};
  made.torch = name.starts_with("torch") && name != "torch ddp over duet";
  for (const double us : rounds) made.add(us, us - 1, us + 10);
  return made;
}

/// A program that stands in for Python: it runs `body` with the value of --out in $out.
std::string program(const TemporaryFolder& folder, const std::string& body) {
  const std::string path = folder.path() + "/python";
  write_atomically(
      path,
      "#!/bin/sh\nwhile [ $# -gt 0 ]; do case \"$1\" in --out=*) out=${1#--out=};; esac; shift; done\n" + body + "\n");
  ::chmod(path.c_str(), 0755);
  return path;
}

TorchPeer peer(const std::string& python, const TemporaryFolder& folder) {
  return TorchPeer(python, {.ranks = 2, .threads = 1, .tuned = true}, {}, 128, folder.path() + "/torch");
}

}  // namespace

TEST_CASE("a ratio is taken inside each round") {
  // The machine was half as fast in the second round: the ratio of the medians would be another.
  const StepRow fast = row("dp", 2, 1, {100, 200, 110}), slow = row("single", 1, 1, {190, 400, 220});
  const Ratio ratio = times_as_fast(fast, slow).value();
  CHECK(ratio.middle == Approx(2.0));
  CHECK(ratio.low == Approx(1.9));
  CHECK(ratio.high == Approx(2.0));
  StepRow failed = slow;
  failed.error = "no";
  CHECK_FALSE(times_as_fast(fast, failed).has_value());
  CHECK(fast.fastest_us == 99);
  CHECK(fast.slowest_us == 210);
}

TEST_CASE("rows are compared with peers on as many cores") {
  StepTimes times;
  times.torch = "2.0";
  times.rows = {row("single", 1, 1, {100}),       row("dp", 2, 1, {50}),
                row("torch", 1, 1, {1000}),       row("torch", 1, 2, {600}),
                row("torch, tuned", 1, 1, {500}), row("torch ddp", 2, 1, {700})};
  BenchOptions options;
  options.repeats = 1;
  const auto json = nlohmann::json::parse(to_json(options, times));
  const auto& single = json.at("rows").at(0).at("times_as_fast_as");
  CHECK(single.size() == 2);
  CHECK(single.at("torch").at("median") == 10.0);
  CHECK(single.at("torch, tuned").at("median") == 5.0);
  const auto& dp = json.at("rows").at(1).at("times_as_fast_as");
  CHECK(dp.at("single").at("median") == 2.0);
  CHECK(dp.at("torch").at("median") == 12.0);
  CHECK(dp.at("torch ddp").at("median") == 14.0);
  const std::string text = to_text(options, times);
  CHECK_THAT(text, duet_test::ContainsSubstring("12.00 (12.00..12.00)"));
  CHECK_THAT(text, duet_test::ContainsSubstring("PyTorch 2.0"));
}

TEST_CASE("rows of LibTorch have ratios, parts, start-up and what their synchronisation costs") {
  StepTimes times;
  times.torch = "2.9+cpu";
  times.libtorch = "2.9.0";
  times.notes = {"no row torch ddp over duet: no such package"};
  times.rows = {row("torch ddp", 2, 1, {800, 900}), row("LibTorch + duet", 2, 1, {}),
                row("LibTorch averaged", 2, 1, {}), row("torch ddp over duet", 2, 1, {800, 450})};
  StepRow& duet = times.rows[1];
  duet.startup_s = 0.75;
  duet.synchronisation_us = {10, 30};
  duet.add(400, 399, 410);
  duet.add({.forward = 100, .backward = 50, .communication = 8, .update = 2}, 20, 5);
  duet.add(600, 599, 610);
  duet.add({.forward = 300, .backward = 70, .communication = 16, .update = 4}, 40, 9);
  times.rows[2].error = "no TorchScript: no such module";
  BenchOptions options;
  const auto json = nlohmann::json::parse(to_json(options, times));
  CHECK(json.at("libtorch") == "2.9.0");
  CHECK(json.at("notes").at(0) == "no row torch ddp over duet: no such package");
  CHECK(json.at("rows").at(0).at("times_as_fast_as").empty());
  CHECK(json.at("rows").at(0).at("parts_us").is_null());
  const auto& shown = json.at("rows").at(1);
  CHECK(shown.at("times_as_fast_as").at("torch ddp").at("median") == 1.75);
  CHECK(shown.at("startup_s") == 0.75);
  CHECK(shown.at("communication_us") == 30);
  CHECK(shown.at("moving_us") == 7);
  CHECK(shown.at("synchronisation_us").size() == 2);
  const nlohmann::json parts = {{"forward", 200}, {"backward", 60}, {"exposed", 12}, {"rest", 3}};
  CHECK(shown.at("parts_us") == parts);
  CHECK(json.at("rows").at(3).at("times_as_fast_as").at("torch ddp").at("high") == 2);
  const std::string text = to_text(options, times);
  CHECK_THAT(text, duet_test::ContainsSubstring("0.750        200         60             12          3\n"));
  CHECK_THAT(text,
             duet_test::ContainsSubstring("LibTorch averaged          2       1  failed: no TorchScript: no such"));
  CHECK_THAT(text,
             duet_test::ContainsSubstring("LibTorch + duet            2       1          20 (10..30)           7\n"));
  CHECK_THAT(text, duet_test::ContainsSubstring("\n no row torch ddp over duet: no such package\n"));
  CHECK_THAT(text, duet_test::ContainsSubstring("LibTorch is LibTorch 2.9.0 in C++"));
}

TEST_CASE("ranks of LibTorch get the same rows, and their way of bringing gradients together") {
  CHECK(name(TorchWay{.by = TorchWay::By::libtorch}) == "LibTorch");
  CHECK(name(TorchWay{.ranks = 2, .by = TorchWay::By::libtorch}) == "LibTorch + duet");
  CHECK(name(TorchWay{.ranks = 2, .by = TorchWay::By::libtorch_averaged}) == "LibTorch averaged");
  CHECK(name(TorchWay{.ranks = 2, .by = TorchWay::By::python_over_duet}) == "torch ddp over duet");
  const auto options = std::get<ScriptBenchOptions>(
      parse({"bench", "libtorch", "--script=net.pt", "--out=f", "--ranks=2", "--sync=averaged", "--batch=64"}));
  CHECK(options.script == "net.pt");
  CHECK(options.sync == "averaged");
  CHECK(options.batch == 64);
  const std::string help = std::get<Printed>(parse({"bench", "--help"})).text;
  CHECK_THAT(help, !duet_test::ContainsSubstring("  libtorch"));
}

TEST_CASE("a network that cannot be exported is why rows of LibTorch fail") {
  const TemporaryFolder folder;
  const std::string python = program(folder, "echo 'AttributeError: no module torch.jit'; exit 1");
  CHECK(export_script(python, folder.path(), {.script = folder.path() + "/net.pt"}, 128) ==
        "no TorchScript: AttributeError: no module torch.jit");
  CHECK(why_no_duet_torch(python, folder.path()) == "AttributeError: no module torch.jit");
}

TEST_CASE("the PyTorch peer is run by the Python that was named, parks, and runs the bursts that it is asked for") {
  const TemporaryFolder folder;
  const std::string good = program(folder, R"(
write() {
  parts='{"forward": 2, "backward": 1, "exposed": 0.25, "communication": 0.5}'
  echo "{\"torch\": \"2.9\", \"startup_s\": 2.5, \"parts_us\": $parts, \"steps_us\": [$2], \"alone_us\": [], \"moving_us\": 0.125}" >"$out.new"
  mv "$out.new" "$out.$1"
}
write 0 ""
while read steps && read same <&4; do
  [ "$steps" = "$same" ] || exit 3
  i=$((i + 1))
  write $i "$steps, 1.5"
done <"$out.commands.0" 4<"$out.commands.1")");
  TorchPeer parked = peer(good, folder);
  CHECK(parked.wait() == "");
  CHECK(parked.version() == "2.9");
  CHECK(parked.startup_s() == 2.5);
  const TorchBurst burst = parked.burst(5);
  CHECK(burst.steps_us == std::vector<double>{5, 1.5});
  CHECK(burst.alone_us.empty());
  CHECK(burst.communication_us == 0.5);
  CHECK(burst.moving_us == 0.125);
  CHECK(burst.parts.forward == 2);
  CHECK(burst.parts.communication == 0.25);
  CHECK(burst.parts.update == 0);  // of a mean of 3.25
  CHECK(parked.burst(7).steps_us == std::vector<double>{7, 1.5});
  CHECK(parked.error() == "");
  CHECK_THAT(read_file(folder.path() + "/torch.py"), duet_test::ContainsSubstring("class SimpleCNN(nn.Module):"));
}

TEST_CASE("a PyTorch peer that cannot run is an error with the reason") {
  const TemporaryFolder folder;
  TorchPeer failed = peer(program(folder, "echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1"), folder);
  CHECK(failed.wait() == "ModuleNotFoundError: No module named 'torch'");
  CHECK_THROWS_WITH(require_torch(folder.path() + "/nowhere", folder.path()),
                    duet_test::ContainsSubstring("cannot start " + folder.path() + "/nowhere"));
  const std::string bare = folder.path() + "/python-without-torchvision";
  write_atomically(bare,
                   "#!/bin/sh\ncase \"$2\" in *torchvision*)\n"
                   "  echo \"ModuleNotFoundError: No module named 'torchvision'\"; exit 1\nesac\n"
                   "echo; echo PyTorch 2.9\n");
  ::chmod(bare.c_str(), 0755);
  CHECK_NOTHROW(require_torch(bare, folder.path()));
  CHECK_THROWS_WITH(require_torch(bare, folder.path(), {.model = "resnet18"}),
                    "--vs-torch " + bare + ": ModuleNotFoundError: No module named 'torchvision'");
  for (const std::string none : {"/bin/true", "/bin/echo"})
    CHECK_THROWS_WITH(
        require_torch(none, folder.path()),
        "--vs-torch " + none + ": ended without running \"import torch\", expected a Python with PyTorch");
  const TemporaryFolder other;
  TorchPeer nonsense = peer(program(other, "echo nonsense >\"$out.0\""), other);
  CHECK_THROWS_AS(nonsense.wait(), DataError);
}

TEST_CASE("a PyTorch peer that ends while it is parked is an error in the next burst") {
  const TemporaryFolder folder;
  const std::string once = program(folder, R"(
parts='{"forward": 0, "backward": 0, "exposed": 0, "communication": 0}'
echo '{"torch": "2.9", "startup_s": 2.5, "parts_us": '"$parts"', "steps_us": [], "alone_us": [], "moving_us": 0}' >"$out.new"
mv "$out.new" "$out.0"
read steps <"$out.commands.0"; echo "out of memory"; exit 1)");
  TorchPeer parked = peer(once, folder);
  REQUIRE(parked.wait() == "");
  CHECK(parked.burst(5).steps_us.empty());
  CHECK(parked.error() == "out of memory");
}
