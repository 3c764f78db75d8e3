// A kernel as the interpreter runs it: instructions on slots. Registers, constants and special registers are slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/ptx/interpreter.h"

namespace duet_ptx {

struct Thread;
struct Instruction;
using Action = void (*)(Thread&, const Instruction&);

using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = ~Slot{0};

/// product: of matrices, by a whole warp.
enum class Flow : std::uint8_t { next, branch, leave, barrier, shuffle, product };
enum class ShuffleMode : std::uint8_t { butterfly, down, up, index };
/// Arithmetic without a rounding mode, of which ptxas may make one fma.
enum class Fusible : std::uint8_t { no, product, sum, difference };

struct Instruction {
  Action act = nullptr;
  Flow flow = Flow::next;
  ShuffleMode mode = ShuffleMode::butterfly;
  Fusible fusible = Fusible::no;
  bool guard_not = false, constant_cache = false, is_signed = false;
  std::uint8_t count = 1;  // elements of a vector that is loaded or stored
  std::uint8_t width = 0;  // bytes of each
  Slot guard = kNoSlot;    // a predicate
  Slot to[4] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot};
  Slot from[10] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot};
  std::uint64_t offset = 0;  // added to an address; negative ones wrap
  std::size_t target = 0;    // the instruction to which a branch jumps
  std::string text;
  mutable std::uint64_t runs = 0;

  std::size_t bytes() const { return std::size_t{width} * count; }
};

struct SharedVariable {
  std::size_t at, bytes;
  bool dynamic;  // its size comes with the launch
};

/// tid, ntid, ctaid and nctaid, with three dimensions each.
inline constexpr std::size_t kSpecialRegisters = 12;

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t shared_bytes = 0;   // as laid out here, with gaps
  std::size_t shared_needed = 0;  // as a GPU lays it out
  std::size_t local_bytes = 0;    // for each thread
  unsigned most_threads = 0;      // .maxntid; 0: none is given
  std::vector<Instruction> code, contracted;
  std::vector<std::uint64_t> initial;  // values of the slots
  std::vector<std::uint8_t> defined;   // which of them have one
  std::vector<std::string> slot_names;
  Slot special[kSpecialRegisters];
  std::vector<SharedVariable> shared;
};

/// The code with every product fused that ptxas may fuse.
std::vector<Instruction> contract(const Kernel& kernel);

}  // namespace duet_ptx
