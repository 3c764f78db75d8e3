// What can be told from a kernel's code: products that ptxas may fuse, and parameters that are pointers.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/ptx/instructions.h"
#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/kernel.h"
#include "tests/support/ptx/machine.h"

namespace duet_ptx {
namespace {

/// Counts for each slot how often it is written and read, and keeps where it was written last.
struct Uses {
  explicit Uses(const Kernel& kernel)
      : definitions(kernel.initial.size()), reads(kernel.initial.size()), defined_at(kernel.initial.size()) {
    for (std::size_t n = 0; n < kernel.code.size(); ++n) {
      const Instruction& i = kernel.code[n];
      for (const Slot slot : i.to)
        if (slot != kNoSlot) ++definitions[slot], defined_at[slot] = n;
      for (const Slot slot : i.from)
        if (slot != kNoSlot) ++reads[slot];
    }
  }
  std::vector<int> definitions, reads;
  std::vector<std::size_t> defined_at;
};

/// The instruction whose product operand `side` of a sum is, if it may become part of it.
std::optional<std::size_t> product_of(const std::vector<Instruction>& code, const Uses& uses, const Instruction& sum,
                                      int side) {
  const Slot slot = sum.from[side];
  if (uses.definitions[slot] != 1 || uses.reads[slot] != 1) return std::nullopt;
  const Instruction& product = code[uses.defined_at[slot]];
  const bool fits = product.fusible == Fusible::product && product.width == sum.width && product.guard == kNoSlot &&
                    uses.definitions[product.from[0]] <= 1 && uses.definitions[product.from[1]] <= 1;
  return fits ? std::optional(uses.defined_at[slot]) : std::nullopt;
}

}  // namespace

// ptxas may, and often does, make one fma of a product and a sum or a difference, both without a rounding mode. Here it
// is done wherever the product has no other use and all registers have one definition.
std::vector<Instruction> contract(const Kernel& kernel) {
  const Uses uses(kernel);
  std::vector<Instruction> code = kernel.code;
  for (Instruction& i : code) {
    if (i.fusible != Fusible::sum && i.fusible != Fusible::difference) continue;
    for (const int side : {0, 1}) {
      const auto at = product_of(code, uses, i, side);
      if (!at) continue;
      Instruction& product = code[*at];
      i.act = i.fusible == Fusible::sum ? fused_sum(i.width == 8) : fused_difference(i.width == 8, side == 0);
      i.from[2] = i.from[1 - side];
      i.from[0] = product.from[0];
      i.from[1] = product.from[1];
      i.fusible = Fusible::no;
      product.act = &do_nothing;
      product.fusible = Fusible::no;
      product.to[0] = product.from[0] = product.from[1] = kNoSlot;
      break;
    }
  }
  return code;
}

std::size_t fusible_products(const Kernel& kernel) {
  std::size_t count = 0;
  for (std::size_t n = 0; n < kernel.code.size(); ++n)
    count += kernel.code[n].fusible == Fusible::product && kernel.contracted[n].fusible == Fusible::no;
  return count;
}

// A pointer is loaded from the parameters and becomes an address of global memory.
std::vector<PointerParameter> pointer_parameters(const Kernel& kernel) {
  const Uses uses(kernel);
  std::vector<PointerParameter> found;
  for (const Instruction& i : kernel.code) {
    if (i.text.find(" cvta.to.global") == std::string::npos || uses.definitions[i.from[0]] != 1) continue;
    const Instruction& load = kernel.code[uses.defined_at[i.from[0]]];
    if (load.act != &load_parameter || load.from[0] != kNoSlot || load.width != sizeof(void*)) continue;
    const auto element = static_cast<std::size_t>(std::find(load.to, load.to + load.count, i.from[0]) - load.to);
    const std::size_t at = load.offset + element * load.width;
    const auto parameter = std::find_if(kernel.parameters.begin(), kernel.parameters.end(),
                                        [&](const Parameter& p) { return at >= p.offset && at < p.offset + p.bytes; });
    found.push_back(
        {static_cast<std::size_t>(parameter - kernel.parameters.begin()), at, parameter->bytes == load.width});
  }
  return found;
}

}  // namespace duet_ptx
