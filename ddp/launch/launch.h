// Starts the ranks of a job as processes of this machine, and ends them together.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/launch/error_file.h"
#include "ddp/launch/rank_resolver.h"
#include "ddp/store/store.h"

namespace duet::ddp {

/// Output streams of ranks, as bits: 1 is stdout, 2 is stderr.
struct RankStreams {
  int every = 0;
  std::map<int, int> ranks{};  // where other than `every`
  int of(int rank) const;
  bool any() const;
};
/// Reads torchrun's notation: "3", or "0:1,1:2" with the ranks that are not named left out. Throws UsageError.
RankStreams parse_streams(const std::string& text);

struct LaunchOptions {
  int ranks = 1;                       // on this host
  std::vector<std::string> command{};  // program, looked up in PATH, and its arguments
  int nodes = 1, node_rank = 0;        // hosts with a launcher and `ranks` ranks each, and which of them this is
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: a free one, kept for rank 0; with several nodes it must be given
  /// Names the job to its ranks, in TORCHELASTIC_RUN_ID; the same on all hosts. Empty: a name of duet's own.
  std::string run_id{};
  /// Set for every rank besides torchrun's variables.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// Network interface of the data that ranks exchange; empty: see ddp/store/network.h.
  std::string interface {};
  /// "FIRST-LAST": ports for the ranks, and for `master_port` 0. Empty: as DUET_PORT_RANGE says, see
  /// ddp/store/network.h.
  std::string port_range{};
  /// How often a failed job is restarted. TORCHELASTIC_RESTART_COUNT numbers the attempts.
  int max_restarts = 0;
  /// How long ranks wait for each other before they name those that have not come, unless they set it themselves.
  Milliseconds join_timeout = kStoreTimeout;
  /// How long an operation of a process group may take, unless the ranks set it themselves: see ddp/init.h.
  Milliseconds timeout{300'000};
  /// How long a rank waits for another in one collective before a remark names both; never less than ten times the
  /// median of its last 15 steps, nor than twice the longest wait that has ended well.
  Milliseconds remark_after{2000};
  /// A rank that is lost is replaced, and the step in flight done again: see docs/howto/elastic.md.
  bool elastic = false;
  /// While so many ranks or more are left, fewer than all, these go on after a loss, and take the lost one in between
  /// two steps once its new process is there. 0: they wait for it.
  int min_ranks = 0;
  /// Processes that run the program up to its first batch, and wait there to take the part of a lost rank.
  int spares = 0;
  /// So many losses, without 100 steps between any two, end an elastic job with the next.
  int max_failures = 3;
  /// How long after a loss all ranks may take to come together again, before an elastic job ends: the program's time to
  /// its first batch, and the longest step.
  Milliseconds replace_timeout{600'000};
  /// Between SIGTERM and SIGKILL when the job is ended.
  Milliseconds grace{1000};
  /// Replaces `grace` after a signal to the launcher, if longer: time for ranks to end a step and write a checkpoint.
  Milliseconds interrupt_grace{0};
  /// How long a rank may be stopped (SIGSTOP) before that ends the job, or is a loss of an elastic one. A remark names
  /// it after a second.
  Milliseconds stop_limit{30'000};
  /// Puts "[rank 1] " before each line that a rank prints.
  bool label_lines = false;
  /// Into files of log_folder: instead of passing lines on, or besides, with labels.
  RankStreams redirects{}, tee{};
  /// Gets a folder for the job with attempt_A/rank_R/{stdout.log,stderr.log,error.json}; empty: no files.
  std::string log_folder{};
  /// Gives every rank cores of its own: see ddp/launch/rank_environment.h.
  bool pin = false;
  /// Also remarks on what goes as it should: cores, folders; and the ranks as InitOptions::verbose says.
  bool verbose = false;
  // The next two are called in two threads of their own, each one at a time: one that blocks holds up neither
  // supervision nor the other.
  /// Gets each line without its end, instead of this program's stdout and stderr.
  std::function<void(int rank, bool is_stderr, std::string_view line)> on_line{};
  /// Gets the launcher's own remarks (restarts, stopped ranks; spawn()'s also how a job failed), instead of stderr.
  std::function<void(const std::string& remark)> on_remark{};
};

/// How a job ended.
struct LaunchResult {
  int exit_code = 0;     // 0, 1 for a failed rank, 128 + the signal after SIGHUP, SIGINT, SIGPIPE, ...
  int failed_rank = -1;  // whose failure ended the job
  int signal = 0;        // that killed it
  /// "rank 1 was killed by signal 9 (SIGKILL)", "rank 0 ended with exit code 1: ..."; empty for success.
  std::string message{};
  /// In which step and collective the ranks of this host were, and which waited for which: lines that begin with
  /// blanks; empty for success, and for programs that do not use this library.
  std::string report{};
  int restarts = 0;  // that it took
};

/// Runs `command` once per rank with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...)
/// and OMP_NUM_THREADS=1 unless set, and returns when all ranks have ended. The first rank to fail ends the job: the
/// others get SIGTERM, and SIGKILL after `grace`. SIGINT, SIGTERM, SIGHUP, SIGQUIT and a SIGPIPE that is not ignored
/// are passed on to the ranks, and end the job likewise. SIGUSR1, SIGUSR2, SIGXCPU and SIGCONT, unless this program
/// handles or ignores them, are passed on too; the job continues until a rank ends by one of them. What the ranks have
/// started ends with this process, however it ends: they die with it, and a guard ends what they have left behind
/// (docs/howto/launch.md says what it does not find). Each is a process group of its own, reads /dev/null and has its
/// output passed on in whole lines. Where nothing reads that output, the ranks' writes block once 1 MiB is queued; what
/// is queued at the end of a failed job is dropped when its reader takes nothing for 10 s. The cause of a failure is
/// the rank that failed first by itself: killed, or with an error of its own in the file that TORCHELASTIC_ERROR_FILE
/// names to it, before those that only lost a peer. Call it from a thread that lives on until it returns, once at a
/// time. Throws UsageError for a bad option or a program that cannot be started, CommError when the port is taken,
/// DataError for a folder that cannot be written.
LaunchResult launch(const LaunchOptions& options);

/// Runs `body(rank)` in `ranks` processes and returns the exit code for main(): 0, 1, or 128 and the number of the
/// signal; failures are printed on stderr in one line. The processes are this program, started again with the same
/// arguments: it runs up to this very call, calls `body`, and the call returns there too. So main() ends with `return
/// spawn(...)`, or asks is_launched_rank() before it goes on. Within a launcher's job this process is one rank already
/// and calls `body` itself; options that only a launcher can follow, elastic among them, are a UsageError there.
int spawn(const std::function<void(int rank)>& body, int ranks, LaunchOptions options = {});

}  // namespace duet::ddp
