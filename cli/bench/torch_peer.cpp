#include "cli/bench/torch_peer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

#include "cli/system/files.h"
#include "cli/system/signals.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"

namespace duet::cli {
namespace {

constexpr const char* kScript =
#include "cli/bench/torch_peer.inc"
    ;

constexpr std::chrono::milliseconds kPoll{20};

/// A FIFO for each rank, which each opens when it is parked. This process is their only writer: they end with it.
std::vector<Descriptor> make_fifos(const std::string& files, int ranks) {
  std::vector<Descriptor> fifos;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = concat(files, ".commands.", rank);
    require<DataError>(::mkfifo(path.c_str(), 0600) == 0, "cannot make ", path, ": ", last_errno);
    fifos.emplace_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // O_WRONLY would wait for the reader
    require<DataError>(fifos.back().open(), "cannot open ", path, ": ", last_errno);
  }
  return fifos;
}

/// The script's, under Python; writes the script.
std::vector<std::string> script_arguments(const TorchNetwork& network, std::int64_t batch, const std::string& files) {
  const std::string script = files + ".py";
  write_atomically(script, std::string(kScript));
  std::vector<std::string> arguments = {script, "--device=cpu"};
  const auto add = [&](const char* option, const auto& value) {
    arguments.push_back(concat("--", option, "=", value));
  };
  add("batch", batch);
  add("model", network.model);
  add("image-size", network.image_size);
  add("classes", network.classes);
  add("stem", network.stem);
  return arguments;
}

std::vector<std::string> arguments_of(const TorchWay& way, const TorchNetwork& network, std::int64_t batch,
                                      const std::string& files) {
  using By = TorchWay::By;
  std::vector<std::string> arguments;
  const auto add = [&](const char* option, const auto& value) {
    arguments.push_back(concat("--", option, "=", value));
  };
  if (way.is_python()) {
    arguments = script_arguments(network, batch, files);
    arguments.emplace_back("--parked");
    add("backend", way.by == By::python ? "gloo" : "duet");
    if (way.tuned) arguments.emplace_back("--tuned");
  } else {
    arguments = {"bench", "libtorch"};
    add("script", network.script);
    add("batch", batch);
    add("backend", way.backend);
    add("sync", way.by == By::libtorch_averaged ? "averaged" : way.ranks > 1 ? "wrapper" : "none");
  }
  add("out", files);
  add("ranks", way.ranks);
  add("threads", way.threads);
  return arguments;
}

}  // namespace

TorchPeer::TorchPeer(const std::string& python, const TorchWay& way, const TorchNetwork& network, std::int64_t batch,
                     const std::string& files)
    : files_(files),
      commands_(make_fifos(files, way.ranks)),
      child_(way.is_python() ? python : kThisProgram, arguments_of(way, network, batch, files), files + ".log") {}

const std::string& TorchPeer::wait() {
  read_times();
  return error_;
}

TorchBurst TorchPeer::burst(int steps) {
  const std::string command = concat(steps, "\n");
  for (const Descriptor& fifo : commands_)
    require<CommError>(::write(fifo.get(), command.data(), command.size()) == std::ssize(command),
                       "cannot write to the PyTorch peer: ", last_errno);
  ++bursts_;
  TorchBurst burst = read_times();
  if (burst.steps_us.empty() && error_.empty()) error_ = "the PyTorch peer timed no step";
  return burst;
}

TorchBurst TorchPeer::read_times() {
  const std::string file = concat(files_, ".", bursts_);
  for (; ::access(file.c_str(), R_OK) != 0; std::this_thread::sleep_for(kPoll)) {
    if (noted_signal() != 0) throw Interrupted{noted_signal()};
    if (const std::optional<ChildEnd>& end = child_.poll(); end && ::access(file.c_str(), R_OK) != 0) {
      error_ = end->ok ? "the PyTorch peer ended before it was asked to" : end->reason;
      return {};
    }
  }
  try {
    const auto json = nlohmann::json::parse(read_file(file));
    json.at("torch").get_to(version_);
    json.at("startup_s").get_to(startup_s_);
    TorchBurst burst{.steps_us = json.at("steps_us"), .alone_us = json.at("alone_us")};
    const auto& parts = json.at("parts_us");
    burst.parts = {
        .forward = parts.at("forward"), .backward = parts.at("backward"), .communication = parts.at("exposed")};
    burst.communication_us = parts.at("communication");
    burst.moving_us = json.at("moving_us");
    if (!burst.steps_us.empty())
      burst.parts.update =
          std::reduce(burst.steps_us.begin(), burst.steps_us.end()) / static_cast<double>(burst.steps_us.size()) -
          burst.parts.sum();
    return burst;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(concat("the PyTorch peer wrote something else than its times: ", error.what()));
  }
}

void require_torch(const std::string& python, const std::string& folder, const TorchNetwork& network) {
  const std::string imports = network.model == "simple_cnn" ? "import torch" : "import torch, torchvision";
  const std::string log = folder + "/log";
  const ChildEnd end = run_program(python, {"-c", imports + "; print('\\nPyTorch', torch.__version__)"}, log);
  require<UsageError>(end.ok || end.signal != 0, "--vs-torch ", python, ": ", end.reason);
  require<UsageError>(end.signal != 0 || read_file(log).find("\nPyTorch ") != std::string::npos, "--vs-torch ", python,
                      ": ended without running \"", imports, "\", expected a Python with PyTorch");
}

std::string why_no_duet_torch(const std::string& python, const std::string& folder) {
  return run_program(python, {"-c", "import duet_torch"}, folder + "/log").reason;
}

std::string export_script(const std::string& python, const std::string& folder, const TorchNetwork& network,
                          std::int64_t batch) {
  std::vector<std::string> arguments = script_arguments(network, batch, folder + "/export");
  arguments.push_back("--export=" + network.script);
  const ChildEnd end = run_program(python, arguments, folder + "/log");
  if (end.signal != 0) throw Interrupted{end.signal};
  return end.ok ? "" : concat("no TorchScript: ", end.reason);
}

std::string name(const TorchWay& way) {
  using By = TorchWay::By;
  if (way.by == By::python_over_duet) return "torch ddp over duet";
  if (way.by == By::libtorch_averaged) return "LibTorch averaged";
  if (way.by == By::libtorch) return way.ranks > 1 ? "LibTorch + duet" : "LibTorch";
  return concat("torch", way.ranks > 1 ? " ddp" : "", way.tuned ? ", tuned" : "");
}

}  // namespace duet::cli
