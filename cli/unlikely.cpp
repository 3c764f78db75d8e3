#include "cli/unlikely.h"

#include <cstdio>
#include <cstdlib>

#include "compare/report/evidence.h"
#include "lib/base/environment.h"
#include "lib/error.h"

namespace duet::cli {

std::vector<std::string> unlikely_settings(const Training& training, int devices, int cores) {
  constexpr double kHighRate = 10;
  std::vector<std::string> sentences;
  const int threads = training.threads_per_device;
  if (training.device == DeviceKind::cpu && devices * threads > cores)
    sentences.push_back(shared_cores_text(devices, cores, threads) + kMeasuresOverhead);
  if (training.loader_workers > cores)
    sentences.push_back(concat("--loader-workers is ", training.loader_workers, ", but there are ",
                               count_text(cores, "core"), ": more threads don't load faster"));
  if (training.lr > kHighRate)
    sentences.push_back(concat("--lr is ", training.lr, ": with steps that large few networks learn"));
  return sentences;
}

void warn_of_unlikely(const Training& training, int devices, int cores) {
  constexpr const char* kWarned = "DUET_WARNED";
  if (environment_variable(kWarned)) return;
  ::setenv(kWarned, "1", 1);
  for (const std::string& sentence : unlikely_settings(training, devices, cores))
    std::fprintf(stderr, "warning: %s\n", sentence.c_str());
}

}  // namespace duet::cli
