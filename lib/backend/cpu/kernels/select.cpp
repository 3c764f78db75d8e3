// Chooses the kernels for this machine.
#include <array>
#include <string>
#include <string_view>

#include "lib/backend/cpu/kernels/amx.h"
#include "lib/base/environment.h"
#include "lib/error.h"

namespace duet::cpu {
namespace generic {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
#endif

namespace {

struct Candidate {
  std::string_view name;
  const Kernels* kernels;  // null where this machine cannot run them
};

const Kernels& choose() {
  const std::string wish = environment_variable("DUET_ISA").value_or("");
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const std::array candidates = {
      Candidate{"amx", has_avx512 && (wish.empty() || wish == "amx") ? amx_kernels() : nullptr},
      Candidate{"avx512", has_avx512 ? &avx512::table : nullptr}, Candidate{"avx2", has_avx2 ? &avx2::table : nullptr},
      Candidate{"generic", &generic::table}};
#else
  const std::array candidates = {Candidate{"generic", &generic::table}};
#endif
  for (const Candidate& candidate : candidates) {
    if (wish.empty()) {
      if (candidate.kernels != nullptr) return *candidate.kernels;
    } else if (candidate.name == wish) {
      require<UsageError>(candidate.kernels != nullptr, "DUET_ISA is ", wish,
                          ", but this machine has no such instructions");
      return *candidate.kernels;
    }
  }
  throw UsageError(concat("DUET_ISA is '", wish, "', expected amx, avx512, avx2 or generic"));
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

bool has_bf16() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return kernels().channel_block == 16 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace duet::cpu
