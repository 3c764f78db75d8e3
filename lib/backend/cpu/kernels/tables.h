// Declares the kernels of one instruction set: DUET_ISA is its namespace. See kernels.h for what they do.
#pragma once

#include <cstdint>

#include "lib/backend/cpu/kernels/kernels.h"

namespace duet::cpu::DUET_ISA {

void relu(const float* x, float* y, std::int64_t n);
void relu_backward(const float* y, const float* dy, float* dx, std::int64_t n);
void add(const float* a, const float* b, float* y, std::int64_t n);
void mul(const float* a, const float* b, float* y, std::int64_t n);
void scale(float* x, float factor, std::int64_t n);
void mask_scale(const float* x, const std::uint8_t* mask, float scale, float* y, std::int64_t n);
void relu_dropout_backward(const float* y, const float* dy, float scale, float* dx, std::int64_t n);
void sum_parts(const float* const* parts, int count, bool accumulate, float* y, std::int64_t n);
void sgd(float* value, const float* gradient, float* momentum, std::int64_t n, float lr, float momentum_factor,
         float dampening, float weight_decay, bool nesterov, bool first);
void adam(float* value, const float* gradient, float* first, float* second, std::int64_t n,
          const arithmetic::AdamFactors& factors);
void norm_sums(const NormRows& rows, const float* x, double* sums);
void norm_forward(const NormRows& rows, const NormLanes* lanes, const float* x, const float* other, bool relu,
                  float* y);
void norm_backward_sums(const NormRows& rows, const NormLanes* lanes, const float* x, const float* dy, bool relu,
                        const float* y, float* passed, double* sums);
void norm_backward(const NormRows& rows, const NormLanes* lanes, const float* x, const float* dy, bool relu,
                   bool centred, float* dx);
void max_pool(const float* x, float* y, std::uint8_t* index, const PoolGeometry& g, int block);
void max_pool_backward(const float* dy, const std::uint8_t* index, float* dx, const PoolGeometry& g, int block);
void avg_pool(const float* x, float* y, const AveragePool& pool, int block);
void avg_pool_backward(const float* dy, float* dx, const AveragePool& pool, int block);
void relu_index(float* y, std::uint8_t* index, std::int64_t n);
void drop_index(float* y, std::uint8_t* index, const std::uint8_t* mask, float scale, std::int64_t n);
void unblock(const float* x, float* y, std::int64_t pixels, int block);
void unblock_bytes(const std::uint8_t* x, std::uint8_t* y, std::int64_t pixels, int block);
void block(const float* x, float* y, std::int64_t pixels, int block);
void block_bytes(const std::uint8_t* x, std::uint8_t* y, std::int64_t pixels, int block);
void block_weights(const float* w, float* to, std::int64_t outs, std::int64_t ins, std::int64_t taps, int block,
                   bool outputs_last);
void to_bf16_pixels(const float* x, std::uint16_t* y, std::int64_t channels, std::int64_t pixels, int block);
void from_pixels(const float* x, float* y, std::int64_t channels, std::int64_t pixels, int block);
void pad(const float* x, float* padded, std::int64_t images, std::int64_t h, std::int64_t w, int block);
void crop(const float* padded, float* x, std::int64_t images, std::int64_t h, std::int64_t w, int block);
std::int64_t winograd_weight_floats(const PooledConv& g);
std::int64_t winograd_scratch_floats(const PooledConv& g);
void winograd_weights(const PooledConv& g, const float* w, float* u);
void winograd_forward(const PooledConv& g, const float* u, const float* bias, const float* x, float* y,
                      std::uint8_t* index, const float* next, float* scratch);
void plain_pooled_forward(const PooledConv& g, const float* w, const float* bias, const float* x, float* y,
                          std::uint8_t* index);
std::int64_t plain_pooled_scratch_floats(const PooledConv& g);
void plain_pooled_backward_weights(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                                   std::int64_t rows, float* dw, float* db, float* scratch);
std::int64_t nonzero_scratch_bytes(const PooledConv& g);
void nonzero_backward(const PooledConv& g, const float* x, const float* dy, const std::uint8_t* index,
                      std::int64_t rows, const float* w, float* dx, float* dw, float* db, void* scratch);
void plain_backward_weights(const PlainConv& g, const float* x, const float* dy, std::int64_t rows, float* dw,
                            float* db);
std::int64_t small_weights_scratch_floats(const BlockedConv& g, const Leaves& leaves);
void small_backward_weights(const BlockedConv& g, const float* x, const float* dy, const Leaves& leaves,
                            std::int64_t out_block, float* dw, float* scratch);
void dropout_mask(std::uint8_t* mask, std::int64_t n, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                  std::uint32_t layer, std::uint32_t threshold);
std::int64_t linear_forward_scratch_bytes(std::int64_t in, std::int64_t out);
void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
            std::int64_t out, void* scratch);
void linear_relu_dropout(const float* x, const float* w, const float* bias, const std::uint8_t* mask, float scale,
                         float* y, std::int64_t n, std::int64_t in, std::int64_t out, void* scratch);
std::int64_t linear_scratch_bytes(std::int64_t n, std::int64_t out);
void linear_backward_data(const float* dy, const float* w, float* dx, std::int64_t n, std::int64_t in, std::int64_t out,
                          void* scratch);
void linear_backward_weights(const float* x, const float* dy, float* dw, std::int64_t in, std::int64_t out,
                             std::int64_t begin, std::int64_t end, const Leaves& leaves, void* scratch);
void sum_rows(const float* dy, float* db, std::int64_t columns, const Leaves& leaves);
std::int64_t fma_peak(std::int64_t rounds, float* numbers);

/// All of the above.
extern const Kernels table;

/// Columns [begin, end) of what linear_backward_data and linear_backward_weights compute, by loops over all of dy.
void dense_backward_data(const float* dy, const float* w, float* dx, std::int64_t n, std::int64_t in, std::int64_t out,
                         std::int64_t begin, std::int64_t end);
void dense_backward_weights(const float* x, const float* dy, float* dw, std::int64_t in, std::int64_t out,
                            std::int64_t begin, std::int64_t end, const Leaves& leaves);

}  // namespace duet::cpu::DUET_ISA
