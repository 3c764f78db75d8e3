// What each instruction does, by its name and types.
#pragma once

#include <string>
#include <vector>

#include "tests/support/ptx/kernel.h"

namespace duet_ptx {

/// The action of an instruction on registers, "mad.lo.s32" as {"mad", "lo", "s32"}; null: it is not interpreted.
Action find_action(const std::vector<std::string>& opcode);
/// mov between a register and a vector of two halves.
Action find_pack(bool packs, const std::string& type);
/// Whether ptxas may fuse it with another: f32 or f64 arithmetic without a rounding mode.
Fusible fusible(const std::vector<std::string>& opcode);
/// The fma of a product (from[0], from[1]) and a term (from[2]): their sum, product - term, or term - product.
Action fused_sum(bool is_double);
Action fused_difference(bool is_double, bool product_first);
void do_nothing(Thread& t, const Instruction& i);

}  // namespace duet_ptx
