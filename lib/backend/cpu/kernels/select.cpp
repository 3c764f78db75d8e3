// Chooses the kernels for this machine.
#if defined(DUET_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <string>
#include <string_view>

#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/base/environment.h"
#include "lib/error.h"

namespace duet::cpu {
#if defined(DUET_AMX)
namespace amx {
DUET_AMX_KERNELS(DUET_DECLARE_KERNEL)
}
#endif

namespace {

#if defined(DUET_AMX)
bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  // Tiles are too large for the stacks that old programs make for signals, so a process must ask for them, once. Header
  // files of Linux before 5.16 lack the number.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

/// The instruction set AMX: AVX-512's kernels, and where it gains, products of matrices by the processor's tiles. Null
/// where the processor or the compiler lacks AMX, or the kernel does not let this process use it; asks the kernel once.
/// The processor must have AVX-512.
[[maybe_unused]] const Kernels* amx_kernels() {
#if defined(DUET_AMX)
  static const bool usable = has_amx();
  static const Kernels table = [] {
    Kernels kernels = avx512::table;
    kernels.name = "AMX";
#define DUET_REPLACE(kernel) kernels.kernel = amx::kernel;
    DUET_AMX_KERNELS(DUET_REPLACE)
#undef DUET_REPLACE
    return kernels;
  }();
  return usable ? &table : nullptr;
#else
  return nullptr;
#endif
}

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
