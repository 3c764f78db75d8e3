#include "cli/train/bursts.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "cli/system/machine.h"
#include "cli/system/signals.h"
#include "cli/train/trainer.h"
#include "cli/train/training_loop.h"
#include "lib/autograd/check_finite.h"
#include "lib/base/text.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"
#include "lib/tensor.h"
#include "measure/json_fields.h"
#include "measure/statistics.h"
#include "model/fit.h"

namespace duet::cli {
namespace {

// Caches and clock rates are those of another cell when a burst begins. The first step after these is not timed,
// either, and is enough where steps are so long that a burst has few of them.
constexpr std::int64_t kWarmUp = 1, kFewSteps = 5;

Descriptor opened(const std::string& fifo, int access) {
  Descriptor file(::open(fifo.c_str(), access | O_CLOEXEC));
  require<DataError>(file.open(), "cannot open ", fifo, ": ", last_errno);
  return file;
}

class Bursts {
 public:
  Bursts(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group)
      : options_(options), setup_(setup), group_(group), port_(options.bursts, group.rank()) {}

  void serve() {
    empty_caches();
    port_.serve(
        "{}", [this](int steps) { return burst(steps); }, [this] { linger(); });
  }

 private:
  bool reports_process() const { return options_.workers == "process" || group_.rank() == 0; }

  /// A parked rank has no memory for activations: the processes of all cells are there at the same time.
  void empty_caches() {
    for (const Device device : setup_.devices) allocator(device).empty_cache();
  }

  /// Copies train until the last has ended its steps: the others would leave it the machine.
  void linger() {
    if (options_.mode == Mode::copies) {
      StepClock more = clock();
      train_until(more, [&](std::int64_t) { return port_.commanded(); });
    }
    empty_caches();
  }

  bool communicates() const { return options_.mode != Mode::copies; }

  /// Trains until `enough()` holds after a step, over as many epochs as that takes.
  template <class Enough>
  void train_until(StepClock& clock, const Enough& enough) {
    const std::int64_t steps = setup_.loader->steps();
    std::int64_t before = 0;
    bool ended = false;
    while (!ended) {
      clock.begin_epoch(steps, 0);
      train_epoch(setup_, graph_steps(options_, steps), clock, [&] {
        ended = enough(before + clock.epoch_step());
        return !ended;
      });
      before += clock.epoch_step();
    }
  }

  std::string burst(std::int64_t steps) {
    std::array<double, 1> begin{};
    sum_over_ranks(group_, begin);  // copies have nothing else that lets them begin together
    if (communicates() && reports_process()) start_trace(options_);  // of all ranks by the end of the warm-up
    if (steps >= kFewSteps) {
      StepClock warm = clock();
      train_until(warm, [](std::int64_t done) { return done >= kWarmUp; });
    }
    StepClock timed = clock();
    CpuUse use;
    std::int64_t begin_ns = 0;
    train_until(timed, [&](std::int64_t done) {
      if (begin_ns == 0 && done > 0) {
        if (reports_process()) use = cpu_use();
        begin_ns = monotonic_ns();
      }
      return done > steps;
    });
    const double wall_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    if (reports_process()) use = cpu_use() - use;
    return report(timed, wall_s, use);
  }

  std::string report(const StepClock& clock, double wall_s, const CpuUse& use) {
    const std::vector<double> steps(clock.steps_us().begin(), clock.steps_us().end());
    Run run;
    run.devices = options_.devices;
    clock.fill(run);
    if (communicates()) average_over_ranks(run, group_);
    if (communicates() && traces(options_)) gather_trace(run, options_, group_);
    run.median_step.clear();  // that of the training is shown
    return to_json(RankBurst{.wall_s = wall_s,
                             .used_s = use.used_s,
                             .delayed_s = use.delayed_s,
                             .median_us = median(steps),
                             .spread_share = fit_spread(steps),
                             .run = group_.rank() == 0 ? std::optional(run) : std::nullopt});
  }

  StepClock clock() const { return {monotonic_ns(), setup_.times, setup_.devices.at(0)}; }

  const TrainOptions& options_;
  Setup& setup_;
  ddp::ProcessGroup& group_;
  BurstPort port_;
};

}  // namespace

std::string command_fifo(const std::string& files, int rank) { return concat(files, ".", rank, ".commands"); }
std::string answer_fifo(const std::string& files, int rank) { return concat(files, ".", rank, ".answers"); }

BurstPort::BurstPort(const std::string& files, int rank)
    : commands_(opened(command_fifo(files, rank), O_RDONLY)), answers_(opened(answer_fifo(files, rank), O_WRONLY)) {}

void BurstPort::serve(const std::string& ready, const std::function<std::string(int)>& burst,
                      const std::function<void()>& linger) {
  answer(ready);
  while (const std::optional<int> steps = next()) {
    answer(*steps > 0 ? burst(*steps) : "{}");
    if (*steps > 0) linger();
  }
}

bool BurstPort::commanded() const {
  pollfd waits{.fd = commands_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waits, 1, 0) > 0;
}

/// Commands come one at a time: one is read whole.
std::optional<int> BurstPort::next() {
  std::array<char, 16> line{};
  ssize_t size = 0;
  do {
    size = ::read(commands_.get(), line.data(), line.size());
  } while (size < 0 && errno == EINTR);
  require<CommError>(size >= 0, "cannot read from --bursts: ", last_errno);
  if (size == 0) return std::nullopt;
  const std::string_view text(line.data(), static_cast<std::size_t>(size - 1));
  const std::optional<int> steps = parse_number<int>(text);
  require<DataError>(steps && *steps >= 0, "--bursts: '", text, "', expected a number of steps");
  return steps;
}

void BurstPort::answer(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t size = ::write(answers_.get(), text.data() + done, text.size() - done);
    require<CommError>(size >= 0 || errno == EINTR, "cannot write to --bursts: ", last_errno);
    done += static_cast<std::size_t>(size > 0 ? size : 0);
  }
}

void fields(auto& io, RankBurst& burst) {
  io("wall_s", burst.wall_s);
  io("used_s", burst.used_s);
  io("delayed_s", burst.delayed_s);
  io("median_us", burst.median_us);
  io("spread_share", burst.spread_share);
  io("run", burst.run);
}

std::string to_json(const RankBurst& burst) { return line_of(JsonWriter::json_of(burst)); }

RankBurst rank_burst_from_json(const std::string& line) { return read_json<RankBurst>(line, "a burst of steps"); }

void serve_bursts(const TrainOptions& options, Setup& setup, ddp::ProcessGroup& group) {
  end_by_signals();
  const CheckFinite check_finite(options.check_finite);
  Bursts(options, setup, group).serve();
}

}  // namespace duet::cli
