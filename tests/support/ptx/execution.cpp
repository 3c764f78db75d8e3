// Runs grids: threads up to where they wait, shuffles of a warp, barriers of a block.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/kernel.h"
#include "tests/support/ptx/machine.h"
#include "tests/support/ptx/memory.h"

namespace duet_ptx {
namespace {

constexpr unsigned kWarp = 32;

void check_defined(Thread& t, const Instruction& i, Slot slot) {
  if (!t.defined[slot]) t.grid->found("undefined register", t, i, t.grid->kernel.slot_names[slot]);
}

/// Runs the thread up to a barrier, an instruction of the whole warp or its end.
void advance(Thread& t) {
  Grid& grid = *t.grid;
  std::uint64_t executed = 0;
  while (t.state == State::running) {
    if (grid.given_up) {
      t.state = State::left;
      break;
    }
    const Instruction& i = grid.code[t.next];
    ++executed;
    ++i.runs;
    if (i.guard != kNoSlot) {
      check_defined(t, i, i.guard);
      if (((t.slots[i.guard] & 1) != 0) == i.guard_not) {
        ++t.next;
        continue;
      }
    }
    for (const Slot slot : i.from) {
      if (slot == kNoSlot) break;
      check_defined(t, i, slot);
    }
    switch (i.flow) {
      case Flow::next:
        i.act(t, i);
        ++t.next;
        break;
      case Flow::branch: t.next = i.target; break;
      case Flow::leave: t.state = State::left; break;
      case Flow::barrier: t.state = State::barrier; break;
      case Flow::shuffle:
      case Flow::product: t.state = State::shuffle; break;
    }
    if (grid.of_block + executed > grid.options.most_instructions) {
      grid.found("endless", t, i);
      grid.given_up = true;
      t.state = State::left;
    }
  }
  grid.of_block += executed;
  grid.statistics.instructions += executed;
}

/// The lane that a lane reads, and whether its segment has that lane; c is shfl.sync's operand of that name.
std::pair<unsigned, bool> source_lane(ShuffleMode mode, unsigned lane, unsigned b, std::uint32_t c) {
  const unsigned clamp = c & 31, segment = (c >> 8) & 31;
  const unsigned top = (lane & segment) | (clamp & ~segment);
  unsigned source = lane;
  switch (mode) {
    case ShuffleMode::butterfly: source = lane ^ b; break;
    case ShuffleMode::down: source = lane + b; break;
    case ShuffleMode::up: return {lane - b, static_cast<int>(lane - b) >= static_cast<int>(top)};
    case ShuffleMode::index: source = (lane & segment) | (b & ~segment); break;
  }
  return {source, source <= top};
}

/// A warp of the block: threads [first, end).
struct Warp {
  Grid& grid;
  std::vector<Thread>& threads;
  unsigned first, end;

  /// The lanes that are at the leader's shuffle, and what they give.
  void gather(const Thread& leader, const Instruction& i, bool (&here)[kWarp], std::uint32_t (&values)[kWarp]) {
    const auto mask = get<std::uint32_t>(leader, i.from[3]);
    if (((mask >> (leader.number - first)) & 1) == 0) grid.found("shuffle by a lane outside its mask", leader, i);
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (((mask >> lane) & 1) == 0) continue;
      const unsigned n = first + lane;
      here[lane] = n < end && threads[n].state == State::shuffle && threads[n].next == leader.next &&
                   get<std::uint32_t>(threads[n], i.from[3]) == mask;
      if (here[lane])
        values[lane] = get<std::uint32_t>(threads[n], i.from[0]);
      else
        grid.found("divergent shuffle", leader, i, "lane " + std::to_string(lane) + " is not there");
    }
    here[leader.number - first] = true;
  }

  /// mma.m16n8k8: lane 4 g + t has a(g, t), a(g + 8, t), a(g, t + 4), a(g + 8, t + 4), b(t, g), b(t + 4, g), and of the
  /// sums (g, 2 t), (g, 2 t + 1) and those of row g + 8. Tensor cores leave out the lower 13 bits of a and b, and add
  /// the exact products up in an order of their own.
  void multiply(const Thread& leader, const Instruction& i) {
    bool here[kWarp] = {};
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const unsigned n = first + lane;
      here[lane] = n < end && threads[n].state == State::shuffle && threads[n].next == leader.next;
      if (!here[lane]) grid.found("divergent product", leader, i, "lane " + std::to_string(lane) + " is not there");
    }
    const auto operand = [&](unsigned lane, unsigned which) {
      if (!here[lane]) return 0.0;
      const std::uint32_t bits = get<std::uint32_t>(threads[first + lane], i.from[which]) & ~0x1fffu;
      return static_cast<double>(std::bit_cast<float>(bits));
    };
    std::array<std::array<float, 4>, kWarp> sums{};
    for (unsigned lane = 0; lane < kWarp; ++lane)
      for (unsigned which = 0; which < 4 && here[lane]; ++which) {
        const unsigned row = lane / 4 * 4, column = (lane % 4 * 2 + which % 2) * 4;
        double sum = get<float>(threads[first + lane], i.from[6 + which]);
        for (unsigned k = 0; k < 8; ++k)
          sum += operand(row + k % 4, k / 4 * 2 + which / 2) * operand(column + k % 4, 4 + k / 4);
        sums[lane][which] = static_cast<float>(sum);
      }
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (!here[lane]) continue;
      Thread& t = threads[first + lane];
      for (unsigned which = 0; which < 4; ++which) set(t, i.to[which], sums[lane][which]);
      ++t.next;
      t.state = State::running;
    }
    ++grid.statistics.products;
  }

  /// Does one shuffle or product; false: no thread waits for one.
  bool shuffle() {
    const auto begin = threads.begin() + first;
    const auto leader =
        std::find_if(begin, threads.begin() + end, [](const Thread& t) { return t.state == State::shuffle; });
    if (leader == threads.begin() + end) return false;
    const Instruction& i = grid.code[leader->next];
    if (i.flow == Flow::product) {
      multiply(*leader, i);
      return true;
    }
    bool here[kWarp] = {};
    std::uint32_t values[kWarp] = {};
    gather(*leader, i, here, values);
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (!here[lane]) continue;
      Thread& t = threads[first + lane];
      const auto [source, valid] =
          source_lane(i.mode, lane, get<std::uint32_t>(t, i.from[1]) & 31, get<std::uint32_t>(t, i.from[2]));
      const bool there = !valid || (source < kWarp && here[source]);
      if (!there) grid.found("shuffle from a lane that is not there", t, i);
      set(t, i.to[0], values[valid && there ? source : lane]);
      if (i.to[1] != kNoSlot) set<std::uint64_t>(t, i.to[1], valid ? 1 : 0);
      ++t.next;
      t.state = State::running;
    }
    ++grid.statistics.shuffles;
    return true;
  }

  /// Shuffles and runs on until all threads wait at a barrier or have left.
  void run() {
    while (shuffle())
      for (unsigned n = 0; n < end - first; ++n) {
        Thread& t = threads[first + (n + static_cast<unsigned>(grid.options.seed % kWarp)) % (end - first)];
        if (t.state == State::running) advance(t);
      }
  }
};

/// Lets the threads that wait at a barrier pass it; false: none does, the block is done.
bool pass_barrier(Grid& grid, std::vector<Thread>& threads) {
  const auto waits = [](const Thread& t) { return t.state == State::barrier; };
  const auto leader = std::find_if(threads.begin(), threads.end(), waits);
  if (leader == threads.end()) return false;
  for (Thread& t : threads) {
    if (!waits(t)) continue;
    const Instruction& i = grid.code[t.next];
    if (t.next != leader->next) grid.found("threads at different barriers", t, i);
    const auto warp = threads.begin() + t.number / kWarp * kWarp;
    const auto end = warp + std::min<std::ptrdiff_t>(kWarp, threads.end() - warp);
    if (!std::all_of(warp, end, waits)) grid.found("divergent barrier", t, i, "a thread of its warp has left");
  }
  if (!std::all_of(threads.begin(), threads.end(), waits))
    grid.found("barrier after whole warps have left", *leader, grid.code[leader->next]);
  ++grid.statistics.barriers;
  ++grid.epoch;
  for (Thread& t : threads) {
    if (!waits(t)) continue;
    ++t.next;
    t.state = State::running;
  }
  return true;
}

void reset_shared(Grid& grid) {
  std::fill(grid.shared.begin(), grid.shared.end(), std::uint8_t{0xff});  // NaN
  std::fill(grid.shared_initialised.begin(), grid.shared_initialised.end(), std::uint8_t{0});
  std::fill(grid.shared_touched.begin(), grid.shared_touched.end(), Touched{});
}

/// Gives a thread of the grid's current block its first state.
void start(Thread& t) {
  const Grid& grid = *t.grid;
  const Kernel& kernel = grid.kernel;
  const Extent size = grid.block_size, blocks = grid.size;
  const unsigned n = t.number, b = grid.block;
  t.next = 0;
  t.state = State::running;
  std::copy(kernel.initial.begin(), kernel.initial.end(), t.slots);
  std::copy(kernel.defined.begin(), kernel.defined.end(), t.defined);
  std::fill_n(t.local, kernel.local_bytes, std::uint8_t{0xff});  // NaN
  std::fill_n(t.local_initialised, kernel.local_bytes, std::uint8_t{0});
  const unsigned values[kSpecialRegisters] = {
      n % size.x,   n / size.x % size.y,     n / size.x / size.y,     size.x,   size.y,   size.z,
      b % blocks.x, b / blocks.x % blocks.y, b / blocks.x / blocks.y, blocks.x, blocks.y, blocks.z};
  for (std::size_t s = 0; s < kSpecialRegisters; ++s)
    if (kernel.special[s] != kNoSlot) t.slots[kernel.special[s]] = values[s];
}

std::vector<unsigned> ascending(std::size_t count) {
  std::vector<unsigned> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = static_cast<unsigned>(i);
  return order;
}

void run_block(Grid& grid, std::vector<Thread>& threads, std::vector<unsigned>& order) {
  grid.epoch = 1;
  grid.of_block = 0;
  reset_shared(grid);
  for (Thread& t : threads) start(t);
  do {
    if (grid.options.seed != 0) grid.random.shuffle(order);
    for (const unsigned n : order)
      if (threads[n].state == State::running) advance(threads[n]);
    for (unsigned first = 0; first < grid.threads; first += kWarp)
      Warp{grid, threads, first, std::min(first + kWarp, grid.threads)}.run();
  } while (pass_barrier(grid, threads));
}

/// What a launch may be, by CUDA's limits and the kernel's launch bounds.
void check_launch(const Kernel& kernel, Extent size, Extent block, std::size_t dynamic_shared, Findings& findings) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const std::size_t blocks = std::size_t{size.x} * size.y * size.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || blocks == 0 || size.x > 0x7fffffff || size.y > 65535 ||
      size.z > 65535)
    findings.add("invalid configuration", kernel.name);
  if (kernel.most_threads != 0 && threads > kernel.most_threads)
    findings.add("more threads than launch bounds", kernel.name);
  if (kernel.shared_needed + dynamic_shared > 48 * 1024) findings.add("more than 48 KiB of shared memory", kernel.name);
  if (blocks * threads >= 0xffffffff) findings.add("grid too large for the checks", kernel.name);
}

/// Opens the variables of shared memory; what lies between them stays closed.
void lay_out_shared(Grid& grid, std::size_t dynamic_shared) {
  const std::size_t bytes = grid.kernel.shared_bytes + dynamic_shared + 16;
  grid.shared.resize(bytes);
  grid.shared_open.assign(bytes, 0);
  grid.shared_initialised.resize(bytes);
  grid.shared_touched.resize(bytes / 4 + 2);
  for (const SharedVariable& variable : grid.kernel.shared)
    std::fill_n(grid.shared_open.begin() + static_cast<std::ptrdiff_t>(variable.at),
                variable.dynamic ? dynamic_shared : variable.bytes, std::uint8_t{1});
}

}  // namespace

void Findings::add(const std::string& kind, const std::string& text) {
  if (counts[kind]++ < 3) texts.push_back(kind + ": " + text);
}

bool run(const Kernel& kernel, Extent size, Extent block, std::size_t dynamic_shared, const void* arguments,
         Memory& memory, const Options& options, Findings& findings, Statistics& statistics) {
  static std::atomic<std::uint32_t> launches = 0;
  check_launch(kernel, size, block, dynamic_shared, findings);
  const unsigned count = block.x * block.y * block.z;
  Grid grid{kernel,
            options.contract ? kernel.contracted : kernel.code,
            memory,
            options,
            findings,
            statistics,
            static_cast<const std::uint8_t*>(arguments),
            size,
            block,
            count,
            ++launches,
            Random(options.seed)};
  lay_out_shared(grid, dynamic_shared);

  const std::size_t slots = kernel.initial.size(), local = kernel.local_bytes;
  std::vector<std::uint64_t> values(slots * count);
  std::vector<std::uint8_t> defined(slots * count), own(local * count), own_initialised(local * count);
  std::vector<Thread> threads;
  for (unsigned n = 0; n < count; ++n)
    threads.push_back({values.data() + slots * n, defined.data() + slots * n, own.data() + local * n,
                       own_initialised.data() + local * n, 0, State::running, n, &grid});
  std::vector<unsigned> order = ascending(count);
  std::vector<unsigned> blocks = ascending(std::size_t{size.x} * size.y * size.z);
  if (options.seed != 0) grid.random.shuffle(blocks);
  ++statistics.launches;
  statistics.blocks += blocks.size();
  statistics.threads += blocks.size() * count;
  for (const unsigned number : blocks) {
    grid.block = number;
    run_block(grid, threads, order);
    if (grid.given_up) return false;
  }
  return true;
}

const std::vector<Parameter>& parameters(const Kernel& kernel) { return kernel.parameters; }
std::size_t parameter_bytes(const Kernel& kernel) { return kernel.parameter_bytes; }

std::pair<std::size_t, std::size_t> covered(const Kernel& kernel) {
  const auto ran = [](const Instruction& i) { return i.runs != 0; };
  return {static_cast<std::size_t>(std::count_if(kernel.code.begin(), kernel.code.end(), ran)), kernel.code.size()};
}
std::vector<std::string> not_covered(const Kernel& kernel) {
  std::vector<std::string> texts;
  for (const Instruction& i : kernel.code)
    if (i.runs == 0) texts.push_back(i.text);
  return texts;
}

}  // namespace duet_ptx
