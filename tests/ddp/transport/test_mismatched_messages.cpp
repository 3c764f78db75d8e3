// Ranks that disagree about a message.
#include <chrono>
#include <cstdint>
#include <exception>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/shm/shm_transport.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// What rank 0 sends with one tag, and what rank 1 receives.
struct Case {
  const char* title;
  std::vector<Buffer> sent, wanted;
  const char* text;
};

double memory[64];  // of what is sent
double taken[64];   // of what is received

Buffer of(std::int64_t count, DType dtype = DType::f32) { return {memory, count, dtype}; }
Buffer to(std::int64_t count, DType dtype = DType::f32) { return {taken, count, dtype}; }

std::vector<Case> cases() {
  return {{"fewer elements are expected", {of(8)}, {to(4)}, "rank 0 sends 8 f32, expected 4 f32"},
          {"more elements are expected", {of(4)}, {to(8)}, "rank 0 sends 4 f32, expected 8 f32"},
          {"no element is expected", {of(4)}, {to(0)}, "rank 0 sends 4 f32, expected 0 f32"},
          {"no element is sent", {of(0)}, {to(4)}, "rank 0 sends 0 f32, expected 4 f32"},
          {"another dtype of the same size", {of(8)}, {to(8, DType::i32)}, "rank 0 sends 8 f32, expected 8 i32"},
          {"another dtype and size", {of(8, DType::f64)}, {to(8)}, "rank 0 sends 8 f64, expected 8 f32"},
          {"another order", {of(8), of(4)}, {to(4), to(8)}, "rank 0 sends 8 f32, expected 4 f32"}};
}

/// Rank 0 sends, rank 1 receives, and both go on with a barrier. With `early`, what is sent is there before recv().
std::vector<std::exception_ptr> disagree(Over over, const Case& one, bool early) {
  std::latch posted(early ? 0 : 1);
  return try_ranks(over, 2, {.timeout = 60s, .leave_timeout = 10ms}, [&](ProcessGroup& group) {
    float flag = 0;
    std::vector<Work> works;
    std::string failed;
    try {
      if (group.rank() == 0) {
        posted.wait();
        for (const Buffer& buffer : one.sent) works.push_back(group.send(buffer, 1));
        if (early) group.send({&flag, 1, DType::f32}, 1, 7).wait();
      } else {
        if (early) group.recv({&flag, 1, DType::f32}, 0, 7).wait();
        for (const Buffer& buffer : one.wanted) works.push_back(group.recv(buffer, 0));
        posted.count_down(early ? 0 : 1);
      }
      for (Work& work : works) work.wait();
    } catch (const CommError& error) {
      failed = error.what();
    }
    try {
      group.barrier().wait();
    } catch (const CommError& error) {
      throw CommError(concat(failed, " | ", error.what()));
    }
  });
}

}  // namespace

TEST_CASE("ranks that disagree about a message: both groups fail, and both ranks are named") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  for (const bool early : {false, true})
    for (const Case& one : cases()) {
      INFO(one.title << (early ? ", sent before recv()" : ", sent after recv()"));
      const auto failures = disagree(over, one, early);
      const std::string text = text_of(failures[1]);  // of the message, then of the barrier
      CHECK_THAT(text.substr(0, text.find(" | ")), ContainsSubstring(one.text));
      CHECK_THAT(text, ContainsSubstring(" | the process group has failed: "));
      CHECK_THAT(text_of(failures[0]), ContainsSubstring("failed on rank 0: rank 1 "));
    }
}

TEST_CASE("messages over shared memory move nothing more after an error") {
  MemoryStore store;
  std::unique_ptr<ShmTransport> sender, receiver;
  std::thread other([&] { receiver = ShmTransport::connect(store, 1, 2, 60s); });
  sender = ShmTransport::connect(store, 0, 2, 60s);
  other.join();
  std::vector<float> first(8, 1), second(8, 2), got(8, 0);
  sender->send(1, 0, first.data(), 32);
  sender->send(1, 1, second.data(), 32);
  const bool early = GENERATE(false, true);
  const auto second_request = receiver->receive(0, 1, got.data(), 32);
  if (early) receiver->progress();
  const auto request = receiver->receive(0, 0, got.data(), 16);
  CHECK_THROWS_WITH(receiver->wait(request, Clock::now() + 60s), "rank 0: it sent 32 bytes, expected 16");
  if (!early) CHECK_THROWS_WITH(receiver->wait(second_request, Clock::now()), "rank 0: it sent 32 bytes, expected 16");
  got.assign(8, 0);
  receiver->progress();
  CHECK_THROWS_AS(receiver->receive(0, 1, got.data(), 32), CommError);
  CHECK(got == std::vector<float>(8, 0));
}
