// The instruction set AMX: AVX-512's kernels, and where it gains, products of matrices by the processor's tiles.
#pragma once

#include <cstdint>

#include "lib/backend/cpu/kernels/kernels.h"

namespace duet::cpu {

namespace avx512 {
extern const Kernels table;
}

namespace amx {
std::int64_t winograd_weight_floats(const PooledConv& g);
std::int64_t winograd_scratch_floats(const PooledConv& g);
void winograd_weights(const PooledConv& g, const float* w, float* u);
void winograd_forward(const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                      std::uint8_t* index, const float* next, float* scratch);
std::int64_t linear_forward_scratch_bytes(std::int64_t in, std::int64_t out);
void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
            std::int64_t out, void* scratch);
void linear_relu_dropout(const float* x, const float* w, const float* bias, const std::uint8_t* mask, float scale,
                         float* y, std::int64_t n, std::int64_t in, std::int64_t out, void* scratch);
}  // namespace amx

/// Null where the processor or the compiler lacks AMX, or the kernel does not let this process use it; asks the kernel
/// once. The processor must have AVX-512.
const Kernels* amx_kernels();

}  // namespace duet::cpu
