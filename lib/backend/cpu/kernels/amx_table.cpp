#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/backend/cpu/kernels/amx.h"

namespace duet::cpu {
namespace {

bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  // Tiles are too large for the stacks that old programs make for signals, so a process must ask for them, once. Header
  // files of Linux before 5.16 lack the number.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Kernels with_amx(Kernels kernels) {
  kernels.name = "AMX";
  kernels.winograd_weight_floats = amx::winograd_weight_floats;
  kernels.winograd_scratch_floats = amx::winograd_scratch_floats;
  kernels.winograd_weights = amx::winograd_weights;
  kernels.winograd_forward = amx::winograd_forward;
  kernels.linear_forward_scratch_bytes = amx::linear_forward_scratch_bytes;
  kernels.linear = amx::linear;
  kernels.linear_relu_dropout = amx::linear_relu_dropout;
  kernels.tiled_conv_scratch_bytes = amx::tiled_conv_scratch_bytes;
  kernels.tiled_conv = amx::tiled_conv;
  kernels.paired_words = amx::paired_words;
  kernels.pair_images = amx::pair_images;
  kernels.tiled_weights_scratch_bytes = amx::tiled_weights_scratch_bytes;
  kernels.tiled_backward_weights = amx::tiled_backward_weights;
  return kernels;
}

}  // namespace

const Kernels* amx_kernels() {
  static const bool usable = has_amx();
  static const Kernels table = with_amx(avx512::table);
  return usable ? &table : nullptr;
}

}  // namespace duet::cpu
