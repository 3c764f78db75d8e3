// Command-line options of the program `duet`: one struct per command, and the parser.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ddp/group/compare_ranks.h"
#include "ddp/launch/launch.h"
#include "lib/backend/backend.h"
#include "lib/device.h"
#include "lib/tensor.h"
#include "train/system/machine.h"

namespace duet::cli {

/// copies: ranks that each train alone on their share of every batch, for timing only.
enum class Mode { single, averaging, dp, ddp, copies };
const char* name(Mode mode);
/// Whether its devices are driven by ranks.
bool has_ranks(Mode mode);

/// Whose draws, order of images and scaling of gradients a training has.
enum class Compat { duet, torch };
const char* name(Compat compat);

/// Options of every run of a training.
struct Training {
  std::string model = "simple_cnn";  // a name of lib/nn/networks.h, or a file: see is_network_file()
  std::string input;                 // "3x224x224", of a sample for a TorchScript file
  std::int64_t image_size = 0;       // rows and columns of its images; 0: as the network has it
  std::int64_t classes = 0;          // outputs; 0: as many as the data has
  std::string stem = "imagenet";     // first layers of a ResNet, or "cifar"
  bool sync_bn = false;              // SyncBatchNorm in place of batch norm
  DeviceKind device = DeviceKind::cpu;
  int threads_per_device = 1;
  Precision precision = Precision::fp32;
  bool deterministic = false;
  std::string backend = "auto";     // backend of the ranks' process group: see ddp/init.h
  std::string workers = "process";  // what a rank is, or "thread"
  std::string graph = "auto";       // steps as CUDA graphs: where they can be, "on" or "off"
  std::int64_t graph_steps = 0;     // steps that one graph replays; 0: chosen by duet
  std::string data;        // folder; "synthetic": drawn digits or images; empty: MNIST where it is found, else drawn
  int loader_workers = 0;  // threads that make batches ahead; 0: the training thread makes them
  bool skip_broken = false;
  bool download = false;
  int epochs = 10;
  std::int64_t batch = 128;  // rows of the global batch, whatever the number of devices
  int blocks = 0;            // of a global batch: see lib/blocks.h; 0: by the numbers of devices
  double lr = 0.01;
  std::string optimizer = "sgd";       // "adam" or "adamw"
  double momentum = 0.5;               // momentum of SGD
  std::optional<double> weight_decay;  // none: the optimizer's own
  std::uint64_t seed = 1234;
  std::int64_t train_images = 0;  // 0: all
  std::int64_t test_images = 0;   // 0: all
  Compat compat = Compat::duet;
  bool check_finite = false;
  bool quiet = false;
};

struct TrainOptions : Training {
  Mode mode = Mode::single;
  bool verbose = false;
  int devices = 1;
  double timeout_s = 0;                 // timeout of one collective; 0: the launcher's timeout
  std::string port_range;               // ports that ranks may use; empty: as DUET_PORT_RANGE says
  std::string replicas = "persistent";  // dp: or "per_forward"
  std::string loss = "gathered";        // dp: or "in_replica"
  std::string checkpoint;               // folder
  std::int64_t checkpoint_every = 0;    // steps from one checkpoint to the next; 0: at the end of every epoch only
  std::string resume;                   // file or folder
  std::string result;                   // file for the run's record
  std::string fingerprints;             // file for one hash of all parameters per step
  std::string step_times;               // file for the time of every step but the first, in microseconds
  std::int64_t compare_every = 0;       // ddp: steps from one comparison of all ranks' parameters to the next
  std::string trace;                    // file for the trace of all ranks
  std::string progress;                 // file that always holds one line: where the training stands
  std::string bursts;        // begin of the names of FIFOs: after training, parked for the bursts that they ask for
  ddp::LaunchOptions job;    // its ranks: elastic or not
  bool untrained = false;    // with bursts: only a few steps before
  std::string weights;       // untrained: file or folder of a checkpoint whose parameters it begins with
  bool collectives = false;  // with bursts: of all-reduces alone
  bool timed_parts = false;  // with bursts: waits for devices at the end of each part of a step
  // With bursts: the model, TorchScript that tools/torch_peer.py exported, trains by LibTorch, and the ranks bring
  // gradients together by "none", "wrapper" or "averaged": see ddp::ScriptSync.
  std::string libtorch;
};

struct CompareOptions : Training {
  std::vector<Mode> modes = {Mode::single, Mode::averaging, Mode::dp, Mode::ddp};
  std::vector<int> devices = {1};                // without --devices, parse() adds those that have cores of their own
  std::vector<std::string> backends = {"auto"};  // backends of ddp, each a row; `backend` is the first
  std::string scaling = "strong";                // "weak": a batch of each device, else of all
  double time_budget_s = 45;                     // seconds for timing in rounds; 0: no rounds
  std::string vs_torch;                          // a Python with PyTorch, whose rows are compared, too
  std::string config;                            // file of --config
  std::string out = "out";
  std::string share;  // folder to give away; empty: none
  std::string json;   // see train/system/files.h
  bool wide = false, tutorial = false;
};

struct LaunchOptions {
  ddp::LaunchOptions job;  // but for its address, files and pinning, which those below say
  bool node_rank_given = false;
  int least_nodes = 1;                  // with which an elastic job continues
  std::string rdzv_backend = "static";  // or "c10d"
  std::string rdzv_endpoint;            // HOST or HOST:PORT
  std::string master_addr;              // empty: 127.0.0.1
  int master_port = 0;                  // 0: a free one
  bool standalone = false;
  std::string redirects, tee;
  bool no_pin = false;
};

/// Where rank 0 serves the store.
struct Endpoint {
  std::string address = "127.0.0.1";
  int port = 0;  // 0: a free one
};
/// Address and port that --rdzv-endpoint, or --master-addr and --master-port, name. Throws UsageError.
Endpoint endpoint_of(const LaunchOptions& options);

inline constexpr const char* kNeedsMpirun =
    "--backend mpi is for ranks that mpirun or srun has started: mpirun -n N duet ..., srun --mpi=pmix -n N duet ...";

/// duet bench of one collective.
struct CollectiveOptions {
  std::string collective{};  // "all_reduce", ...
  int devices = 2;
  DeviceKind device = DeviceKind::cpu;  // where the buffers lie
  std::string workers = "process";      // what a rank is, or "thread"
  DType dtype = DType::f32;
  std::vector<std::string> backends = {"auto"}, algorithms = {"library"};
  std::int64_t min_bytes = 8, max_bytes = std::int64_t{128} << 20;
  int factor = 2, iterations = 20, warm_up = 5, check = 1;
  std::string json{};  // see train/system/files.h
};

/// duet predict.
struct PredictOptions {
  std::string results;  // file
  std::vector<int> devices = {1, 2, 4, 8}, hosts = {1};
  std::string link;  // empty: as measured, unless `gbit` is set
  std::optional<double> latency_us, gbit;
  std::string algorithm;    // algorithm of the link's all-reduces; empty: the link's own
  std::vector<Mode> modes;  // empty: all that the model has terms for
  std::int64_t batch = 0;   // 0: as measured
  std::string scaling = "strong";
  std::string json;  // see train/system/files.h
  std::string out;   // file
  bool links = false;
};

/// duet show.
struct ShowOptions {
  std::string a, b;  // folders with a results.json, or such files; an empty `b`: `a` alone
  bool wide = false, tutorial = false;
  std::string svg;     // file for the picture of speed-ups
  bool parts = false;  // the parts of a step; `a` may also be a record of duet train --result
  std::string json;    // see train/system/files.h
};

struct InfoOptions {
  std::string json;  // see train/system/files.h
};

/// The program printed what was asked (--help, --version) and has nothing more to do.
struct Printed {
  std::string text;
};

using Command = std::variant<Printed, TrainOptions, CompareOptions, ShowOptions, PredictOptions, LaunchOptions,
                             CollectiveOptions, InfoOptions>;

/// Reads and checks a command line (without the program's name). Throws UsageError with one line.
Command parse(const std::vector<std::string>& arguments);

/// The options of duet train that give `training` where its defaults do not, all but --backend and --batch.
std::vector<std::string> arguments_of(const Training& training);
/// What must be equal on all ranks of a training, but for --batch.
std::vector<ddp::Setting> shared_settings(const Training& training);

/// Whether a --model is a file with a network (lib/nn/network_module.h): it ends in .so or .pt, or has a slash.
bool is_network_file(const std::string& model);
/// Whether that file is TorchScript: FILE.pt.
bool is_script_file(const std::string& model);
/// (channels, rows, columns) of "3x224x224"; nothing for other texts.
std::optional<Shape> input_shape(const std::string& text);
/// Shape of one sample of a TorchScript network: what --input says, or its default.
Shape script_input(const Training& options);

/// Why the steps of such a run are not replayed as CUDA graphs; empty where they are. `carrier`: the
/// backend of the ranks' process group, once they have one. `devices`: those of this process, once they are chosen.
std::string why_no_graph(const TrainOptions& options, std::string carrier = "", std::span<const Device> devices = {});

/// Names that --link takes: those of named_links() (compare/cost_model/simulate_step.h).
std::vector<std::string> link_names();

/// Names of the options that help puts in a group of their own, or lists as most used.
std::vector<std::string> arranged_options();

/// What parse() checks after reading, for options made elsewhere. Throws UsageError.
void check(const TrainOptions& options);
void check(const CompareOptions& options);
void check(const CollectiveOptions& options);
void check(const LaunchOptions& options);
void check(const PredictOptions& options);
void check(const ShowOptions& options);

// The commands; each returns its exit code or throws. `command_line` is for reports.
int run(const Printed& printed, const std::string& command_line);
int run(const TrainOptions& options, const std::string& command_line);
int run(const CompareOptions& options, const std::string& command_line);
int run(const ShowOptions& options, const std::string& command_line);
int run(const PredictOptions& options, const std::string& command_line);
int run(const LaunchOptions& options, const std::string& command_line);
int run(const CollectiveOptions& options, const std::string& command_line);
int run(const InfoOptions& options, const std::string& command_line);

}  // namespace duet::cli
