#include "cli/bench/torch_peer.h"

#include <nlohmann/json.hpp>

#include "cli/system/files.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"

namespace duet::cli {
namespace {

constexpr const char* kScript =
#include "cli/bench/torch_peer.inc"
    ;

}  // namespace

TorchRun run_torch(const std::string& python, const TorchWay& way, std::int64_t batch, int steps,
                   const std::string& folder) {
  const std::string script = folder + "/torch_peer.py", out = folder + "/torch";
  write_atomically(script, std::string(kScript));
  std::vector<std::string> arguments = {script, "--device=cpu", "--out=" + out};
  const auto add = [&](const char* option, auto number) { arguments.push_back(concat("--", option, "=", number)); };
  add("ranks", way.ranks);
  add("threads", way.threads);
  add("batch", batch);
  add("steps", steps);
  if (way.tuned) arguments.push_back("--tuned");
  TorchRun run{run_program(python, arguments, folder + "/log")};
  if (!run.ok) return run;
  try {
    const auto json = nlohmann::json::parse(read_file(out));
    json.at("torch").get_to(run.version);
    json.at("startup_s").get_to(run.startup_s);
    json.at("steps_us").get_to(run.steps_us);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(concat("the PyTorch peer wrote something else than its times: ", error.what()));
  }
  run.ok = !run.steps_us.empty();
  return run;
}

void require_torch(const std::string& python, const std::string& folder) {
  const ChildEnd end = run_program(python, {"-c", "import torch"}, folder + "/log");
  require<UsageError>(end.ok || end.signal != 0, "--vs-torch ", python, ": ", end.reason);
}

std::string name(const TorchWay& way) {
  return concat("torch", way.ranks > 1 ? " ddp" : "", way.tuned ? ", tuned" : "");
}

}  // namespace duet::cli
