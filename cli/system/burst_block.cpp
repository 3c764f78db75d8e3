#include "cli/system/burst_block.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "lib/base/descriptor.h"
#include "lib/base/futex.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr std::uint64_t kMagic = 0x3173747372756221;  // a file of another version has another
constexpr std::size_t kMostRanks = 1024, kMostText = 65'536;

}  // namespace

/// Zero when it is made. What is not atomic is written by one side while the other waits for one of the counters.
struct BurstLayout {
  std::uint64_t magic;
  std::uint32_t ranks;
  std::atomic<std::uint32_t> command;   // counts up; ranks wait for a change
  std::atomic<std::uint32_t> arrivals;  // counts up by all ranks; the comparison waits for a change
  std::atomic<std::uint32_t> reported;  // ranks whose timed steps of this command are over
  std::int32_t steps;                   // of this command
  std::uint32_t text_size;
  std::array<char, kMostText> text;
  std::array<RankBurst, kMostRanks> bursts;
};

BurstMap::BurstMap(const std::string& path, bool create) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_TRUNC : 0), 0600));
  require<DataError>(file.open(), "cannot open ", path, ": ", last_errno);
  struct stat status {};
  if (create)
    require<DataError>(::ftruncate(file.get(), sizeof(BurstLayout)) == 0, "cannot write ", path, ": ", last_errno);
  else
    require<DataError>(::fstat(file.get(), &status) == 0 && status.st_size == sizeof(BurstLayout), "--bursts ", path,
                       " has ", status.st_size, " bytes, expected ", sizeof(BurstLayout));
  void* const memory = ::mmap(nullptr, sizeof(BurstLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  require<DataError>(memory != MAP_FAILED, "cannot map ", path, ": ", last_errno);
  layout_ = static_cast<BurstLayout*>(memory);
  if (create) layout_->magic = kMagic;
  if (layout_->magic == kMagic) return;
  ::munmap(memory, sizeof(BurstLayout));
  throw DataError(concat("--bursts ", path, " was not made by this version of duet compare"));
}

BurstMap::~BurstMap() { ::munmap(layout_, sizeof(BurstLayout)); }

BurstControl::BurstControl(std::string path, int ranks)
    : path_(std::move(path)), ranks_(static_cast<std::uint32_t>(ranks)), map_(path_, true) {
  require<UsageError>(ranks >= 1 && ranks_ <= kMostRanks, "a burst of ", ranks, " ranks, expected 1 to ", kMostRanks);
  map_->ranks = ranks_;
}

bool BurstControl::parked() const { return map_->arrivals.load() == ranks_ * (commands_ + 1); }

void BurstControl::wait_parked(std::chrono::nanoseconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!parked()) {
    const std::uint32_t arrivals = map_->arrivals.load();
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    if (!parked()) futex_wait(map_->arrivals, arrivals, left);
  }
}

void BurstControl::begin(int steps) {
  map_->steps = steps;
  map_->reported = 0;
  map_->text_size = 0;
  ++commands_;
  map_->command.fetch_add(1);
  futex_wake(map_->command);
}

std::vector<RankBurst> BurstControl::bursts() const {
  return {map_->bursts.begin(), map_->bursts.begin() + static_cast<std::ptrdiff_t>(ranks_)};
}

std::string BurstControl::text() const {
  return {map_->text.data(), std::min<std::size_t>(map_->text_size, kMostText)};
}

BurstPort::BurstPort(const std::string& path, int rank) : map_(path, false), rank_(static_cast<std::size_t>(rank)) {
  require<DataError>(rank_ < map_->ranks, "--bursts ", path, " is for ", map_->ranks, " ranks, this is rank ", rank);
}

int BurstPort::next() {
  map_->arrivals.fetch_add(1);
  futex_wake(map_->arrivals);
  while (map_->command.load() == seen_) futex_wait(map_->command, seen_);
  ++seen_;  // one command at a time: the next one comes when all ranks are parked
  return map_->steps;
}

void BurstPort::report(const RankBurst& burst) {
  map_->bursts[rank_] = burst;
  map_->reported.fetch_add(1);
}

void BurstPort::report(const std::string& text) {
  require<DataError>(text.size() <= kMostText, "the record of a burst has ", text.size(), " bytes, expected ",
                     kMostText, " at most");
  std::copy(text.begin(), text.end(), map_->text.begin());
  map_->text_size = static_cast<std::uint32_t>(text.size());
}

bool BurstPort::all_reported() const { return map_->reported.load() == map_->ranks; }

}  // namespace duet::cli
