// Ranks as threads: the same code for every backend.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/connect.h"
#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/modules.h"
#include "ddp/transport/transport.h"

namespace duet_test {

using duet::ddp::ProcessGroup;
using Floats = std::vector<float>;

inline std::span<float> span(Floats& values) { return values; }

/// What the ranks of a test are connected by.
enum class Over { memory, gloo, shm, tcp };

inline bool missing(Over over) { return over == Over::gloo && !duet::ddp::why_no_gloo().empty(); }

inline std::unique_ptr<ProcessGroup> connect(Over over, const std::shared_ptr<duet::ddp::Store>& store, int rank,
                                             int size, const duet::ddp::GroupOptions& options) {
  constexpr const char* kNames[] = {"memory", "gloo", "shm", "tcp"};
  return duet::ddp::connect(
      {.backend = kNames[static_cast<int>(over)], .connect_timeout = std::chrono::seconds(60), .group = options}, store,
      rank, size);
}

/// A group of one rank that has no store.
inline std::unique_ptr<ProcessGroup> alone_in_memory() {
  duet::ddp::MemoryStore store;
  return duet::ddp::make_group(duet::ddp::make_memory_transport(store, 0, 1, std::chrono::seconds(60)));
}

/// As try_ranks(), each rank with options of its own.
inline std::vector<std::exception_ptr> try_unlike_ranks(
    Over over, int size, const std::function<duet::ddp::GroupOptions(int rank)>& options_of,
    const std::function<void(ProcessGroup&)>& body) {
  const auto store = std::make_shared<duet::ddp::MemoryStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::latch connected(size);  // or failed to: a rank that leaves at once would break the others' connecting
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      std::unique_ptr<ProcessGroup> group;
      try {
        group = connect(over, store, rank, size, options_of(rank));
      } catch (...) {
        failures[i] = std::current_exception();
      }
      connected.arrive_and_wait();
      if (!group) return;
      try {
        const auto leaving = std::move(group);  // before what it threw is noted
        body(*leaving);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

/// Runs `body` as `size` ranks, once all of them are connected, and returns what each of them threw.
inline std::vector<std::exception_ptr> try_ranks(Over over, int size, const duet::ddp::GroupOptions& options,
                                                 const std::function<void(ProcessGroup&)>& body) {
  return try_unlike_ranks(
      over, size, [&](int) { return options; }, body);
}

/// As try_ranks(); rethrows the first.
inline void run_ranks(Over over, int size, const std::function<void(ProcessGroup&)>& body) {
  const duet::ddp::GroupOptions options{.timeout = std::chrono::seconds(60), .leave_timeout = std::chrono::seconds(20)};
  for (const auto& failure : try_ranks(over, size, options, body)) {
    if (failure) std::rethrow_exception(failure);
  }
}

inline std::string text_of(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace duet_test
