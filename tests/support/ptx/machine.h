// The state of a grid that runs: what instructions act on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/kernel.h"
#include "tests/support/ptx/memory.h"

namespace duet_ptx {

/// Numbers for orders and noise (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t n = values.size(); n > 1; --n) std::swap(values[n - 1], values[next() % n]);
  }

 private:
  std::uint64_t state_;
};

enum class State : std::uint8_t { running, barrier, shuffle, left };

struct Grid;

struct Thread {
  std::uint64_t* slots = nullptr;
  std::uint8_t* defined = nullptr;
  std::uint8_t *local = nullptr, *local_initialised = nullptr;
  std::size_t next = 0;  // instruction
  State state = State::running;
  unsigned number = 0;  // in the block
  Grid* grid = nullptr;
};

struct Grid {
  const Kernel& kernel;
  const std::vector<Instruction>& code;
  Memory& memory;
  const Options& options;
  Findings& findings;
  Statistics& statistics;
  const std::uint8_t* arguments;
  Extent size, block_size;
  unsigned threads;  // in one block
  std::uint32_t launch;
  Random random;
  unsigned block = 0;          // that runs
  std::uint32_t epoch = 0;     // barriers that it passed, + 1
  std::uint64_t of_block = 0;  // instructions that ran
  bool given_up = false;
  std::vector<std::uint8_t> shared{}, shared_open{}, shared_initialised{};
  std::vector<Touched> shared_touched{};  // by words of four bytes

  std::uint32_t number_of(const Thread& t) const { return block * threads + t.number + 1; }
  void found(const std::string& kind, const Thread& t, const Instruction& i, const std::string& more = "") {
    findings.add(kind, kernel.name + " block " + std::to_string(block) + " thread " + std::to_string(t.number) +
                           " at \"" + i.text + "\" " + more);
  }
};

template <class T>
T get(const Thread& t, Slot slot) {
  T value;
  std::memcpy(&value, &t.slots[slot], sizeof value);
  return value;
}
template <class T>
void set(Thread& t, Slot slot, T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  t.slots[slot] = bits;
  t.defined[slot] = 1;
}

// --- access.cpp: loads and stores ---
void load_parameter(Thread& t, const Instruction& i);
void load_global(Thread& t, const Instruction& i);
void store_global(Thread& t, const Instruction& i);
void load_shared(Thread& t, const Instruction& i);
void store_shared(Thread& t, const Instruction& i);
void load_local(Thread& t, const Instruction& i);
void store_local(Thread& t, const Instruction& i);

}  // namespace duet_ptx
