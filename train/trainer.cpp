#include "train/trainer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "ddp/group/compare_ranks.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "ddp/store/store.h"
#include "lib/autograd/check_finite.h"
#include "lib/backend/backend.h"
#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/fault_point.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/elastic.h"
#include "lib/error.h"
#include "lib/io/checkpoint.h"
#include "lib/monotonic.h"
#include "lib/position.h"
#include "train/checkpointer.h"
#include "train/measure/statistics.h"
#include "train/system/child_process.h"
#include "train/system/display.h"
#include "train/system/files.h"
#include "train/system/machine.h"
#include "train/system/signals.h"
#include "train/training_loop.h"

namespace duet::cli {
namespace {

// For the time of the start, and of a step; of networks for colour images fewer, as their steps take long.
constexpr std::int64_t kUntrainedSteps = 8, kFewUntrainedSteps = 2;

/// Whether a batch norm has statistics of each device alone, so that results depend on their number.
bool has_plain_batch_norm(const nn::Module& network) {
  return network.str().find(": BatchNorm2d(") != std::string::npos;
}

/// Whether ranks share this process.
bool has_threads(const TrainOptions& options) { return options.workers == "thread"; }

/// Equal for processes whose monotonic clocks are the same.
std::string clock_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

/// Every rank's events as text, on all ranks; of threads that are ranks on rank 0, which takes them all.
std::vector<std::string> traced_texts(std::uint64_t since, const TrainOptions& options, ddp::ProcessGroup& group) {
  std::vector<TraceEvent> all;
  if (!has_threads(options) || group.rank() == 0) Trace::read(since, all);
  if (!has_threads(options)) return ddp::all_gather_texts(group, trace_text(all));
  std::vector<std::vector<TraceEvent>> ranks(static_cast<std::size_t>(group.size()));
  for (const TraceEvent& event : all)
    if (const auto rank = static_cast<std::size_t>(event.device.index); rank < ranks.size())
      ranks[rank].push_back(event);
  return of_each(ranks, trace_text);
}

Progress progress_of(const StepClock& clock, int epoch, int epochs) {
  Progress progress{.epoch = epoch + 1,
                    .epochs = epochs,
                    .step = clock.epoch_step(),
                    .steps = clock.epoch_steps(),
                    .loss = clock.epoch_loss(),
                    .samples_per_s = clock.samples_per_s(),
                    .left_s = 0};
  const double done = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
  if (done > 0) progress.left_s = clock.epoch_seconds() / done * (1 - done + epochs - progress.epoch);
  return progress;
}

/// Reports the training of this process at most ten times a second: into the file of --progress, as lines on stderr
/// where the launcher of this rank reads them (kRelayed), else on the terminal's progress line, or as a line each 30 s
/// if stderr is no terminal. Not thread safe.
class ProgressReporter {
 public:
  /// Only rank 0, the leader, reports.
  ProgressReporter(const TrainOptions& options, bool leader)
      : title_(progress_title(options)),
        relayed_(leader && options.progress.empty() && std::getenv(kRelayed) != nullptr),
        line_(stderr, leader && options.progress.empty() ? terminal_style(stderr, options.quiet) : TerminalStyle{},
              leader && options.progress.empty() && !options.quiet && !relayed_ ? kPlainProgress : Clock::duration()) {
    if (leader && !options.progress.empty())
      file_ = Descriptor(::open(options.progress.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  }

  void report(const StepClock& clock, int epoch, int epochs) {
    const auto now = Clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const Progress progress = progress_of(clock, epoch, epochs);
    if (file_.open()) {
      std::string text = to_line(progress);
      text.insert(text.size() - 1, std::string(text.size() < 100 ? 100 - text.size() : 0, ' '));
      // Progress is best effort: a full disk must not end the training.
      [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
    }
    if (relayed_) ddp::write_all(STDERR_FILENO, to_line(progress));
    line_.show(title_, progress);
  }

  /// Removes the progress line, so that other output can follow.
  void clear() { line_.clear(); }

 private:
  std::string title_;
  bool relayed_ = false;
  ProgressLine line_;
  Descriptor file_;
  Clock::time_point last_{};
};

/// What a rank of an elastic job gets from another one when it joins: see stream().
class Trainer : private Recoverable {
 public:
  Trainer(const TrainOptions& options, const Images& images, Setup& setup, ddp::ProcessGroup& group)
      : options_(options),
        images_(images),
        setup_(setup),
        group_(group),
        checkpointer_(options, setup, images, group),
        clock_(started_ns(), lane_of(setup, group)),
        progress_(options, leader()),
        end_([&group](std::span<double> numbers) { sum_over_ranks(group, numbers); }) {
    join("the trainer");
  }
  ~Trainer() override { leave(); }

  Outcome run() {
    const std::int64_t begin_ns = monotonic_ns();
    const CheckFinite check_finite(options_.check_finite);
    position_ = checkpointer_.resume();
    warn_of_rows();
    if (Recovery::instance().on())
      checkpointer_.series() = ddp::all_gather_texts(group_, checkpointer_.series()).front();
    const std::int64_t steps = setup_.loader->steps();
    if (options_.untrained) {
      if (!options_.weights.empty()) take_weights();
      clock_.begin_epoch(steps, 0);
      train_epoch(setup_, clock_, [&] {
        require_precision();
        return clock_.epoch_step() < untrained_steps();
      });
      return finish();
    }
    bool joins = join_training();
    while (position_.epoch < options_.epochs) {
      const auto stops = [&](std::int64_t done) { return checkpointer_.due({position_.epoch, done}); };
      if (std::exchange(joins, false)) {
        clock_.continue_epoch(steps, stops);
        if (!end_step()) return interrupted(at_step());
      } else {
        clock_.begin_epoch(steps, position_.step, stops);
        reported_ = position_.step;
      }
      count_moved_bytes(-1);
      train_epoch(setup_, clock_, [&] { return after_step(); });
      count_moved_bytes(1);
      steps_ += static_cast<double>(clock_.epoch_step() - position_.step);
      if (clock_.epoch_step() < steps) return interrupted(at_step());
      const std::int64_t epoch = position_.epoch;
      elastic::unit([&] { end_epoch(epoch); });
      say(epoch);
      if (end_.signal() != 0) return interrupted(position_);
    }
    progress_.clear();
    run_.execution_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    if (options_.mode == Mode::averaging && leader())
      std::puts(execution_line(group_.size(), options_.device == DeviceKind::cuda, run_.execution_s).c_str());
    return finish();
  }

 private:
  bool leader() const { return group_.rank() == 0; }
  data::Position at_step() const { return {position_.epoch, clock_.epoch_step()}; }

  /// The state at the begin of the next step, or of the unit that runs.
  void stream(StateStream& state) override {
    state.value(position_);
    clock_.stream(state);
    end_.stream(state);
    checkpointer_.stream(state);
    for (std::vector<double>* const numbers : {&run_.train_loss, &run_.test_accuracy, &run_.epoch_s, &rates_})
      state.sequence(*numbers);
    state.sequence(fingerprints_);
    for (double* const number : {&epoch_loss_, &steps_}) state.value(*number);
    for (bool* const flag : {&saves_, &exchanges_, &warned_, &is_timed_, &is_finished_}) state.value(*flag);
    state.value(reported_);
  }

  /// Whether this process replaces a lost one, and goes on where the others are.
  bool join_training() {
    if (!Recovery::instance().join_training()) return false;
    setup_.loader->set_position(at_step());
    return position_.epoch < options_.epochs;
  }

  std::int64_t untrained_steps() const {
    return images_.train->sample_shape()[0] == 1 ? kUntrainedSteps : kFewUntrainedSteps;
  }

  /// Warns where there are more devices than blocks.
  void warn_of_rows() const {
    if (!leader() || options_.device != DeviceKind::cpu || setup_.batches == nullptr || options_.mode == Mode::copies ||
        options_.devices <= setup_.batches->blocks())
      return;
    const bool more = options_.devices <= kMostBlocks;
    std::fprintf(stderr,
                 "duet: %d devices share out the rows of %d blocks: results equal one device's to rounding only%s\n",
                 options_.devices, setup_.batches->blocks(), more ? "; --blocks 32 gives each its own" : "");
  }

  void take_weights() {
    const NamedTensors model = setup_.model().state_dict();
    const std::string arch = chosen_network(options_).arch;
    duet::restore(load_checkpoint(options_.weights, arch, model), arch, model);
  }

  /// A wrapper that computes the loss in its replicas does not give outputs.
  nn::Module& evaluated() { return setup_.loss_in_replica ? setup_.model() : setup_.net(); }

  /// A precision in which nothing computes would be reported all the same.
  void require_precision() const {
    require<UsageError>(!leader() || backend(options_.device).has_used_precision(), "--precision ",
                        duet::name(options_.precision), " changes nothing in ", options_.model,
                        ": CPU devices round what convolutions multiply whose outputs are a multiple of 16 channels, ",
                        "in one group and without a pool behind them; expected fp32, or another --model");
  }

  bool after_step() {
    Recovery& recovery = Recovery::instance();
    if (recovery.is_void()) return !recovery.is_adopted() || end_step();  // the state says what is due
    const int epoch = static_cast<int>(position_.epoch);
    require_precision();
    // All ranks keep them where any may be lost.
    if (!options_.fingerprints.empty() && (leader() || recovery.on()))
      fingerprints_ += parameters_sha256(setup_.model()) + "\n";
    if (leader()) {
      warn_unless_finite(epoch, clock_.epoch_loss());
      progress_.report(clock_, epoch, options_.epochs);
    }
    // Steps of a graph are reported after the due one at the latest; those behind it are not yet counted.
    const data::Position position = at_step();
    saves_ = std::exchange(reported_, position.step) != position.step && checkpointer_.due(position);
    exchanges_ = end_.due();
    return end_step();
  }

  /// What ranks do together after a step. False: the run was interrupted.
  bool end_step() {
    if (!saves_ && !exchanges_) return true;
    const bool saves = saves_;
    if (saves) count_moved_bytes(1);
    elastic::unit([&] {
      if (saves_) save(at_step(), 0);
      if (exchanges_) exchange_signals();
    });
    if (saves) {
      count_moved_bytes(-1);
      clock_.skip();
    }
    saves_ = exchanges_ = false;
    return end_.signal() == 0;
  }

  /// No rank goes on before the file is there: its next step would wait for rank 0, and that wait be counted.
  void save(const data::Position& position, double accuracy) {
    if (!checkpointer_.writes()) return;
    fault_point("checkpoint");
    checkpointer_.save(position, accuracy);
    group_.barrier().wait();
  }

  /// Whether this run was interrupted: the same on all ranks.
  void exchange_signals() {
    const int own = noted_signal();
    received_ = received_ || own != 0;
    if (own != 0)  // first, before another rank can end as a consequence
      ddp::leave_error(
          ddp::RankError{.message = "received " + signal_text(own), .by_signal = true, .monotonic_ns = monotonic_ns()});
    end_.exchange(own, group_.rank(), group_.size());
    if (group_.size() > 1) clock_.lap(&StepParts::communication);
  }

  /// Once: what follows is not finite either.
  void warn_unless_finite(std::int64_t epoch, double loss) {
    if (warned_ || std::isfinite(loss)) return;
    warned_ = true;
    progress_.clear();
    std::fprintf(stderr,
                 "duet: the loss is %s in epoch %d; --check-finite ends a training at the first such value and says "
                 "where it arose\n",
                 fixed(loss, 4).c_str(), static_cast<int>(epoch + 1));
  }

  /// All ranks and replicas must hold the same bits: a wrong reduction is found here, not by a lower
  /// accuracy.
  void require_same_parameters() {
    if (setup_.require_same_replicas) setup_.require_same_replicas();
    if (group_.size() == 1) return;
    const std::vector<std::string> hashes = ddp::all_gather_texts(group_, parameters_sha256(setup_.model()));
    for (std::size_t rank = 1; rank < hashes.size(); ++rank)
      require<CommError>(hashes[rank] == hashes[0], "after step ", clock_.epoch_step(), " of the epoch rank ", rank,
                         " holds parameters with sha256 ", hashes[rank], ", rank 0 ", hashes[0]);
  }

  /// Returns the sums of losses over all ranks at each point of the epoch's loss curve. They have the bits of one
  /// device where all ranks know the sums of their blocks, each of which one rank has.
  std::vector<double> sums_of_losses() {
    if (setup_.share_losses) {
      clock_.use_blocks();
      return clock_.loss_sums();
    }
    double known = clock_.knows_blocks() && !setup_.own_batches ? 1 : 0;
    sum_over_ranks(group_, {&known, 1});
    if (known == group_.size()) {
      sum_over_ranks(group_, clock_.block_sums());
      clock_.use_blocks();
      return clock_.loss_sums();
    }
    std::vector<double> sums = clock_.loss_sums();
    sum_over_ranks(group_, sums);
    return sums;
  }

  /// What ranks do together after the last step of an epoch. Its results count once its last collective has ended.
  void end_epoch(std::int64_t epoch) {
    require_same_parameters();
    const std::vector<double> sums = sums_of_losses();
    const double ranks = setup_.own_batches ? group_.size() : 1;
    double loss = 0, rows = 0;
    std::vector<double> losses;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const double point_rows = clock_.loss_rows()[i] * ranks;
      losses.push_back(sums[i] / point_rows);
      loss += sums[i];
      rows += point_rows;
    }
    fault_point("evaluation");
    double correct = static_cast<double>(
        count_correct(evaluated(), *images_.test, group_.rank(), group_.size(), options_.loader_workers));
    sum_over_ranks(group_, {&correct, 1});
    const double accuracy = correct / static_cast<double>(images_.test->size());
    if (options_.mode == Mode::averaging) rank_losses_ = of_all_ranks({clock_.epoch_loss()});
    save({epoch + 1, 0}, accuracy);
    exchange_signals();

    position_ = {epoch + 1, 0};
    checkpointer_.end_epoch(accuracy);
    run_.train_loss.insert(run_.train_loss.end(), losses.begin(), losses.end());
    run_.test_accuracy.push_back(accuracy);
    epoch_loss_ = loss / rows;
    is_timed_ = clock_.epoch_seconds() > 0;  // not an epoch of nothing but the run's first step
    if (!is_timed_) return;
    run_.epoch_s.push_back(clock_.epoch_seconds());
    rates_.push_back(clock_.samples_per_s() * ranks);
  }

  /// Every rank's numbers, in rank order, on all ranks.
  std::vector<double> of_all_ranks(const std::vector<double>& own) const {
    std::vector<double> all(own.size() * static_cast<std::size_t>(group_.size()), 0);
    std::copy(own.begin(), own.end(), all.begin() + group_.rank() * std::ssize(own));
    sum_over_ranks(group_, all);
    return all;
  }

  void say(std::int64_t epoch) {
    if (!leader()) return;
    progress_.clear();
    warn_unless_finite(epoch, epoch_loss_);
    for (std::size_t rank = 0; rank < rank_losses_.size(); ++rank)
      std::printf("Rank  %zu , epoch  %lld :  %s\n", rank, static_cast<long long>(epoch),
                  python_float(rank_losses_[rank]).c_str());
    std::string time = options_.epochs == 1 && clock_.epoch_steps() == 1 ? kNothingToTime : "first step: not timed";
    if (is_timed_)
      time = concat(seconds(run_.epoch_s.back()), " s  ", grouped(std::llround(rates_.back())), " samples/s");
    std::printf("epoch %lld/%d  loss %s  accuracy %s %%  %s\n", static_cast<long long>(epoch + 1), options_.epochs,
                fixed(epoch_loss_, 4).c_str(), fixed(100 * run_.test_accuracy.back(), 2).c_str(), time.c_str());
    std::fflush(stdout);
  }

  /// Adds what was copied to and from this process's devices so far, or takes it away: between both, steps train.
  void count_moved_bytes(double sign) {
    if (options_.device == DeviceKind::cpu) return;
    moved_.resize(setup_.devices.size(), 0);
    for (std::size_t i = 0; i < moved_.size(); ++i)
      moved_[i] += sign * static_cast<double>(backend(options_.device).use(setup_.devices[i]).moved);
  }

  /// Memory and traffic of every device of all ranks.
  void fill_devices() {
    if (options_.device == DeviceKind::cpu) return;
    std::vector<double> memory, moved;
    moved_.resize(setup_.devices.size(), 0);  // a process that replaces a lost rank behind the last epoch has no steps
    for (std::size_t i = 0; i < setup_.devices.size(); ++i) {
      memory.push_back(static_cast<double>(backend(options_.device).use(setup_.devices[i]).peak) / 1e6);
      moved.push_back(steps_ > 0 ? moved_[i] / steps_ : 0);
    }
    run_.device_memory_mb = of_all_ranks(memory);
    run_.moved_bytes_per_step = of_all_ranks(moved);
  }

  void fill_lost_ranks() {
    if (!Recovery::instance().on()) return;
    run_.lost_ranks.clear();
    for (const ddp::JobLoss& loss : ddp::JobMemory(environment_variable(kElasticVariable).value_or("")).losses())
      run_.lost_ranks.push_back(
          {loss.rank, loss.step,
           static_cast<double>(std::max<std::int64_t>(loss.recovered_ns - loss.lost_ns, 0)) / 1e9});
  }

  /// A file that cannot be written does not keep the others from being written.
  void write_files() {
    std::vector<RankEvents> traced;
    if (traces(options_)) traced = gather_trace(run_, trace_begin_, options_, group_);
    if (!leader()) return;
    std::string failures;
    const auto write = [&](const char* option, const std::string& path, const auto& content) {
      try {
        if (!path.empty()) write_output(path, content());
      } catch (const std::exception& error) {
        failures += (failures.empty() ? "" : "; ") + concat(option, ": ", error.what());
      }
    };
    write("--result", options_.result, [&] { return to_json(run_); });
    write("--fingerprints", options_.fingerprints, [&] { return fingerprints_; });
    write("--step-times", options_.step_times, [&] { return step_times(); });
    write("--trace", options_.trace, [&] { return chrome_trace(traced); });
    require<DataError>(failures.empty(), failures);
  }

  std::string step_times() const {
    std::string lines;
    for (const float us : clock_.steps_us()) lines += fixed(static_cast<double>(us), 1) + "\n";
    return lines;
  }

  Outcome interrupted(const data::Position& position) {
    progress_.clear();
    if (!received_)  // others did
      ddp::leave_error(
          ddp::RankError{.message = concat("ended after step ", checkpointer_.total_steps(position), ": ",
                                           ddp::rank_names(end_.signalled()), " received ", signal_text(end_.signal())),
                         .consequence = true,
                         .monotonic_ns = monotonic_ns()});
    if (position.step > 0) checkpointer_.save(position, 0);
    if (received_ && end_.signal() == SIGPIPE && (leader() || !has_threads(options_)))
      std::fprintf(stderr, "duet: nothing reads the standard output any more: the training ended after step %lld%s\n",
                   static_cast<long long>(checkpointer_.total_steps(position)),
                   checkpointer_.writes() ? ", with a checkpoint" : "");
    if (const std::string how = checkpointer_.how_to_resume(); !how.empty())
      std::fprintf(stderr, "duet: the training ended after step %lld; %s\n",
                   static_cast<long long>(checkpointer_.total_steps(position)), printable(how).c_str());
    double written = 0;
    sum_over_ranks(group_, {&written, 1});  // the first rank to leave may end the others
    return {run_, end_.signal()};
  }

  Outcome finish() {
    if (!is_finished_) elastic::unit([&] { fill_and_write(); });
    return {run_, 0};
  }

  void fill_and_write() {
    fault_point("end");
    run_.mode = name(options_.mode);
    run_.device = kind_title(options_.device);
    run_.devices = options_.devices;
    run_.batch = options_.batch;
    if (setup_.batches != nullptr && options_.device == DeviceKind::cpu) run_.blocks = setup_.batches->blocks();
    run_.physical_devices = physical_devices(options_.device, options_.devices);
    run_.precision = duet::name(options_.precision);
    run_.graph = setup_.graph && setup_.graph->replays() > 0;
    run_.threads_per_device = options_.threads_per_device;
    run_.samples_per_s = median(rates_);
    clock_.fill(run_);
    average_over_ranks(run_, group_);
    if (!options_.untrained) run_.parameters_sha256 = parameters_sha256(setup_.model());
    run_.workers = options_.workers;
    run_.per_device_statistics = options_.devices > 1 && has_plain_batch_norm(setup_.model());
    run_.library_sums = !setup_.model().sums_by_blocks();
    run_.added_uses = setup_.model().parameters().added_uses();
    if (options_.mode != Mode::copies) run_.backend = group_.size() > 1 ? group_.backend() : "";
    run_.peak_memory_mb = {peak_memory_mb()};
    if (!has_threads(options_)) run_.peak_memory_mb = of_all_ranks(run_.peak_memory_mb);
    fill_devices();
    fill_lost_ranks();
    write_files();
    if (Recovery::instance().on()) group_.barrier().wait();  // another rank can do it while none has gone on
    is_finished_ = true;
  }

  const TrainOptions& options_;
  const Images& images_;
  Setup& setup_;
  ddp::ProcessGroup& group_;
  Checkpointer checkpointer_;
  const std::uint64_t trace_begin_ = Trace::position();
  StepClock clock_;
  ProgressReporter progress_;
  CommonEnd end_;
  Run run_;
  data::Position position_;                 // where the epoch begins that runs
  std::vector<double> rates_;               // images per second of each epoch
  std::vector<double> rank_losses_;         // mode averaging: of the last epoch
  double epoch_loss_ = 0;                   // of the last epoch
  bool is_timed_ = false;                   // the last epoch
  bool is_finished_ = false;                // the run: files are written
  bool saves_ = false, exchanges_ = false;  // what ranks do together after the last step
  std::vector<double> moved_;               // bytes, by device of this process, over steps_ training steps
  double steps_ = 0;
  std::int64_t reported_ = 0;  // steps of the epoch
  bool warned_ = false;        // that the loss is not finite
  bool received_ = false;      // a signal that it had noted by the last exchange
  std::string fingerprints_;
};

}  // namespace

std::string progress_title(const TrainOptions& options) { return concat(name(options.mode), " ", options.devices); }

bool traces(const TrainOptions& options) { return !options.trace.empty() || !options.result.empty(); }

void sum_over_ranks(ddp::ProcessGroup& group, std::span<double> numbers) {
  if (group.size() > 1) group.all_reduce(numbers).wait();
}

void average_over_ranks(Run& run, ddp::ProcessGroup& group) {
  if (group.size() == 1) return;
  std::vector<double> numbers = {run.waiting_share, run.communication_us};
  for (const PartName& part : kStepParts) numbers.push_back(run.step_us.*part.member);
  sum_over_ranks(group, numbers);
  for (double& number : numbers) number /= group.size();
  run.waiting_share = numbers[0];
  run.communication_us = numbers[1];
  for (std::size_t i = 0; i < std::size(kStepParts); ++i) run.step_us.*kStepParts[i].member = numbers[i + 2];
}

std::vector<RankEvents> gather_trace(Run& run, std::uint64_t since, const TrainOptions& options,
                                     ddp::ProcessGroup& group) {
  const std::vector<std::string> texts = traced_texts(since, options, group);
  const std::vector<std::string> clocks = ddp::all_gather_texts(group, clock_identity());
  if (group.rank() != 0) return {};
  std::vector<RankEvents> traced = of_each(texts, events_of);
  const std::vector<RankSteps> ranks = of_each(traced, steps_of);
  // A GPU runs asynchronously: there the host's times do not part waiting and moving.
  const bool parts = options.device == DeviceKind::cpu && std::set(clocks.begin(), clocks.end()).size() == 1;
  run.median_step = median_step(ranks, parts);
  if (parts) fill_waiting(run, ranks);
  return traced;
}

Outcome train_and_report(const TrainOptions& options, const Images& images, Setup& setup, ddp::ProcessGroup& group) {
  return Trainer(options, images, setup, group).run();
}

}  // namespace duet::cli
