#include "cli/options/collective_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command_line.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet::cli {
namespace {

constexpr int kMaxRanks = 1024;
constexpr std::array kDTypes = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8};

/// An option that names one of `values`.
template <class T, std::size_t N>
void add_named(CLI::App& app, const char* option, T& chosen, const std::array<T, N>& values, const char* about) {
  const auto take = [option, &chosen, values](const std::string& text) {
    std::string list;
    for (const T value : values) list += (list.empty() ? "" : ", ") + std::string(duet::name(value));
    const auto found = std::find_if(values.begin(), values.end(), [&](T value) { return text == duet::name(value); });
    require<UsageError>(found != values.end(), option, ": unknown '", text, "', expected ", list);
    chosen = *found;
  };
  app.add_option_function<std::string>(option, take, about)->default_str(duet::name(chosen));
}

void add_options(CLI::App& app, CollectiveOptions& options) {
  app.add_option("--devices", options.devices, "number of ranks")->capture_default_str();
  add_named(app, "--device", options.device, std::array{DeviceKind::cpu, DeviceKind::cuda},
            "where the buffers lie: cpu, the host's memory, or cuda, a GPU for every rank (or several to a GPU)");
  add_named(app, "--dtype", options.dtype, kDTypes, "type of the elements: f32, f16, bf16, f64, i32, i64 or u8");
  app.add_option("--workers", options.workers, "what a rank is: a process, or a thread (with all ranks in one process)")
      ->capture_default_str();
  app.add_option(
         "--backend", options.backends,
         "what carries them: shm, tcp, gloo, nccl (--device cuda), memory (--workers thread), or auto for the best "
         "one; several, separated by commas, are compared")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--algorithm", options.algorithms,
                 "library: the backend's own; all_reduce also by messages: naive_ring (the tutorial's), chunked_ring, "
                 "recursive_doubling; several are compared")
      ->delimiter(',')
      ->capture_default_str();
  const auto size = [&](const char* name, std::int64_t& bytes, const char* text) {
    app.add_option(name, bytes, text)->transform(CLI::AsSizeValue(false))->capture_default_str();
  };
  size("-b,--min-bytes", options.min_bytes,
       "first size: bytes of a rank's longer buffer; K, M and G are 1024's powers");
  size("-e,--max-bytes", options.max_bytes, "last size");
  app.add_option("-f,--factor", options.factor, "from one size to the next")->capture_default_str();
  app.add_option("-n,--iterations", options.iterations, "timed calls of every size")->capture_default_str();
  app.add_option("-w,--warm-up", options.warm_up, "calls before them")->capture_default_str();
  app.add_option("-c,--check", options.check, "1: count wrong elements of one more call; 0: do not")
      ->capture_default_str();
  add_json(app, options.json, "all rows");
  app.add_option("--html", options.html, "file for a page with the pictures of time and bus bandwidth");
}

void check_known(const char* option, const std::vector<std::string>& given, const std::vector<std::string>& known) {
  std::string list;
  for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
  require<UsageError>(!given.empty(), option, ": nothing given, expected ", list);
  for (const std::string& one : given)
    require<UsageError>(std::find(known.begin(), known.end(), one) != known.end(), option, ": unknown '", one,
                        "', expected ", list);
}

}  // namespace

void add_collectives(CLI::App& bench, CollectiveOptions& options) {
  for (const char* name : kCollectives) {
    CLI::App* app = bench.add_subcommand(name, concat("time ", name, " among ranks, in the columns of nccl-tests"));
    app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app->callback([&options, name] { options.collective = name; });
    add_options(*app, options);
  }
}

void check(const CollectiveOptions& options) {
  require<UsageError>(options.devices >= 1 && options.devices <= kMaxRanks, "--devices is ", options.devices,
                      ", expected 1 to ", kMaxRanks);
  check_known("--backend", options.backends, {"auto", "shm", "tcp", "gloo", "nccl", "memory"});
  check_known("--workers", {options.workers}, {"process", "thread"});
  for (const std::string& backend : options.backends) {
    require<UsageError>(backend != "nccl" || options.device == DeviceKind::cuda, "--backend nccl is for --device cuda");
    require<UsageError>(backend != "memory" || options.workers == "thread", "--backend memory is for --workers thread");
  }
  if (options.collective == "all_reduce")
    check_known("--algorithm", options.algorithms, {"library", "naive_ring", "chunked_ring", "recursive_doubling"});
  else
    check_known("--algorithm", options.algorithms, {"library"});
  const bool floats_of_host = options.dtype == DType::f32 && options.device == DeviceKind::cpu;
  require<UsageError>(floats_of_host || options.algorithms == std::vector<std::string>{"library"},
                      "--algorithm: other than library is for f32 in the host's memory, not for ", options.dtype,
                      " with --device ", duet::name(options.device));
  const auto bytes_of_one = static_cast<std::int64_t>(size_of(options.dtype));
  require<UsageError>(options.min_bytes >= bytes_of_one, "--min-bytes is ", options.min_bytes, ", expected ",
                      bytes_of_one, " or more");
  require<UsageError>(options.max_bytes >= options.min_bytes, "--max-bytes is ", options.max_bytes,
                      ", smaller than --min-bytes, ", options.min_bytes);
  require<UsageError>(options.factor >= 2, "--factor is ", options.factor, ", expected 2 or more");
  require<UsageError>(options.iterations >= 1, "--iterations is ", options.iterations, ", expected 1 or more");
  require<UsageError>(options.warm_up >= 0, "--warm-up is ", options.warm_up, ", expected 0 or more");
  require<UsageError>(options.check == 0 || options.check == 1, "--check is ", options.check, ", expected 0 or 1");
}

}  // namespace duet::cli
