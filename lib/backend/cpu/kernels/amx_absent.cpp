// Built where the compiler or the processor family knows no AMX.
#include "lib/backend/cpu/kernels/amx.h"

namespace duet::cpu {

const Kernels* amx_kernels() { return nullptr; }

}  // namespace duet::cpu
