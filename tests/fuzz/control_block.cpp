// Collectives and messages over memory in which the other rank writes anything.
#include "ddp/shm/control_block.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/shm/shared_segment.h"
#include "ddp/shm/shm_collectives.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/store/store.h"
#include "ddp/transport/message_receiver.h"
#include "ddp/transport/transport.h"
#include "tests/fuzz/input.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

// Memory is limited: sizes that the other rank announces are not trusted.
void* operator new(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{64} << 20;
  void* const memory = bytes > kMost ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// The runtime's own kinds of new come back to these.
extern "C" const char* __asan_default_options() { return "alloc_dealloc_mismatch=0"; }

namespace {

constexpr std::size_t kArenaBytes = 64 << 10;
constexpr Milliseconds kTimeout{60'000};

/// Rank 0 of two, and the memory that both map.
struct Host {
  Host() {
    std::thread other([&] {
      ControlBlock peer(ControlBlock::make_segment(store, "control_block", 1, 2, kTimeout), 1, 2);
      peer.ring_memory(1, 0);
      const SharedSegment buffers(store, "arena", 1, 2, 2 * kArenaBytes, kTimeout);
    });
    auto segment = ControlBlock::make_segment(store, "control_block", 0, 2, kTimeout);
    memory = segment->data();
    control_block = std::make_shared<ControlBlock>(std::move(segment), 0, 2);
    arena = {std::make_shared<SharedSegment>(store, "arena", 0, 2, 2 * kArenaBytes, kTimeout), kArenaBytes};
    other.join();
    staging = control_block->staging(0);
  }
  std::size_t cell_bytes() const { return static_cast<std::size_t>(staging - memory) / 2; }
  /// As new, except the staged messages.
  void clear() {
    if (control_block->staging(0) != staging) control_block->turn_half();
    std::memset(memory, 0, 2 * cell_bytes());
    for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)})
      std::memset(control_block->ring_memory(from, to), 0, ByteRing::kBytes);
  }
  /// How often a rank has posted, first in its cell.
  std::atomic<std::uint32_t>& clock(int rank) const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory + static_cast<std::size_t>(rank) * cell_bytes());
  }

  MemoryStore store;
  std::byte* memory = nullptr;
  std::byte* staging = nullptr;
  std::shared_ptr<ControlBlock> control_block;
  SharedArena arena;
};

/// What rank 0 does, step by step, and what is done to it.
class Run {
 public:
  Run(Host& host, Input& input)
      : host_(host),
        input_(input),
        collectives_(std::make_unique<ShmTransport>(host.control_block)),
        messages_(collectives_.transport()) {
    collectives_.add_arena(host.arena);
  }

  void step() {
    switch (input_.take<std::uint8_t>() % 9) {
      case 0: return damage(host_.memory + host_.cell_bytes(), host_.cell_bytes());
      case 1: return damage(host_.control_block->ring_memory(1, 0), 256);
      case 2: return damage(host_.control_block->ring_memory(0, 1), 256);
      case 3: return host_.clock(1).store(host_.clock(0) + input_.take<std::uint8_t>());
      case 4: return begin();
      case 5: return finish();
      case 6: return send();
      case 7: return arrive();
      default:
        if (working_) working_ = accepted([&] { messages_.progress(); });
        return;
    }
  }

 private:
  void damage(std::byte* begin, std::size_t bytes) {
    const std::size_t at = input_.below(bytes);
    const std::string text = input_.text();
    std::memcpy(begin + at, text.data(), std::min(text.size(), bytes - at));
  }

  /// Memory of this rank's own, or in the arena.
  Buffer buffer(std::int64_t count, DType dtype, bool shared) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
    if (shared && bytes <= kArenaBytes) return {host_.arena.of(0), count, dtype};
    buffers_.emplace_back(bytes);
    return {buffers_.back().data(), count, dtype};
  }

  void begin() {
    if (call_ || !working_) return;
    Call call;
    call.op = input_.pick({Collective::broadcast, Collective::all_reduce, Collective::reduce, Collective::gather,
                           Collective::scatter, Collective::all_gather, Collective::reduce_scatter,
                           Collective::all_to_all, Collective::barrier});
    const bool shared = input_.flag(), wide = input_.flag();
    const auto count = static_cast<std::int64_t>(input_.below(600)) * (wide ? 512 : 1);
    const DType dtype = input_.pick({DType::f32, DType::u8, DType::i64, DType::bf16});
    const bool to_all = call.op == Collective::scatter || call.op == Collective::reduce_scatter;
    const bool from_all = call.op == Collective::gather || call.op == Collective::all_gather;
    const bool both = call.op == Collective::all_to_all;
    call.root = static_cast<int>(input_.below(2));
    call.reduce = input_.pick({ReduceOp::sum, ReduceOp::max});
    if (call.op != Collective::barrier) call.in = buffer(count * (to_all || both ? 2 : 1), dtype, shared);
    if (to_all || from_all || both) call.out = buffer(count * (from_all || both ? 2 : 1), dtype, false);
    call_ = call;
    collectives_.begin(call, sequence_);
    if (!input_.flag()) host_.control_block->posted_call(1, sequence_) = host_.control_block->posted_call(0, sequence_);
  }

  void finish() {
    if (!call_) return;
    const Call call = *std::exchange(call_, {});
    working_ = accepted([&] { collectives_.finish(call, sequence_, Clock::now(), false); });
    ++sequence_;
  }

  MessageHead head() { return {input_.below(3), 1 + input_.below(800)}; }

  void send() {
    if (!working_) return;
    const MessageHead one = head();
    const Buffer data = buffer(static_cast<std::int64_t>(one.bytes), DType::u8, false);
    const bool sends = input_.flag();
    working_ = accepted([&] {
      sends ? messages_.send(1, one.tag, data.data, one.bytes) : messages_.receive(1, one.tag, data.data, one.bytes);
    });
  }

  /// The other rank writes a message, or some bytes.
  void arrive() {
    MessageHead one = head();
    if (input_.flag()) one.bytes = input_.take<std::uint64_t>();
    std::string text(reinterpret_cast<const char*>(&one), sizeof one);
    text.resize(text.size() - input_.below(8) / 7);
    text += input_.text();
    accepted([&] { ByteRing(host_.control_block->ring_memory(1, 0)).write(std::as_bytes(std::span(text))); });
    std::byte taken[512];
    accepted([&] { ByteRing(host_.control_block->ring_memory(0, 1)).read(taken); });
  }

  Host& host_;
  Input& input_;
  std::deque<std::vector<std::byte>> buffers_;
  ShmCollectives collectives_;
  Transport& messages_;
  std::optional<Call> call_;
  std::uint64_t sequence_ = 0;
  bool working_ = true;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Host host;
  host.clear();
  Input input(data, size);
  Run run(host, input);
  for (int i = 0; i < 40 && !input.empty(); ++i) run.step();
  return 0;
}
