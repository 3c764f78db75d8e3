// The table of this instruction set, and what the machine can do at most with it.
#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {

std::int64_t fma_peak(std::int64_t rounds, float* numbers) {
  // Two units with a latency of four or five cycles keep ten chains busy; with their operands they fit 16 registers.
  constexpr int kChains = 12;
  const Vec factor = broadcast(numbers[0]), term = broadcast(numbers[1]);
  Vec chains[kChains];  // of different numbers: the compiler would compute equal ones once
  for (int i = 0; i < kChains; ++i) chains[i] = broadcast(numbers[2] + static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < kChains; ++i) chains[i] = fma(chains[i], factor, term);
  Vec total = {};
  for (int i = 0; i < kChains; ++i) total = total + chains[i];
  numbers[2] = total[0];
  return rounds * kChains * kWidth * 2;
}

constinit const Kernels table = {
    .name = kName,
    .channel_block = kWidth >= 8 ? kWidth : 8,
    .relu = relu,
    .relu_backward = relu_backward,
    .add = add,
    .mul = mul,
    .scale = scale,
    .mask_scale = mask_scale,
    .relu_dropout_backward = relu_dropout_backward,
    .sum_parts = sum_parts,
    .sgd = sgd,
    .adam = adam,
    .norm_sums = norm_sums,
    .norm_forward = norm_forward,
    .norm_backward_sums = norm_backward_sums,
    .norm_backward = norm_backward,
    .max_pool = max_pool,
    .max_pool_backward = max_pool_backward,
    .avg_pool = avg_pool,
    .avg_pool_backward = avg_pool_backward,
    .relu_index = relu_index,
    .drop_index = drop_index,
    .unblock = unblock,
    .unblock_bytes = unblock_bytes,
    .block = block,
    .block_bytes = block_bytes,
    .block_weights = block_weights,
    .to_bf16_pixels = to_bf16_pixels,
    .from_pixels = from_pixels,
    .pad = pad,
    .crop = crop,
    .winograd_weight_floats = winograd_weight_floats,
    .winograd_scratch_floats = winograd_scratch_floats,
    .winograd_weights = winograd_weights,
    .winograd_forward = winograd_forward,
    .plain_pooled_forward = plain_pooled_forward,
    .plain_pooled_scratch_floats = plain_pooled_scratch_floats,
    .plain_pooled_backward_weights = plain_pooled_backward_weights,
    .nonzero_scratch_bytes = nonzero_scratch_bytes,
    .nonzero_backward = nonzero_backward,
    .plain_backward_weights = plain_backward_weights,
    .small_weights_scratch_floats = small_weights_scratch_floats,
    .small_backward_weights = small_backward_weights,
    .tiled_conv_scratch_bytes = nullptr,
    .tiled_conv = nullptr,
    .paired_words = nullptr,
    .pair_images = nullptr,
    .tiled_weights_scratch_bytes = nullptr,
    .tiled_backward_weights = nullptr,
    .dropout_mask = dropout_mask,
    .linear_forward_scratch_bytes = linear_forward_scratch_bytes,
    .linear = linear,
    .linear_relu_dropout = linear_relu_dropout,
    .linear_scratch_bytes = linear_scratch_bytes,
    .linear_backward_data = linear_backward_data,
    .linear_backward_weights = linear_backward_weights,
    .sum_rows = sum_rows,
    .fma_peak = fma_peak,
};

}  // namespace duet::cpu::DUET_ISA
