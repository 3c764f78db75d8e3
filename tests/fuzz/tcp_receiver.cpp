// The stream of bytes from a peer over TCP that writes anything, and receives in any order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "ddp/transport/message_receiver.h"
#include "tests/fuzz/input.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_fuzz;

bool receives = false;  // what is allocated now is the receiver's

// What the peer announces is not set aside for it.
void* operator new(std::size_t bytes) {
  expect(!receives || bytes <= EarlyData::kPieceBytes, "memory for what has arrived, not for what was announced");
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// The runtime's own kinds of new come back to these.
extern "C" const char* __asan_default_options() { return "alloc_dealloc_mismatch=0"; }

namespace {

constexpr std::uint64_t kTags = 4;

struct Watch {
  Watch() { receives = true; }
  ~Watch() { receives = false; }
};

/// A message that has arrived whole.
struct Sent {
  std::uint64_t tag = 0;
  std::string data;
};

class Run {
 public:
  explicit Run(Input& input) : input_(input) {}

  void step() {
    const int what = input_.take<std::uint8_t>() % 32;
    switch (what) {
      case 1: return feed(input_.text());
      case 2: receiver_.keep_parked(); return pump();
      case 3: return feed(message(large()));
      case 4: return feed(head(input_.take<std::uint8_t>() % kTags, input_.take<std::uint64_t>()));
      default: return what % 2 == 0 ? receive() : feed(message(input_.below(64)));
    }
  }

  /// What was received is what was sent first under its tag.
  void check() {
    const std::vector<Sent> sent = all_sent();
    std::vector<bool> taken(sent.size(), false);
    for (const StreamMessage& one : messages_) {
      expect(!(one.done && !one.failure.empty()), "a message that is done or has failed");
      std::size_t first = 0;
      while (first < sent.size() && (taken[first] || sent[first].tag != one.head.tag)) ++first;
      if (!one.done) {
        expect(stopped_ || !one.failure.empty() || first == sent.size(), "no message that came and was not received");
        if (one.failure.empty() || first == sent.size()) continue;
        taken[first] = true;
        continue;
      }
      expect(first < sent.size() && sent[first].data.size() == one.head.bytes, "a message that was sent");
      expect(std::memcmp(sent[first].data.data(), one.data, sent[first].data.size()) == 0, "the data that were sent");
      taken[first] = true;
    }
  }
  void stop() {
    stopped_ = true;
    receiver_.stop("the end");
    for (const StreamMessage& one : messages_) expect(one.ended(), "no message without an end");
  }

 private:
  static std::string head(std::uint64_t tag, std::uint64_t bytes) {
    const MessageHead head{tag, bytes};
    return {reinterpret_cast<const char*>(&head), sizeof head};
  }
  std::string message(std::size_t bytes) {
    std::string data(bytes, static_cast<char>(++filling_));
    return head(input_.take<std::uint8_t>() % kTags, bytes) + data;
  }

  /// A size of some pieces.
  std::size_t large() { return input_.below(3) * EarlyData::kPieceBytes + input_.below(4); }

  void receive() {
    const std::uint64_t tag = input_.take<std::uint8_t>() % kTags;
    const std::size_t bytes = input_.take<std::uint8_t>() % 32 == 3 ? large() : input_.below(64);
    if (bytes == 0) return;
    memory_.emplace_back(bytes);
    messages_.push_back({.peer = 1, .head = {tag, bytes}, .data = memory_.back().data()});
    if (!receiver_.take_early(messages_.back())) receiver_.expect(messages_.back());
    pump();
  }

  /// More of the stream, which is read where no message is parked.
  void feed(const std::string& bytes) {
    stream_ += bytes;
    pump();
  }
  void pump() {
    const std::size_t most = std::max(1 + input_.below(64), (stream_.size() - read_) / 16);
    const Watch watch;
    while (read_ < stream_.size() && !receiver_.parked()) {
      const std::span<std::byte> room = receiver_.room();
      const std::size_t bytes = std::min({room.size(), stream_.size() - read_, most});
      expect(bytes > 0, "room for what arrives");
      std::memcpy(room.data(), stream_.data() + read_, bytes);
      read_ += bytes;
      receiver_.advance(bytes);
    }
  }

  std::vector<Sent> all_sent() const {
    std::vector<Sent> all;
    for (std::size_t at = 0; at + sizeof(MessageHead) <= read_;) {
      MessageHead head;
      std::memcpy(&head, stream_.data() + at, sizeof head);
      at += sizeof head;
      if (head.bytes == 0 || head.bytes > read_ - at) break;
      all.push_back({head.tag, stream_.substr(at, head.bytes)});
      at += head.bytes;
    }
    return all;
  }

  Input& input_;
  MessageReceiver receiver_;
  std::deque<StreamMessage> messages_;
  std::deque<std::vector<std::byte>> memory_;
  std::string stream_;
  std::size_t read_ = 0;
  int filling_ = 0;
  bool stopped_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Run run(input);
  const bool good = accepted([&] {
    for (int i = 0; i < 30 && !input.empty(); ++i) run.step();
  });
  if (good) run.check();
  run.stop();
  return 0;
}
