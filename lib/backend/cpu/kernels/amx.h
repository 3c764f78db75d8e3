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
std::int64_t tiled_conv_scratch_bytes(const BlockedConv& g, bool backward, std::int64_t rows);
void tiled_conv(const BlockedConv& g, bool backward, const float* from, const float* w, std::int64_t rows, float* to,
                void* scratch);
/// sources (pixel, tap): the pixel of the input from which an output's pixel reads through a tap, or with `backward`
/// the pixel of the output that reads the input's one; -1 where there is none.
void find_sources(const BlockedConv& g, bool backward, std::int32_t* sources);
std::int64_t paired_words(std::int64_t channels, std::int64_t pixels, std::int64_t rows);
void pair_images(const float* x, std::int64_t channels, std::int64_t pixels, std::int64_t rows, std::uint32_t* to);
std::int64_t tiled_weights_scratch_bytes(const BlockedConv& g, const Leaves& leaves);
void tiled_backward_weights(const BlockedConv& g, const std::uint32_t* x, const std::uint32_t* dy, const Leaves& leaves,
                            std::int64_t begin, float* dw, void* scratch);
}  // namespace amx

/// Null where the processor or the compiler lacks AMX, or the kernel does not let this process use it; asks the kernel
/// once. The processor must have AVX-512.
const Kernels* amx_kernels();

}  // namespace duet::cpu
