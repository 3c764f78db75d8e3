// duet train: one run, in one mode.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cli/unlikely.h"
#include "compare/bursts.h"
#include "ddp/group/compare_ranks.h"
#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/job_processes.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "ddp/rank_threads.h"
#include "ddp/store/network.h"
#include "lib/backend/backend.h"
#include "lib/base/environment.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/parse_number.h"
#include "train/checkpointer.h"
#include "train/options/options.h"
#include "train/setup.h"
#include "train/system/child_process.h"
#include "train/system/display.h"
#include "train/system/files.h"
#include "train/system/machine.h"
#include "train/system/signals.h"
#include "train/trainer.h"

namespace duet::cli {
namespace {

constexpr std::chrono::seconds kInterruptGrace{30};  // torchrun's
constexpr std::size_t kTraceEvents = 1 << 20;        // about 80,000 steps of one device, for --trace and --result

/// This process among those on its host that have devices of their own: spare ones of an elastic job do, too, as they
/// may take the part of any rank.
Recovery::Place place_among_processes() {
  const ddp::RankInfo place = ddp::rank_info();
  const auto memory = environment_variable(kElasticVariable);
  const int processes = memory ? ddp::JobMemory(*memory).processes() : place.world_size;
  if (processes == place.world_size) return {place.local_rank, place.local_world_size};
  const auto own = parse_number<int>(environment_variable(kElasticProcessVariable).value_or(""));
  return {own.value_or(place.rank), processes};
}

Device device_of_process(DeviceKind kind) {
  const Recovery::Place place = place_among_processes();
  return device_of_rank(kind, place.rank, place.ranks);
}

/// The devices that this process drives. Ranks share GPUs that are too few for them.
std::vector<Device> devices_of(const TrainOptions& options, const ddp::ProcessGroup& group) {
  if (options.mode == Mode::dp) return devices_for(options.device, options.devices);
  if (group.size() == 1) return devices_for(options.device, 1);
  return {device_of_process(options.device)};
}

/// Whether a person wants to read what is trained on what.
bool tells(const TrainOptions& options) {
  return options.progress.empty() && !options.quiet && !Recovery::instance().replaces();
}

/// "device: cuda:0.0 cuda:0.1 (simulated GPU, ...), 2 logical devices on 1 GPU, precision tf32; steps as CUDA graphs".
void say_devices(const TrainOptions& options, const std::vector<Device>& devices, const std::string& no_graph) {
  std::string text = "devices:";
  for (const Device device : devices) text += " " + device.str();
  if (devices.size() > 1 && devices[1].logical >= 0)
    text +=
        concat(", ", devices.size(), " logical devices on ", physical_devices(options.device, options.devices), " GPU");
  const Device first = {.kind = options.device, .index = devices[0].index};
  text += concat(" (", backend(options.device).describe(first), "), precision ", name(options.precision),
                 no_graph.empty() ? "; steps as CUDA graphs" : "; no CUDA graphs: ", no_graph);
  std::puts(text.c_str());
}

void say_inputs(const TrainOptions& options, const Images& images, const nn::Module& network) {
  std::printf("network: %s\n", network_text(options.model, network.parameter_count()).c_str());
  std::printf("data: %s\n", for_locale(printable(images.description)).c_str());
}

/// 0: as the launcher says.
ddp::Milliseconds timeout_of(const TrainOptions& options) {
  return ddp::Milliseconds(std::llround(options.timeout_s * 1000));
}

ddp::InitOptions group_options(const TrainOptions& options) {
  const int processes = place_among_processes().ranks;
  ddp::InitOptions group{.backend = backend_for(options.device, processes, options.backend),
                         .timeout = timeout_of(options),
                         .verbose = options.verbose};
  group.on_remark = [](const std::string& text) { std::fprintf(stderr, "duet: %s\n", text.c_str()); };
  if (group.backend != "nccl") return group;
  const int gpus = physical_devices(options.device, processes);
  require<UsageError>(gpus == processes || processes == ddp::rank_info().local_world_size,
                      "--spares with --backend nccl: a spare process has a GPU of its own, but ", processes,
                      " processes have ", gpus, " GPUs; expected fewer --spares, or --backend shm");
  group.device = device_of_process(options.device);
  return group;
}

/// Before the first kernel.
void set_up(const TrainOptions& options) {
  Backend& kernels = backend(options.device);
  kernels.set_threads_per_device(options.threads_per_device);
  kernels.set_precision(options.precision);
  kernels.set_deterministic(options.deterministic);
  if (options.timed_parts) TimedParts::turn_on();
  if (traces(options)) Trace::keep(kTraceEvents);
}

/// Files may have other names on other hosts; but the ranks gather what some of them hold.
const char* given(const std::string& path) { return path.empty() ? "not given" : "given"; }

/// Settings that must be equal on all ranks.
std::vector<ddp::Setting> settings_of(const TrainOptions& options, const Images& images) {
  std::vector<ddp::Setting> settings = shared_settings(options);
  settings.insert(settings.begin(), {{"duet", DUET_VERSION}, {"--mode", name(options.mode)}});
  settings.insert(settings.end(),
                  {{"--batch", concat(options.batch)},
                   {"--compare-every", concat(options.compare_every)},
                   {"--checkpoint", given(options.checkpoint)},
                   {"--checkpoint-every", concat(options.checkpoint_every)},
                   {"--resume", given(options.resume)},
                   {"--result", given(options.result)},
                   {"--trace", given(options.trace)},
                   {"--fingerprints", given(options.fingerprints)},
                   {"--bursts", given(options.bursts)},
                   {"--untrained", options.untrained ? "on" : "off"},
                   {"the data", concat(images.name, " with ", images.train->size(), " + ", images.test->size(),
                                       " images, hashes ", hash_text(*images.train), " + ", hash_text(*images.test))}});
  return settings;
}

/// Trains as one rank of `group` on `devices`. Returns the exit code.
int train_on(const std::vector<Device>& devices, const TrainOptions& options, const Images& images,
             ddp::ProcessGroup& group) {
  backend(options.device).bind_thread(devices[0]);
  Setup setup = make_setup(options, images, group, devices);
  if (tells(options) && group.rank() == 0) say_inputs(options, images, setup.model());
  const int signal = train_and_report(options, images, setup, group).signal;
  if (signal != 0) return 128 + signal;
  if (!options.bursts.empty()) serve_bursts(options, setup, group);
  return 0;
}

/// Trains as the one rank of this process. Returns the exit code.
int train_as_rank(const TrainOptions& options, ddp::ProcessGroup& group) {
  set_up(options);
  const std::vector<Device> devices = devices_of(options, group);
  backend(options.device).bind_thread(devices[0]);
  const std::string no_graph = why_no_graph(options, group.backend(), devices);
  require<UsageError>(options.graph != "on" || no_graph.empty(), "--graph on: ", no_graph);
  const Images images = find_images(options, devices[0]);
  note_signals();  // on all ranks before one of them trains
  ddp::require_same_settings(group, settings_of(options, images));
  if (tells(options) && group.rank() == 0 && options.device != DeviceKind::cpu) say_devices(options, devices, no_graph);
  return train_on(devices, options, images, group);
}

/// In the process that launches ranks from a terminal: shows the progress that rank 0 reports, and passes the ranks'
/// lines and the launcher's on around it.
class ProgressRelay {
 public:
  explicit ProgressRelay(const TrainOptions& options)
      : title_(progress_title(options)),
        style_(options.progress.empty() ? terminal_style(stderr, options.quiet) : TerminalStyle{}),
        line_(stderr, style_) {}

  /// For ddp::spawn() during this object's lifetime; nothing is relayed where stderr is no terminal.
  ddp::LaunchOptions relayed(ddp::LaunchOptions options) {
    if (!style_.rewrite) return options;
    options.environment = {{kRelayed, "1"}};
    options.on_line = [this](int rank, bool is_stderr, std::string_view text) { pass_on(rank, is_stderr, text); };
    options.on_remark = [this](const std::string& text) { pass_on(-1, true, text); };
    return options;
  }

 private:
  void pass_on(int rank, bool is_stderr, std::string_view text) {
    {
      Progress progress;
      const std::lock_guard lock(line_mutex_);
      if (rank == 0 && is_stderr && from_line(std::string(text), progress)) return line_.show(title_, progress);
      line_.clear();
    }
    ddp::write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO, concat(text, "\n"));
  }

  std::string title_;
  TerminalStyle style_;
  std::mutex line_mutex_;  // lines and remarks come in two threads
  ProgressLine line_;
};

/// Runs the ranks in processes of their own; in such a process, runs this rank.
int train_in_ranks(TrainOptions options) {
  const int launched = ddp::is_launched_rank() ? ddp::rank_info().world_size : options.devices;
  require<UsageError>(options.devices == 1 || options.devices == launched, "--devices is ", options.devices,
                      ", but the launcher started ", launched, " ranks");
  require<UsageError>(options.backend != "mpi" || ddp::is_launched_rank(), kNeedsMpirun);
  options.devices = launched;
  options.job.elastic = options.job.elastic || Recovery::instance().expected();
  if (options.verbose && ddp::is_launched_rank())
    std::fprintf(stderr, "duet: %s\n", ddp::describe(ddp::resolve_rank()).c_str());
  check(options);
  ProgressRelay progress(options);
  ddp::LaunchOptions launching = progress.relayed(options.job);
  launching.interrupt_grace = kInterruptGrace;
  int own_code = 0;
  const int code = ddp::spawn(
      [&](int) {
        note_closed_output();  // before Gloo ignores the signal where nothing handles it
        const auto group = ddp::init_process_group(group_options(options));
        const ddp::RankInfo place = ddp::rank_info();
        const int threads = options.threads_per_device;
        // Ranks share cores where they outnumber them.
        if (options.device == DeviceKind::cpu && place.local_world_size * threads <= usable_cores())
          take_cores(place.local_rank * threads, threads);
        own_code = train_as_rank(options, *group);
      },
      options.devices, launching);
  return code == 0 ? own_code : code;
}

/// Runs the ranks as threads of this process. Returns the exit code.
int train_in_threads(const TrainOptions& options) {
  set_up(options);
  note_signals();
  note_closed_output();
  const Images images = find_images(options);
  std::atomic<int> code{0};  // the same of all ranks
  const auto body = [&](ddp::ProcessGroup& group) {
    code = train_on({{.kind = options.device, .index = group.rank()}}, options, images, group);
  };
  ddp::GroupOptions group_options;
  if (options.timeout_s > 0) group_options.timeout = timeout_of(options);
  ddp::run_rank_threads(options.devices, body, {.backend = options.backend, .group = group_options});
  return code;
}

/// The files of a training, with their sizes as far as they can be estimated before the data are read.
std::vector<Output> outputs_of(const TrainOptions& options) {
  constexpr std::uint64_t kMnistImages = 60'000, kHashLine = 65, kTimeLine = 10, kRun = 65'536, kEpoch = 512;
  constexpr std::uint64_t kTracedStep = 1'500, kMostTraced = 100'000'000;  // trace bytes per device
  const std::uint64_t images =
      options.train_images > 0 ? static_cast<std::uint64_t>(options.train_images) : kMnistImages;
  const auto batch = static_cast<std::uint64_t>(options.batch), epochs = static_cast<std::uint64_t>(options.epochs);
  const std::uint64_t steps = epochs * ((std::min(images, kMnistImages) + batch - 1) / batch);
  const std::uint64_t traced = std::min(steps * kTracedStep, kMostTraced) * static_cast<std::uint64_t>(options.devices);
  return {{.option = "--result", .path = options.result, .bytes = kRun + epochs * kEpoch},
          {.option = "--fingerprints", .path = options.fingerprints, .bytes = steps * kHashLine},
          {.option = "--step-times", .path = options.step_times, .bytes = steps * kTimeLine},
          {.option = "--trace", .path = options.trace, .bytes = traced},
          {.option = "--progress", .path = options.progress}};
}

/// Warns of unlikely settings, in the first rank of each host for all of its ranks. Their cores are the launcher's,
/// which may have pinned this rank to a share of them.
void warn_of_unlikely(const TrainOptions& options) {
  if (!ddp::is_launched_rank()) return warn_of_unlikely(options, options.devices);
  const ddp::RankInfo place = ddp::rank_info();
  if (place.local_rank != 0 || Recovery::instance().replaces()) return;
  cpu_set_t cores;
  const bool known = ::sched_getaffinity(::getppid(), sizeof cores, &cores) == 0;
  const int devices = has_ranks(options.mode) ? place.local_world_size : options.devices;
  warn_of_unlikely(options, devices, known ? std::min(CPU_COUNT(&cores), quota_cores()) : usable_cores());
}

/// Whether the launcher ends all ranks as soon as one fails: else they would wait for a rank 0 that does not join.
bool ends_together(const ddp::RankInfo& place) {
  return std::getenv(ddp::kJobVariable) != nullptr && place.local_world_size == place.world_size;
}

/// Checks once, on rank 0, what would fail on every rank.
void require_files(const TrainOptions& options) {
  const bool launched = ddp::is_launched_rank();
  if (launched && ddp::rank_info().rank != 0) return;
  require_outputs(outputs_of(options));
  if (launched && !ends_together(ddp::rank_info())) return;
  require_data(options);
  require_resumable(options);
}

}  // namespace

int run(const TrainOptions& options, const std::string&) {
  if (!options.libtorch.empty()) return serve_script_bursts(options);
  started_ns();  // the first call, before anything that takes time
  if (!options.port_range.empty()) setenv(ddp::kPortRangeVariable, options.port_range.c_str(), 1);
  require_available(options.device);
  require_files(options);
  warn_of_unlikely(options);
  if (options.workers == "thread") {
    require<UsageError>(!ddp::is_launched_rank(),
                        "--workers thread, but a launcher has started this process as a rank");
    return train_in_threads(options);
  }
  if (has_ranks(options.mode) && (options.devices > 1 || ddp::is_launched_rank())) return train_in_ranks(options);
  require<UsageError>(!options.job.elastic, "--elastic needs --devices 2 or more");
  ddp::SoloGroup alone;
  note_closed_output();
  return train_as_rank(options, alone);
}

}  // namespace duet::cli
