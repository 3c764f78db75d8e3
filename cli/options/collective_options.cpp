#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command_line.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet::cli {
namespace {

constexpr std::array kDTypes = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8};

void add_options(CLI::App& app, CollectiveOptions& options, bool all_reduce) {
  std::vector<std::string> algorithms = {"library"};
  if (all_reduce) algorithms.insert(algorithms.end(), {"naive_ring", "chunked_ring", "recursive_doubling"});
  app.add_option("--devices", options.devices, "number of ranks")->check(in_range(1, kMaxDevices));
  add_choice(app, "--device", options.device, std::array{DeviceKind::cpu, DeviceKind::cuda},
             "where the buffers lie: cpu, the host's memory, or cuda, a GPU for every rank (or several to a GPU)");
  add_choice(app, "--dtype", options.dtype, kDTypes, "type of the elements: f32, f16, bf16, f64, i32, i64 or u8");
  app.add_option("--workers", options.workers, "what a rank is: a process, or a thread (with all ranks in one process)")
      ->check(one_of({"process", "thread"}));
  const auto into = [](std::vector<std::string>& list) {
    return [&list](const std::vector<std::string>& entries) { list = entries; };
  };
  add_list(app, "--backend", one_of(kBackends), into(options.backends), "auto",
           "what carries them: shm, tcp, gloo, nccl (--device cuda), memory (--workers thread), or auto for the best "
           "one; several, separated by commas, are compared");
  add_list(app, "--algorithm", one_of(algorithms), into(options.algorithms), "library",
           "library: the backend's own; all_reduce also by messages: naive_ring (the tutorial's), chunked_ring, "
           "recursive_doubling; several are compared");
  const auto size = [&](const char* name, std::int64_t& bytes, const char* text) {
    app.add_option(name, bytes, text)->transform(CLI::AsSizeValue(false));
  };
  size("-b,--min-bytes", options.min_bytes,
       "first size: bytes of a rank's longer buffer; K, M and G are 1024's powers");
  size("-e,--max-bytes", options.max_bytes, "last size");
  app.add_option("-f,--factor", options.factor, "from one size to the next")->check(in_range(2));
  app.add_option("-n,--iterations", options.iterations, "timed calls of every size")->check(in_range(1));
  app.add_option("-w,--warm-up", options.warm_up, "calls before them")->check(in_range(0));
  app.add_option("-c,--check", options.check, "1: count wrong elements of one more call; 0: do not")
      ->check(in_range(0, 1));
  add_json(app, options.json, "all rows");
  app.add_option("--html", options.html, "file for a page with the pictures of time and bus bandwidth");
}

}  // namespace

void add_collectives(CLI::App& bench, CollectiveOptions& options) {
  for (const char* name : kCollectives) {
    CLI::App* app = bench.add_subcommand(name, concat("time ", name, " among ranks, in the columns of nccl-tests"));
    app->callback([&options, name] { options.collective = name; });
    add_options(*app, options, name == std::string("all_reduce"));
  }
}

void check(const CollectiveOptions& options) {
  for (const std::string& backend : options.backends) {
    require<UsageError>(backend != "nccl" || options.device == DeviceKind::cuda, "--backend nccl is for --device cuda");
    require<UsageError>(backend != "memory" || options.workers == "thread", "--backend memory is for --workers thread");
  }
  const bool floats_of_host = options.dtype == DType::f32 && options.device == DeviceKind::cpu;
  require<UsageError>(floats_of_host || options.algorithms == std::vector<std::string>{"library"},
                      "--algorithm: other than library is for f32 in the host's memory, not for ", options.dtype,
                      " with --device ", duet::name(options.device));
  const auto bytes_of_one = static_cast<std::int64_t>(size_of(options.dtype));
  require<UsageError>(options.min_bytes >= bytes_of_one, "--min-bytes is ", options.min_bytes, ", expected ",
                      bytes_of_one, " or more");
  require<UsageError>(options.max_bytes >= options.min_bytes, "--max-bytes is ", options.max_bytes,
                      ", smaller than --min-bytes, ", options.min_bytes);
}

}  // namespace duet::cli
