// The grid executor. Blocks run one after the other, in random order. The threads of a block run in one loop, in random
// order, as long as none reaches a barrier or shuffle; the first that does goes on as one of many: each thread of the
// block that did not run yet gets a std::thread of a pool. So kernels without barriers cost little, and those with
// barriers have a real thread per CUDA thread.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/threads.h"
#include "tests/support/fake_cuda/sim.h"

constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim{1, 1, 1}, gridDim{1, 1, 1};

namespace duet_sim {
namespace {

constexpr unsigned kLanes = 32;

/// A barrier like std::barrier, without its yields: with more threads than cores they took most of a block's time.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads), missing_(threads) {}
  void arrive_and_wait() {
    const std::uint32_t phase = phase_;
    if (arrive()) return;
    while (phase_ == phase) duet::futex_wait(phase_, phase);
  }
  void arrive_and_drop() {
    --threads_;
    arrive();
  }

 private:
  bool arrive() {
    if (--missing_ != 0) return false;
    missing_ = threads_.load();
    ++phase_;
    duet::futex_wake(phase_);
    return true;
  }
  std::atomic<int> threads_, missing_;
  std::atomic<std::uint32_t> phase_ = 0;
};

struct Warp {
  struct Slot {
    std::uint64_t bits = 0;
    unsigned turn = 0;
  };
  std::optional<Barrier> meet;
  // Two sets in turn, so that one barrier per shuffle is enough: a set is written again only after all threads have
  // passed the next barrier.
  Slot slots[2][kLanes];
};

struct Block {
  Block(const std::function<void()>& kernel, const Op& work, uint3 place, dim3 threads, dim3 blocks)
      : call(&kernel), op(&work), index(place), size(threads), grid(blocks) {}

  const std::function<void()>* call;
  const Op* op;
  uint3 index;
  dim3 size, grid;
  std::vector<unsigned> order;          // in which its threads run
  std::size_t position = 0, first = 0;  // in `order`: of the thread that runs, and of the first of many
  bool parallel = false;
  std::atomic<bool> failed = false;
  std::optional<Barrier> all;
  std::vector<Warp> warps;
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t running = 0;  // threads of the pool
};

thread_local Block* block = nullptr;
thread_local unsigned self = 0, turns = 0;

void become(Block& owner, unsigned thread) {
  block = &owner;
  self = thread;
  turns = 0;
  const dim3 d = owner.size;
  threadIdx = {thread % d.x, thread / d.x % d.y, thread / d.x / d.y};
  blockIdx = owner.index;
  blockDim = d;
  gridDim = owner.grid;
}

/// Threads at a barrier no longer wait for this thread.
void leave() {
  block->all->arrive_and_drop();
  block->warps[self / kLanes].meet->arrive_and_drop();
}

// Kernels run one at a time, so the pool works for one block: its threads take the numbers 1 to `left` of those that
// did not run yet. They are never ended: they wait when the process ends.
std::atomic<std::uint32_t> left = 0;
Block* served = nullptr;
std::size_t pool_size = 0;

void work() {
  for (;;) {
    duet::futex_wait(left, 0);
    std::uint32_t number = left;
    if (number == 0 || !left.compare_exchange_strong(number, number - 1)) continue;
    Block& owner = *served;
    become(owner, owner.order[owner.first + number]);
    current_op() = owner.op;
    if (!guarded(*owner.call)) owner.failed = true;
    leave();
    current_op() = nullptr;
    std::lock_guard lock(owner.mutex);
    if (--owner.running == 0) owner.ended.notify_one();
  }
}

/// From here on, the block's other threads that did not run yet run concurrently with this one.
void go_parallel() {
  Block& b = *block;
  b.parallel = true;
  b.first = b.position;
  const std::size_t threads = b.order.size() - b.first, others = threads - 1;
  b.all.emplace(static_cast<int>(threads));
  b.warps = std::vector<Warp>((b.order.size() + kLanes - 1) / kLanes);
  std::vector<int> lanes(b.warps.size());
  for (std::size_t i = b.first; i < b.order.size(); ++i) ++lanes[b.order[i] / kLanes];
  for (std::size_t i = 0; i < lanes.size(); ++i) b.warps[i].meet.emplace(lanes[i]);
  b.running = others;
  for (; pool_size < others; ++pool_size) std::thread(work).detach();
  served = &b;
  left = static_cast<std::uint32_t>(others);
  duet::futex_wake(left, static_cast<int>(others));
}

void wait_for_others(Block& b) {
  leave();
  std::unique_lock lock(b.mutex);
  if (b.ended.wait_for(lock, patience(), [&] { return b.running == 0; })) return;
  report("deadlock: %zu threads of a block of %s wait at a barrier that others never reach", b.running, name_of(*b.op));
  std::abort();  // their stacks cannot be given back
}

std::vector<unsigned> random_order(std::size_t count) {
  const std::lock_guard lock(state().mutex);
  const std::vector<std::int64_t> order = state().random.randperm(static_cast<std::int64_t>(count));
  return {order.begin(), order.end()};
}

void run_block(Block& b) {
  const bool threads = setting("DUET_SIM_THREADS", 0) != 0 && b.order.size() > 1;
  const bool good = guarded([&] {
    for (b.position = 0; b.position < b.order.size() && !b.parallel; ++b.position) {
      become(b, b.order[b.position]);
      if (threads) go_parallel();
      (*b.call)();
    }
  });
  if (!good) b.failed = true;
  if (b.parallel) wait_for_others(b);
}

}  // namespace

void block_barrier() {
  if (!block->parallel) go_parallel();
  block->all->arrive_and_wait();
}

unsigned lane() { return self % kLanes; }

std::uint64_t shuffle(unsigned mask, std::uint64_t bits, unsigned source) {
  if (!block->parallel) go_parallel();
  if (mask != ~0u) {
    report("%s names part of a warp (mask %08x): not simulated", name_of(*block->op), mask);
    block->failed = true;
  }
  Warp& warp = block->warps[self / kLanes];
  const unsigned turn = ++turns;
  warp.slots[turn & 1][lane()] = {bits, turn};
  warp.meet->arrive_and_wait();
  const Warp::Slot& slot = warp.slots[turn & 1][source];
  return slot.turn == turn ? slot.bits : ~std::uint64_t{0};
}

void run_grid(dim3 grid, dim3 size, const std::function<void()>& call, const Op& op) {
  for (unsigned number : random_order(std::size_t{grid.x} * grid.y * grid.z)) {
    Block b(call, op, {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y}, size, grid);
    b.order = random_order(std::size_t{size.x} * size.y * size.z);
    run_block(b);
    if (b.failed) return fail_current_op(cudaErrorIllegalAddress);
  }
}

namespace {

/// Enqueues a kernel; `run` is its grid.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::vector<PointerArgument> pointers,
                   std::function<void()> run) {
  return call("cudaLaunchKernelEx", config.stream, [&](Lock&, cudaStream_t stream) {
    const dim3 grid = config.gridDim, size = config.blockDim;
    const std::size_t threads = std::size_t{size.x} * size.y * size.z;
    if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y - 1 >= 65535 || grid.z - 1 >= 65535 || size.z > 64)
      return cudaErrorInvalidConfiguration;
    if (config.dynamicSmemBytes != 0 || config.numAttrs != 0) return cudaErrorNotSupported;
    Op op("kernel");
    op.kernel = kernel;
    if (stream->device != current_device()) {
      report("%s is launched on device %d in a stream of another", name_of(op), current_device());
      return cudaErrorInvalidResourceHandle;
    }
    op.pointers = std::move(pointers);
    op.body = [run = std::move(run)] {
      if (const int error = injected("kernel", cudaErrorLaunchFailure))
        return fail_current_op(static_cast<cudaError_t>(error));
      run();
    };
    return submit(config.stream, op);
  });
}

}  // namespace

cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body,
                          std::vector<PointerArgument> pointers) {
  return launch(config, kernel, std::move(pointers),
                [config, body = std::move(body)] { run_grid(config.gridDim, config.blockDim, body, *current_op()); });
}

cudaError_t launch_grid(const cudaLaunchConfig_t& config, const void* kernel,
                        std::function<void(std::uint64_t seed)> body, std::vector<PointerArgument> pointers) {
  return launch(config, kernel, std::move(pointers), [body = std::move(body)] {
    std::uint64_t seed;
    {
      const std::lock_guard lock(state().mutex);
      seed = random_number(std::size_t{1} << 30);
    }
    if (!guarded([&] { body(seed); })) fail_current_op(cudaErrorIllegalAddress);
  });
}

}  // namespace duet_sim
