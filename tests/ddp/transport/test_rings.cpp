// Memory for messages between ranks of one host: rings, each made when its sender first needs it.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ddp/shm/control_block.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/store/store.h"
#include "lib/base/descriptor.h"
#include "lib/monotonic.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// This process's descriptors of memory that ranks share, of which there were some `before`.
std::vector<int> memory_files(const std::vector<int>& before = {}) {
  std::vector<int> files;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  while (const dirent* const entry = ::readdir(folder.get())) {
    std::array<char, 64> name{};
    const int file = std::atoi(entry->d_name);
    if (::readlinkat(::dirfd(folder.get()), entry->d_name, name.data(), name.size()) < 0) continue;
    const bool old = std::find(before.begin(), before.end(), file) != before.end();
    if (!old && std::string_view(name.data()).starts_with("/memfd:duet")) files.push_back(file);
  }
  return files;
}

std::size_t reserved_bytes(int file) {
  struct stat status {};
  REQUIRE(::fstat(file, &status) == 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

/// Rank 0 of a group whose other ranks do nothing.
std::unique_ptr<ControlBlock> first_of(int size) {
  MemoryStore store;
  for (const std::string& key : rank_keys("k", size)) store.set(key, "");
  return std::make_unique<ControlBlock>(ControlBlock::make_segment(store, "k", 0, size, 60s), 0, size);
}

}  // namespace

TEST_CASE("memory of ranks that exchange no messages grows with their number, not with its square") {
  constexpr int kRanks = 64;
  const std::vector<int> others = memory_files();
  const auto block = first_of(kRanks);
  const std::vector<int> files = memory_files(others);
  REQUIRE(files.size() == 1);
  const std::size_t before = reserved_bytes(files[0]);
  CHECK(before < kRanks * (2 * ControlBlock::kHalfBytes + 8192));
  REQUIRE(block->ring_memory(0, 5) != nullptr);
  const std::size_t after = reserved_bytes(files[0]);
  CHECK(after >= before + ByteRing::kBytes);
  CHECK(after <= before + 2 * ByteRing::kBytes);
  block->ring_memory(0, 5);
  CHECK(block->ring_memory(7, 0) == nullptr);  // that rank has sent nothing
  CHECK(reserved_bytes(files[0]) == after);
}

TEST_CASE("where no memory is left for a first message, its sender throws, and the group ends") {
  const std::vector<int> others = memory_files();
  MemoryStore store;
  std::unique_ptr<ShmTransport> sender, receiver;
  std::thread other([&] { receiver = ShmTransport::connect(store, 1, 2, 60s); });
  sender = ShmTransport::connect(store, 0, 2, 60s);
  other.join();
  const Descriptor full(::open("/dev/null", O_RDWR | O_CLOEXEC));  // no memory can be reserved there
  for (const int file : memory_files(others)) REQUIRE(::dup3(full.get(), file, O_CLOEXEC) == file);
  std::array<float, 8> values{};
  const auto sent = sender->send(1, 0, values.data(), sizeof values);
  CHECK_THROWS_WITH(sender->wait(sent, Clock::now() + 60s),
                    ContainsSubstring("bytes of shared memory: No such device"));
  const auto received = receiver->receive(0, 0, values.data(), sizeof values);
  CHECK_THROWS_WITH(receiver->wait(received, Clock::now() + 60s), "rank 0 has closed the connection");
}
