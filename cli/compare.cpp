// duet compare: the same network in all modes on several numbers of devices; table and report.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "cli/share.h"
#include "cli/show.h"
#include "cli/unlikely.h"
#include "compare/comparison.h"
#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/backend/backend.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "train/options/options.h"
#include "train/setup.h"
#include "train/system/display.h"
#include "train/system/files.h"
#include "train/system/machine.h"
#include "train/system/signals.h"

namespace duet::cli {
namespace {

std::string machine_line(const CompareOptions& options, const Machine& machine) {
  const int most = *std::max_element(options.devices.begin(), options.devices.end());
  const int physical = physical_devices(options.device, most);
  std::string text = concat("duet ", DUET_VERSION, " · ", most, most > physical ? " logical" : "",
                            most == 1 ? " device:" : " devices:");
  for (const Device device : devices_for(options.device, most)) text += " " + device.str();
  if (options.device == DeviceKind::cuda) {
    text += " on " + count_text(physical, "GPU");
    for (int i = 0; i < physical; ++i) text += " · " + machine.gpus.at(static_cast<std::size_t>(i));
    text += concat(" · precision ", name(options.precision));
  } else {
    text += concat(" (", machine.isa, ", ", count_text(options.threads_per_device, "thread"), " each) on ",
                   count_text(machine.cores, "core"));
  }
  text += " · " + backend(options.device).libraries();
  for (const Library& library : libraries())
    if (library.name == "Gloo") text += library.present ? " · Gloo" : " · no Gloo";
  return text + (options.device == DeviceKind::cpu && machine.gpus.empty() ? " · no GPU" : "");
}

void write_report(const CompareOptions& options, const Results& results, const std::string& command_line) {
  const std::string json = to_json(results);
  write_output(options.out + "/results.json", json);
  write_output(options.out + "/results.csv", to_csv(results));
  write_output(options.out + "/index.html", to_html(results, command_line, options.time_budget_s));
  write_json(options.json, json);
}

}  // namespace

int run(const CompareOptions& options, const std::string& command_line) {
  std::FILE* const out = text_stream(options.json);
  require_available(options.device);
  require_writable(options.out, 1 << 20);
  require_json_output(options.json);  // which may lie in that folder
  if (!options.share.empty()) require_new_folder(options.share);
  const Machine machine = this_machine();
  const bool several = std::ranges::any_of(options.modes, [](Mode mode) { return mode != Mode::single; });
  const int most = several ? *std::max_element(options.devices.begin(), options.devices.end()) : 1;
  warn_of_unlikely(options, most);
  note_signals();  // before images are drawn or loaded, which takes a while
  Training settings = options;
  std::int64_t parameters = 0;
  {
    const Images images = find_images(options);
    settings.data = images.name;
    settings.train_images = images.train->size();
    parameters = blank_network(options, images.classes)->parameter_count();
    if (options.wide)
      std::fputs(
          for_locale(concat(machine_line(options, machine), "\nnetwork: ", network_text(options.model, parameters),
                            "\ndata: ", printable(images.description), "\n"))
              .c_str(),
          out);
  }
  std::fflush(out);
  Results results = run_cells(options, machine, settings);
  results.parameters = parameters;
  if (results.partial)
    std::fprintf(
        stderr, "duet: interrupted by %s: %s\n", signal_text(noted_signal()).c_str(),
        results.runs.empty() ? "no run had ended, so there is no report" : "the report has the runs that had ended");
  if (!results.runs.empty()) {
    const ShowSettings show{.wide = options.wide,
                            .tutorial = options.tutorial,
                            .style = terminal_style(out, options.quiet),
                            .out = options.out};
    print_results(results, show, out);  // first, so that a disk that is full by now does not take it along
    write_report(options, results, command_line);
    if (!options.share.empty()) {
      share(options, results, machine, command_line);
      std::fprintf(out, "\nto send: %s, in which neither user nor host are named\n", options.share.c_str());
    }
  }
  if (results.partial) return 128 + noted_signal();
  return std::all_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.ok; }) ? 0 : 1;
}

}  // namespace duet::cli
