// Chooses the kernels for this machine.
#include <array>
#include <cstdlib>
#include <string_view>

#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/error.h"

namespace duet::cpu {
namespace generic {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

struct Candidate {
  const Kernels* kernels;
  bool usable;
};

const Kernels& choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const std::array candidates = {Candidate{&avx512::table, has_avx512}, Candidate{&avx2::table, has_avx2},
                                 Candidate{&generic::table, true}};
#else
  const std::array candidates = {Candidate{&generic::table, true}};
#endif
  const char* const wish = std::getenv("DUET_ISA");
  for (const Candidate& candidate : candidates) {
    if (wish == nullptr || *wish == 0) {
      if (candidate.usable) return *candidate.kernels;
    } else if (std::string_view(wish) == candidate.kernels->name) {
      require<UsageError>(candidate.usable, "DUET_ISA is ", wish, ", but this machine has no such instructions");
      return *candidate.kernels;
    }
  }
  throw UsageError(concat("DUET_ISA is '", wish, "', expected avx512, avx2 or generic"));
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace duet::cpu
