// The rules that options must keep.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/options/options.h"
#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/nn/networks.h"
#include "lib/parse_number.h"
#include "lib/shape.h"

namespace duet::cli {
namespace {

void check_training(const Training& training) {
  require<UsageError>(training.device == DeviceKind::cuda || training.precision != Precision::tf32,
                      "--precision is tf32, but CPU devices compute in fp32 or bf16");
  require<UsageError>(training.device == DeviceKind::cpu || training.threads_per_device == 1,
                      "--threads-per-device is ", training.threads_per_device, ", but one thread drives a GPU");
  require<UsageError>(training.device == DeviceKind::cuda || training.graph != "on",
                      "--graph on: CPU devices have no graphs");
  require<UsageError>(training.device == DeviceKind::cuda || training.graph_steps <= 1, "--graph-steps is ",
                      training.graph_steps, ", but CPU devices have no graphs");
  const bool threads = training.workers == "thread";
  require<UsageError>(!threads || (training.device == DeviceKind::cpu && training.backend != "nccl"),
                      "--workers thread is for CPU devices");
  require<UsageError>(threads || training.backend != "memory", "--backend memory is for --workers thread");
  require<UsageError>(!training.sync_bn || training.device == DeviceKind::cpu, "--sync-bn is for CPU devices");
  require<UsageError>(std::isfinite(training.lr) && training.lr >= 0, "--lr is ", training.lr,
                      ", expected a number from 0 on");
  require<UsageError>(training.momentum >= 0 && training.momentum < 1, "--momentum is ", training.momentum,
                      ", expected 0 to below 1");
}

void check_devices(int devices, std::int64_t batch) {
  require<UsageError>(devices >= 1 && devices <= kMaxDevices, "--devices is ", devices, ", expected 1 to ",
                      kMaxDevices);
  require<UsageError>(batch >= devices, "--batch is ", batch, ", smaller than the ", devices,
                      " devices that share it; every device needs at least one image");
}

}  // namespace

const char* name(Mode mode) {
  constexpr std::array kNames = {"single", "averaging", "dp", "ddp", "copies"};
  return kNames.at(static_cast<std::size_t>(mode));
}

bool is_script_file(const std::string& model) { return model.ends_with(".pt"); }

std::optional<Shape> input_shape(std::string_view text) {
  constexpr std::int64_t kMost = 4096;
  Shape shape;
  for (std::size_t begin = 0; begin <= text.size() && shape.rank() < 4;) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    const std::optional<std::int64_t> size = parse_number<std::int64_t>(text.substr(begin, end - begin));
    if (!size || *size < 1 || *size > kMost) return {};
    shape.append(*size);
    begin = end + 1;
  }
  return shape.rank() == 3 ? std::optional(shape) : std::nullopt;
}

Shape script_input(const Training& options) { return input_shape(options.input).value_or(Shape{3, 224, 224}); }

bool is_network_file(const std::string& model) {
  return model.ends_with(".so") || is_script_file(model) || model.find('/') != std::string::npos;
}

bool has_ranks(Mode mode) { return mode == Mode::averaging || mode == Mode::ddp || mode == Mode::copies; }

std::string why_no_graph(const TrainOptions& options, std::string carrier, std::span<const Device> devices) {
  if (options.device == DeviceKind::cpu) return "CPU devices have no graphs";
  if (is_network_file(options.model)) return "what a network from a file does on the host is not known";
  if (nn::find_network(options.model).channels != 1) return "colour images come from the host in every step";
  if (options.graph == "off") return "--graph off";
  if (options.mode == Mode::averaging) return "in mode averaging ranks add gradients up, outside of graphs";
  if (options.sum == "nccl") return "--sum nccl adds gradients up outside of graphs";
  for (const Device from : devices)
    for (const Device to : devices)
      if (!backend(to.kind).copies_directly(from, to))
        return concat("what ", from, " copies to ", to, " goes through the host's memory");
  if (carrier.empty() && options.devices > 1 && options.backend != "auto") carrier = options.backend;
  if (options.mode == Mode::ddp && !carrier.empty() && carrier != "nccl" && carrier != "solo")
    return concat("ranks over ", carrier, " add gradients up in the host's memory");
  if (options.optimizer != "sgd") return concat("--optimizer ", options.optimizer, " counts its steps on the host");
  if (options.compare_every > 0) return "--compare-every reads all parameters back";
  if (options.compat_torch) return "with --compat torch the host draws dropout";
  if (options.check_finite) return "--check-finite reads every result back";
  return "";
}

void check(const TrainOptions& options) {
  check_training(options);
  check_devices(options.devices, options.batch);
  require<UsageError>(options.mode != Mode::single || options.devices == 1, "--devices is ", options.devices,
                      ", but mode single uses 1; --mode dp or ddp uses several");
  require<UsageError>(!options.untrained || !options.bursts.empty(), "--untrained is for --bursts");
  require<UsageError>(options.libtorch.empty() || !options.bursts.empty(), "--libtorch is for --bursts");
  require<UsageError>(options.weights.empty() || options.untrained, "--weights is for --untrained");
  require<UsageError>(
      !options.collectives || (options.untrained && options.mode == Mode::ddp && options.device == DeviceKind::cpu),
      "--collectives is for --untrained processes of mode ddp on CPU devices");
  require<UsageError>(options.mode != Mode::copies || options.untrained,
                      "--copies is for --untrained only: its ranks do not learn together");
  require<UsageError>(options.workers == "process" || has_ranks(options.mode),
                      "--workers thread is for modes averaging and ddp, not ", name(options.mode));
  require<UsageError>(options.timeout_s == 0 || has_ranks(options.mode),
                      "--timeout is for modes averaging and ddp, not ", name(options.mode));
  require<UsageError>(options.port_range.empty() || has_ranks(options.mode),
                      "--port-range is for modes averaging and ddp, not ", name(options.mode));
  require<UsageError>(options.compare_every == 0 || options.mode == Mode::ddp, "--compare-every is for mode ddp, not ",
                      name(options.mode));
  require<UsageError>(!options.sync_bn || options.mode != Mode::averaging,
                      "--sync-bn is for modes single, dp and ddp, not averaging, whose ranks share gradients alone");
  const std::string no_graph = why_no_graph(options);
  require<UsageError>(options.graph != "on" || no_graph.empty(), "--graph on: ", no_graph);
  const bool several_gpus = options.mode == Mode::dp && options.device == DeviceKind::cuda && options.devices > 1;
  require<UsageError>(options.sum == "tree" || several_gpus,
                      "--sum nccl is for --mode dp --device cuda on several GPUs");
}

void check(const CompareOptions& options) {
  check_training(options);
  for (const std::int64_t batch : options.batches)
    for (const int devices : options.devices) {
      check_devices(devices, options.scaling == "weak" ? kMaxDevices : batch);
      require<UsageError>(options.scaling == "strong" || batch <= std::numeric_limits<std::int64_t>::max() / devices,
                          "--batch is ", batch, ", too large for each of ", devices, " devices");
    }
  require<UsageError>(!options.out.empty(), "--out: empty name of a folder");
  if (options.vs_torch.empty()) return;
  require<UsageError>(options.device == DeviceKind::cpu,
                      "--vs-torch is for CPU devices; tools/gpu_check.sh compares GPUs");
  require<UsageError>(options.model != "linear" && !is_network_file(options.model),
                      "--vs-torch: the peer is simple_cnn or a network of torchvision, not ", options.model);
  require<UsageError>(options.time_budget_s > 0, "--vs-torch times PyTorch in rounds, but --time-budget is 0");
}

}  // namespace duet::cli
