#include "compare/results.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"

namespace duet::cli {
namespace {

/// Threads per device of the usual rows: the fewest that any run of duet has.
int usual_threads(const Results& results) {
  int threads = 0;
  for (const Run& run : results.runs)
    if (!run.is_torch()) threads = threads == 0 ? run.threads_per_device : std::min(threads, run.threads_per_device);
  return threads;
}

/// The median over rounds of how many times as fast `run` is as `base`; without rounds, from all of their steps.
double times_as_fast(const Run& run, const Run& base) {
  const std::vector<double> ratios = speed_ratios(run, base);
  return ratios.empty() ? run.samples_per_s / base.samples_per_s : median(ratios);
}

}  // namespace

std::string batch_text(const Results& results) {
  return concat("batch ", results.settings.batch, results.weak ? " of each device" : "");
}

std::string batch_folder(std::int64_t batch) { return concat("batch-", batch); }

bool all_cores_row(const Results& results, const Run& run) {
  return run.mode == "single" && run.threads_per_device > usual_threads(results);
}

bool oversubscribed(const Results& results, const Run& run) {
  return run.on_cpu() ? run.threads() > results.machine.cores : run.devices > run.physical_devices;
}

const Run* find_run(const Results& results, const std::string& mode, int devices) {
  for (const Run& run : results.runs)
    if (run.ok && run.mode == mode && run.devices == devices && run.threads_per_device == usual_threads(results))
      return &run;
  return nullptr;
}

void compare_with_single(Results& results) {
  const Run* single = find_run(results, "single", 1);
  for (Run& run : results.runs) {
    run.speedup.reset();
    run.efficiency.reset();
    run.speedup_low.reset();
    run.speedup_high.reset();
    if (!single || !run.ok || !single->timed() || !run.timed() || !sharing(run).empty()) continue;
    run.speedup = times_as_fast(run, *single);
    if (!oversubscribed(results, run) && !run.is_torch())
      run.efficiency = *run.speedup / run.threads() * single->threads_per_device;
    const std::optional<Interval> interval = ratio_interval(speed_ratios(run, *single));
    if (!interval || &run == single) continue;
    run.speedup_low = interval->low;
    run.speedup_high = interval->high;
  }
  for (Run& run : results.runs) {
    const Run* copies = find_run(results, "copies", run.devices);
    run.ceiling_efficiency.reset();
    if (copies && run.speedup && run.mode != "copies" && !run.is_torch() && !all_cores_row(results, run) &&
        run.devices > 1)
      run.ceiling_efficiency = times_as_fast(run, *copies);
  }
}

}  // namespace duet::cli
