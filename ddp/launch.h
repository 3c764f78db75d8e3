// Starting the ranks of a job as processes of this machine, and ending them together.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/store.h"

namespace duet::ddp {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command{};  // program, looked up in PATH, and its arguments
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: a free one, kept for rank 0
  /// Set for every rank besides torchrun's variables.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// Between SIGTERM and SIGKILL when the job is ended.
  Milliseconds grace{1000};
  /// Puts "[rank 1] " before each line that a rank prints.
  bool label_lines = false;
  /// Gets each line without its end, instead of this program's stdout and stderr.
  std::function<void(int rank, bool is_stderr, std::string_view line)> on_line{};
};

/// How a job ended.
struct LaunchResult {
  int exit_code = 0;     // 0, 1 for a failed rank, 130 or 143 after SIGINT or SIGTERM
  int failed_rank = -1;  // whose failure ended the job
  int signal = 0;        // that killed it
  /// "rank 1 was killed by signal 9 (SIGKILL)", "rank 0 ended with exit code 1: ..."; empty for success.
  std::string message{};
};

/// Runs `command` once per rank with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...)
/// and OMP_NUM_THREADS=1 unless set, and returns when all ranks have ended. The first rank to fail ends the job: the
/// others get SIGTERM, and SIGKILL after `grace`. SIGINT and SIGTERM to this process are passed on to the ranks and end
/// the job likewise. The ranks die with this process, however it ends. Each is a process group of its own, reads
/// /dev/null and has its output passed on in whole lines.
/// Call it from a thread that lives on until it returns, once at a time. Throws UsageError for a bad option or a
/// program that cannot be started, CommError when the port is taken.
LaunchResult launch(const LaunchOptions& options);

/// Runs `body(rank)` in `ranks` processes and returns the exit code for main(): 0, 1, 130 or 143; failures are told on
/// stderr in one line. The processes are this program, started again with the same arguments: it runs up to this very
/// call, calls `body`, and the call returns there too. So main() ends with `return spawn(...)`, or asks
/// is_launched_rank() before it goes on. Within a launcher's job this process is one rank already and calls `body`
/// itself.
int spawn(const std::function<void(int rank)>& body, int ranks, LaunchOptions options = {});

/// True in a process that a launcher (this one, torchrun, ...) started as a rank.
bool is_launched_rank();

/// What main() does with an exception: one line on stderr, with the rank where there is one, and to the launcher, which
/// can then tell a cause from its consequences. Returns the exit code: 2 for UsageError, else 1.
int report_failure(const std::exception& error) noexcept;

}  // namespace duet::ddp
