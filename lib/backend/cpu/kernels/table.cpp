#include "lib/backend/cpu/kernels/tables.h"
#include "lib/backend/cpu/kernels/vec.h"

namespace duet::cpu::DUET_ISA {

constinit const Kernels table = {
    .name = kName,
    .channel_block = kWidth >= 8 ? kWidth : 8,
    .relu = relu,
    .relu_backward = relu_backward,
    .add = add,
    .scale = scale,
    .mask_scale = mask_scale,
    .relu_dropout_backward = relu_dropout_backward,
    .sum_parts = sum_parts,
    .sgd = sgd,
    .adam = adam,
    .max_pool = max_pool,
    .max_pool_backward = max_pool_backward,
    .relu_index = relu_index,
    .drop_index = drop_index,
    .unblock = unblock,
    .unblock_bytes = unblock_bytes,
    .block = block,
    .block_bytes = block_bytes,
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
