// Built where the compiler or the processor family lacks AMX.
#include "lib/backend/cpu/kernels/amx.h"

namespace duet::cpu {

const Kernels* amx_kernels() { return nullptr; }

}  // namespace duet::cpu
