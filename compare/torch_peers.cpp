#include "compare/torch_peers.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "train/measure/json_fields.h"
#include "train/setup.h"
#include "train/system/child_process.h"
#include "train/system/files.h"
#include "train/system/signals.h"

namespace duet::cli {
namespace {

constexpr const char* kScript =
#include "compare/torch_peer.inc"
    ;
constexpr std::string_view kWhyNoTorch = DUET_WHY_NO_TORCH;  // this program has no LibTorch; empty: it has

bool is_python(const Cell& cell) { return cell.torch.starts_with("torch"); }

/// read(the answer's fields). Throws DataError.
template <class Read>
void read_answer(const std::string& answer, const Read& read) {
  try {
    read(Json::parse(answer));
  } catch (const Json::exception& error) {
    throw DataError(concat("the PyTorch peer wrote something else than its times: ", error.what()));
  }
}

/// Why a run of that Python fails; empty where it does not. Throws Interrupted.
std::string why_fails(const std::string& python, const std::vector<std::string>& arguments, const std::string& log) {
  ChildEnd end = run_program(python, arguments, log);
  if (end.signal != 0) throw Interrupted{end.signal};
  return end.reason;
}

/// Writes this program's copy of tools/torch_peer.py into `folder`, and returns its path. Throws Interrupted, and
/// UsageError that says why `python` cannot import these modules, torch among them.
std::string write_torch_peer(const std::string& python, const std::string& modules, const std::string& folder) {
  const std::string log = folder + "/torch.log", imports = "import " + modules;
  const std::string why = why_fails(python, {"-c", imports + "; print('\\nPyTorch', torch.__version__)"}, log);
  require<UsageError>(why.empty(), "--vs-torch ", python, ": ", why);
  require<UsageError>(read_file(log).find("\nPyTorch ") != std::string::npos, "--vs-torch ", python,
                      ": ended without running \"", imports, "\", expected a Python with PyTorch");
  std::string script = folder + "/torch_peer.py";
  write_atomically(script, std::string(kScript));
  return script;
}

}  // namespace

TorchPeers::TorchPeers(const CompareOptions& options, std::string folder)
    : options_(options),
      folder_(std::move(folder)),
      network_(folder_ + "/network.pt"),
      image_size_(chosen_network(options).sample_shape[1]),
      classes_(options.classes > 0 ? options.classes : classes_of_data(options)),
      no_libtorch_(kWhyNoTorch) {
  const std::string log = folder_ + "/torch.log", &python = options.vs_torch;
  script_ = write_torch_peer(python, options.model == "simple_cnn" ? "torch" : "torch, torchvision", folder_);
  no_package_ = why_fails(python, {"-c", "import duet_torch"}, log);
  if (!no_libtorch_.empty()) return;
  const int most = std::max(usable_cores(), *std::max_element(options.devices.begin(), options.devices.end()));
  std::vector<std::string> arguments = script_arguments(options.batch * (options.scaling == "weak" ? most : 1));
  arguments.push_back("--export=" + network_);
  no_script_ = why_fails(python, arguments, log);
}

std::vector<Cell> TorchPeers::cells(const std::vector<Cell>& rows) {
  std::set<int> counts;
  for (const Cell& row : rows) counts.insert(row.devices * row.threads_per_device);
  std::vector<Cell> all;
  for (const int cores : counts) {
    const auto add = [&](const char* name, int ranks) {
      const std::int64_t own = options_.scaling == "weak" ? options_.batch : options_.batch / ranks;
      if (own == 0) return;
      all.push_back({.mode = ranks > 1 ? Mode::ddp : Mode::single,
                     .devices = ranks,
                     .threads_per_device = cores / ranks,
                     .batch = own * ranks,  // each rank has as many
                     .use = Cell::Use::torch,
                     .torch = name});
    };
    for (const char* const name : {"torch", "torch tuned"}) add(name, 1);
    if (cores == 1 && no_libtorch_.empty()) add("LibTorch", 1);
    if (cores == 1) continue;
    several_ranks_ = true;
    for (const char* const name : {"torch ddp", "torch ddp tuned"}) add(name, cores);
    if (no_package_.empty()) add("torch ddp over duet", cores);
    if (!no_libtorch_.empty()) continue;
    for (const char* const name : {"LibTorch + duet", "LibTorch averaged"}) add(name, cores);
  }
  return all;
}

TrainedCell TorchPeers::start(const Cell& cell) {
  TrainedCell learnt{.run = empty_run(options_, cell)};
  try {
    require<DataError>(is_python(cell) || no_script_.empty(), "no TorchScript: ", no_script_);
    auto parked = std::make_unique<ParkedCell>(is_python(cell) ? options_.vs_torch : kThisProgram, arguments_of(cell),
                                               concat(folder_, "/torch", started_++), cell.devices);
    read_answer(parked->answers().front(), [&](const Json& json) {
      learnt.run.startup_s = json.at("startup_s");
      (is_python(cell) ? version_ : libtorch_version_) = json.at("torch");
    });
    learnt.parked = std::move(parked);
  } catch (const Error& failure) {
    learnt.run.ok = false;
    learnt.run.error = failure.what();
  }
  return learnt;
}

std::vector<std::string> TorchPeers::notes() const {
  std::vector<std::string> notes;
  if (!version_.empty())
    notes.push_back(concat("torch is PyTorch ", version_,
                           " under --vs-torch; tuned: channels_last, and a malloc that keeps memory"));
  if (!libtorch_version_.empty())
    notes.push_back(
        concat("LibTorch is LibTorch ", libtorch_version_,
               " in C++, untuned; + duet: duet::torch::DistributedDataParallel; averaged: an all_reduce for "
               "each parameter after backward"));
  if (several_ranks_ && !no_package_.empty()) notes.push_back("no row torch ddp over duet: " + no_package_);
  if (!no_libtorch_.empty()) notes.push_back("no rows of LibTorch: duet was built without it: " + no_libtorch_);
  return notes;
}

std::vector<std::string> TorchPeers::script_arguments(std::int64_t batch) const {
  return {script_,
          "--device=cpu",
          concat("--batch=", batch),
          concat("--model=", options_.model),
          concat("--image-size=", image_size_),
          concat("--classes=", classes_),
          concat("--stem=", options_.stem)};
}

std::vector<std::string> TorchPeers::arguments_of(const Cell& cell) const {
  if (!is_python(cell)) {
    const char* const sync = cell.devices == 1 ? "none" : cell.torch == "LibTorch averaged" ? "averaged" : "wrapper";
    return {"train",
            "--quiet",
            concat("--libtorch=", sync),
            concat("--mode=", name(cell.mode)),
            concat("--model=", network_),
            concat("--batch=", cell.batch),
            concat("--backend=", cell.devices == 1 || options_.backend == "memory" ? "auto" : options_.backend),
            concat("--devices=", cell.devices),
            concat("--threads-per-device=", cell.threads_per_device)};
  }
  std::vector<std::string> arguments = script_arguments(cell.batch);
  arguments.push_back(concat("--backend=", cell.torch == "torch ddp over duet" ? "duet" : "gloo"));
  arguments.push_back(concat("--ranks=", cell.devices));
  arguments.push_back(concat("--threads=", cell.threads_per_device));
  if (cell.torch.ends_with("tuned")) arguments.emplace_back("--tuned");
  return arguments;
}

Run torch_burst_of(const std::string& answer) {
  Run run;
  read_answer(answer, [&](const Json& json) {
    const double median_us = json.at("median_us"), mean_us = json.at("mean_us"), exposed_us = json.at("exposed");
    run.rounds_us = {median_us};
    run.step_us = {.forward = json.at("forward"), .backward = json.at("backward"), .communication = exposed_us};
    run.step_us.update = std::max(0.0, mean_us - run.step_us.sum());
    run.step_us = run.step_us.scaled_to(median_us);
    run.communication_us = json.at("communication");
    if (json.at("alone_us").is_null()) return;
    // The rank that comes last in a step waits for none.
    const double waiting_us = exposed_us - json.at("moving").get<double>();
    run.synchronisation_us = {median_us - json.at("alone_us").get<double>()};
    run.waiting_share = exposed_us / mean_us;
    run.step_waiting_us = StepParts{.communication = waiting_us}.scaled(median_us / mean_us);
    run.communication_waiting_us = waiting_us;
    run.communication_moving_us = run.communication_us - waiting_us;
  });
  return run;
}

}  // namespace duet::cli
