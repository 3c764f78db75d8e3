#include "cli/bench/torch_peer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
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

std::vector<std::string> arguments_of(const TorchWay& way, const TorchNetwork& network, std::int64_t batch,
                                      const std::string& files) {
  const std::string script = files + ".py";
  write_atomically(script, std::string(kScript));
  std::vector<std::string> arguments = {script, "--device=cpu", "--parked", "--out=" + files};
  const auto add = [&](const char* option, const auto& value) {
    arguments.push_back(concat("--", option, "=", value));
  };
  add("ranks", way.ranks);
  add("threads", way.threads);
  add("batch", batch);
  add("model", network.model);
  add("image-size", network.image_size);
  add("classes", network.classes);
  add("stem", network.stem);
  if (way.tuned) arguments.push_back("--tuned");
  return arguments;
}

}  // namespace

TorchPeer::TorchPeer(const std::string& python, const TorchWay& way, const TorchNetwork& network, std::int64_t batch,
                     const std::string& files)
    : files_(files),
      commands_(make_fifos(files, way.ranks)),
      child_(python, arguments_of(way, network, batch, files), files + ".log") {}

const std::string& TorchPeer::wait() {
  read_times();
  return error_;
}

std::vector<double> TorchPeer::burst(int steps) {
  const std::string command = concat(steps, "\n");
  for (const Descriptor& fifo : commands_)
    require<CommError>(::write(fifo.get(), command.data(), command.size()) == std::ssize(command),
                       "cannot write to the PyTorch peer: ", last_errno);
  ++bursts_;
  std::vector<double> times = read_times();
  if (times.empty() && error_.empty()) error_ = "the PyTorch peer timed no step";
  return times;
}

std::vector<double> TorchPeer::read_times() {
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
    return json.at("steps_us").get<std::vector<double>>();
  } catch (const nlohmann::json::exception& error) {
    throw DataError(concat("the PyTorch peer wrote something else than its times: ", error.what()));
  }
}

void require_torch(const std::string& python, const std::string& folder, const TorchNetwork& network) {
  const char* const imports = network.model == "simple_cnn" ? "import torch" : "import torch, torchvision";
  const ChildEnd end = run_program(python, {"-c", imports}, folder + "/log");
  require<UsageError>(end.ok || end.signal != 0, "--vs-torch ", python, ": ", end.reason);
}

std::string name(const TorchWay& way) {
  return concat("torch", way.ranks > 1 ? " ddp" : "", way.tuned ? ", tuned" : "");
}

}  // namespace duet::cli
