// What other users of this host can do to ranks, and what memory can hold that a rank did not write.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/group/call_header.h"
#include "ddp/shm/control_block.h"
#include "ddp/shm/shared_segment.h"
#include "ddp/shm/shm_collectives.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/store/file_store.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/transport/message_receiver.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/store/other_user.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kBytes = 4096;

/// Why rank 1 of 2 does not map what the store names; empty if it does. Rank 0 has set `key/path` before.
std::string why_not_mapped(MemoryStore& store) {
  store.set("k/0", "");
  return error_of<CommError>([&] { SharedSegment(store, "k", 1, 2, kBytes, 60s); });
}

/// The place of rank 0's memory, as it publishes it.
std::string proven(Store& store, const std::string& place) {
  return concat(place, ' ', proof_of(store.secret(), "segment k " + place));
}

/// Two control blocks over the same memory.
struct ControlBlocks {
  explicit ControlBlocks(std::size_t arena_bytes = kBytes) {
    std::thread other([&] { connect(1, arena_bytes); });
    connect(0, arena_bytes);
    other.join();
  }
  void connect(int rank, std::size_t arena_bytes) {
    auto segment = ControlBlock::make_segment(store, "control_block", rank, 2, 60s);
    control_block[rank] = std::make_unique<ControlBlock>(std::move(segment), rank, 2);
    arena[rank] = {std::make_shared<SharedSegment>(store, "arena", rank, 2, 2 * arena_bytes, 60s), arena_bytes};
  }
  MemoryStore store;
  std::unique_ptr<ControlBlock> control_block[2];
  SharedArena arena[2];
};

}  // namespace

TEST_CASE("another user of this host is refused by a store of ranks that were given no secret") {
  if (*why_no_other_user()) DUET_SKIP(why_no_other_user());
  TcpStore store({.port = 0, .serve = true});
  store.set("shm/path", "the ranks'");
  const int code = as_other_user([&] {
    try {
      TcpStore({.port = store.port(), .timeout = 60s}).set("shm/path", "/tmp/another user's");
      return 1;
    } catch (const CommError&) {
      return 2;
    }
  });
  CHECK(code == 2);
  CHECK(store.get("shm/path") == "the ranks'");
  CHECK(TcpStore({.port = store.port()}).get("shm/path") == "the ranks'");  // this user's next rank gets in
}

TEST_CASE("a store in a file that others own or can write is refused") {
  const Scratch scratch;
  const std::string path = scratch.path("store");
  FileStore(path, "run").set("key", "value");
  ::chmod(path.c_str(), 0666);
  CHECK_THROWS_WITH(FileStore(path, "run"), ContainsSubstring("others than its owner can read or write it"));
  ::chmod(path.c_str(), 0600);
  CHECK(FileStore(path, "run").get("key") == "value");
  if (*why_no_other_user()) DUET_SKIP(why_no_other_user());
  REQUIRE(::chown(path.c_str(), kOtherUser, kOtherUser) == 0);
  CHECK_THROWS_WITH(FileStore(path, "run"), ContainsSubstring("another user's"));
}

TEST_CASE("no memory is mapped that rank 0 did not make for the ranks") {
  const Scratch scratch;
  const std::string file = scratch.path("file");
  write_text(file, std::string(kBytes, 'x'));
  const auto memory = [](const char* name, int seals, std::size_t bytes = kBytes) {
    const int made = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(made, static_cast<off_t>(bytes)) == 0);
    REQUIRE(::fcntl(made, F_ADD_SEALS, seals) == 0);
    return made;
  };
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto place = [](int made) { return concat("/proc/", ::getpid(), "/fd/", made); };
  const int right = memory("duet", kSeals);
  const std::string link = scratch.path("link");  // to the right memory, from outside of /proc
  REQUIRE(::symlink(place(right).c_str(), link.c_str()) == 0);
  const int others = memory("duet", kSeals);
  if (!*why_no_other_user()) REQUIRE(::fchown(others, kOtherUser, kOtherUser) == 0);
  for (const std::string& path : {file, link, std::string("/dev/zero"), std::string("/proc/self/mem"),
                                  std::string("nonsense"), place(memory("duet", 0)), place(right), place(others),
                                  place(memory("other", kSeals)), place(memory("duet", kSeals, 2 * kBytes))}) {
    INFO(path);
    MemoryStore store;
    store.set("k/path", path);
    CHECK_THAT(why_not_mapped(store), ContainsSubstring("shared memory failed on rank 1"));
    struct stat status {};
    ::stat(path.c_str(), &status);
    for (const ino_t number : {status.st_ino, status.st_ino + 1}) {  // both with a proof by the secret
      const bool own = path == place(right) || (path == place(others) && status.st_uid == ::geteuid());
      const bool good = number == status.st_ino && own;
      store.set("k/path", proven(store, concat(path, ' ', number)));
      CHECK(why_not_mapped(store).empty() == good);
    }
  }
}

TEST_CASE("a ring whose counters are damaged moves nothing") {
  std::vector<std::byte> memory(ByteRing::kBytes + kBytes);
  ByteRing ring(memory.data());
  auto* const written = reinterpret_cast<std::uint32_t*>(memory.data());
  auto* const taken = reinterpret_cast<std::uint32_t*>(memory.data() + 128);
  std::vector<std::byte> data(4 * ByteRing::kRoom, std::byte{7});
  *taken = 1;  // more than was written
  CHECK_THROWS_AS(ring.write(data), CommError);
  *taken = 0;
  *written = ByteRing::kRoom + 1;
  CHECK_THROWS_AS(ring.read(data), CommError);
  CHECK_THROWS_AS(ring.write(data), CommError);
  CHECK(memory[ByteRing::kBytes] == std::byte{0});
}

TEST_CASE("a message whose header is damaged ends the messages") {
  const auto bytes = GENERATE(std::uint64_t{0}, ~std::uint64_t{0}, (std::uint64_t{1} << 40) + 1);
  const bool posted = GENERATE(false, true);
  ControlBlocks two;
  ShmTransport receiver(std::move(two.control_block[1]));
  const MessageHead head{7, bytes};
  std::vector<float> got(8);
  if (posted) receiver.receive(0, 7, got.data(), 32);
  ByteRing(two.control_block[0]->ring_memory(0, 1)).write(std::as_bytes(std::span(&head, 1)));
  CHECK_THROWS_WITH(receiver.progress(), ContainsSubstring("rank 0: it announced a message of"));
}

TEST_CASE("a buffer that lies outside of a rank's shared memory is not touched") {
  const auto place = GENERATE(std::uint64_t{kBytes}, std::uint64_t{kBytes - 11}, (std::uint64_t{1} << 40) + 1,
                              (std::uint64_t{1} << 48) + 1, ~std::uint64_t{0}, std::uint64_t{3});
  ControlBlocks two;
  auto* const values = reinterpret_cast<float*>(two.arena[0].of(0));
  const Buffer buffer{values, 128, DType::f32, {}};  // enough for a shard of every rank
  const Call call{.op = Collective::all_reduce, .in = buffer};
  ShmCollectives collectives(std::make_unique<ShmTransport>(std::move(two.control_block[0])));
  collectives.add_arena(two.arena[0]);
  PostedCall& other = two.control_block[1]->posted_call(1, 0);
  other.header = header_of(call, 0);
  other.shared_at = {place};
  for (int i = 0; i < 2; ++i) two.control_block[1]->post();
  collectives.begin(call, 0);
  CHECK_THROWS_WITH(collectives.finish(call, 0, Clock::now() + 60s, false),
                    ContainsSubstring("rank 1 names memory that it does not share"));
}
