// Marks functions that CPU and GPU code share: nvcc compiles them for both, a C++ compiler for the CPU.
#pragma once

/// Stands before `inline`. The CPU's kernels are compiled once per instruction set, so no copy of such a function may
/// exist out of line: the linker would keep one, perhaps with instructions that this machine lacks.
#if defined(__CUDACC__)
#define DUET_HOST_DEVICE __host__ __device__
#else
#define DUET_HOST_DEVICE [[gnu::always_inline]]
#endif
