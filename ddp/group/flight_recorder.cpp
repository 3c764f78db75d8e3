#include "ddp/group/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <span>
#include <system_error>
#include <tuple>

#include "lib/base/environment.h"
#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr const char* kPrefix = "duet-rank-";

}  // namespace

RankFile make_rank_file(const std::string& kind) {
  RankFile file;
  file.memory = Descriptor(::memfd_create((kPrefix + kind).c_str(), MFD_CLOEXEC));
  std::error_code failed;
  // Not getpid(): the numbers of /proc are those of its own PID namespace, which may be an outer one.
  const auto self = std::filesystem::read_symlink("/proc/self", failed);
  if (file.memory.open() && !failed) file.path = concat("/proc/", self.string(), "/fd/", file.memory.get());
  return file;
}

bool may_be_rank_file(const std::string& path) {
  std::error_code failed;
  return !path.starts_with("/proc/") ||
         std::filesystem::read_symlink(path, failed).string().starts_with(concat("/memfd:", kPrefix));
}

namespace {

constexpr std::uint64_t kRecorderMagic = 0x3430'6372'7465'7564;  // "duetrc04"

template <class T>
using Cell = std::atomic<T>;

/// A call in one cache line. Its number is 0 while it is being written.
struct alignas(64) Line {
  using Words = std::array<std::uint64_t, sizeof(RecordedCall) / sizeof(std::uint64_t)>;
  Cell<std::uint64_t> number;  // 1 + its place among all calls of the rank
  std::array<Cell<std::uint64_t>, std::tuple_size_v<Words>> words;

  void set(const RecordedCall& call);
  RecordedCall call() const;
};
static_assert(sizeof(Line) == 64);

// A reader that sees data of a later call also sees that call's number, and discards the data.
template <class T>
T load(const Cell<T>& cell) {
  return cell.load(std::memory_order_acquire);
}
template <class T, class V>
void store(Cell<T>& cell, V value) {
  cell.store(static_cast<T>(value), std::memory_order_release);
}

void Line::set(const RecordedCall& call) {
  const auto values = std::bit_cast<Words>(call);
  for (std::size_t i = 0; i < values.size(); ++i) store(words[i], values[i]);
}

RecordedCall Line::call() const {
  Words values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load(words[i]);
  auto call = std::bit_cast<RecordedCall>(values);
  // Whatever was written over the record, enumerators must be known, and differences of times must not overflow.
  call.phase = std::min(call.phase, Phase::after);
  call.progress = std::min(call.progress, Progress::failed);
  for (std::int64_t* const time : {&call.called_ns, &call.began_ns, &call.ended_ns})
    *time = std::max<std::int64_t>(0, *time);
  return call;
}

}  // namespace

struct FlightRecorder::Memory {
  Cell<std::uint64_t> magic, calls;
  Cell<std::int64_t> step, median_step_ns, left_ns;
  Cell<std::uint32_t> group;
  Cell<std::int16_t> bucket;  // the next call's; -1: none
  Cell<Phase> phase;
  std::array<Line, kCalls> lines;

  FlightRecord snapshot() const;
};

std::size_t FlightRecorder::bytes() { return sizeof(Memory); }

namespace {

/// Null if there is no such file of that size.
void* map(const std::string& path, int access) {
  const Descriptor file(::open(path.c_str(), (access & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  struct stat status {};
  const bool fits = ::fstat(file.get(), &status) == 0 && status.st_size == static_cast<off_t>(FlightRecorder::bytes());
  void* const memory = fits ? ::mmap(nullptr, FlightRecorder::bytes(), access, MAP_SHARED, file.get(), 0) : MAP_FAILED;
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::shared_ptr<FlightRecorder> FlightRecorder::make() {
  const std::string path = environment_variable(kFlightRecorderVariable).value_or("");
  void* const shared = may_be_rank_file(path) ? map(path, PROT_READ | PROT_WRITE) : nullptr;
  auto* const memory = shared != nullptr ? static_cast<Memory*>(shared) : new Memory();
  memory->bucket.store(-1);
  memory->magic.store(kRecorderMagic);
  return std::shared_ptr<FlightRecorder>(new FlightRecorder(memory, shared != nullptr));
}

FlightRecorder::~FlightRecorder() {
  if (mapped_)
    ::munmap(memory_, sizeof(Memory));
  else
    delete memory_;
}

void FlightRecorder::enter(Phase phase, std::int64_t step) {
  if (phase == Phase::forward) note_step();
  store(memory_->step, step);
  store(memory_->phase, phase);
}

void FlightRecorder::note_step() {
  const std::int64_t now = monotonic_ns();
  const std::scoped_lock lock(writing_);
  const std::int64_t began = std::exchange(step_began_ns_, now);
  if (began == 0) return;
  steps_[steps_noted_++ % kSteps] = now - began;
  std::array<std::int64_t, kSteps> sorted = steps_;
  const auto count = static_cast<std::ptrdiff_t>(std::min(steps_noted_, kSteps));
  std::nth_element(sorted.begin(), sorted.begin() + count / 2, sorted.begin() + count);
  store(memory_->median_step_ns, sorted[static_cast<std::size_t>(count / 2)]);
}

std::uint32_t FlightRecorder::begin_group() {
  store(memory_->left_ns, 0);
  return memory_->group.fetch_add(1) + 1;
}

void FlightRecorder::leave() {
  std::int64_t none = 0;
  memory_->left_ns.compare_exchange_strong(none, monotonic_ns());
}

void FlightRecorder::next_bucket(int bucket) { store(memory_->bucket, bucket); }

CallMark FlightRecorder::add(const RecordedCall& added) {
  const std::scoped_lock lock(writing_);
  const std::uint64_t number = memory_->calls.fetch_add(1) + 1;
  RecordedCall call = added;
  call.phase = load(memory_->phase);
  call.bucket = memory_->bucket.exchange(-1, std::memory_order_relaxed);
  call.step = static_cast<std::int32_t>(load(memory_->step));
  call.called_ns = monotonic_ns();
  Line& line = memory_->lines[number % kCalls];
  store(line.number, 0);
  line.set(call);
  store(line.number, number);
  return {shared_from_this(), number};
}

void FlightRecorder::mark(std::uint64_t number, Progress progress) {
  const std::scoped_lock lock(writing_);
  Line& line = memory_->lines[number % kCalls];
  if (load(line.number) != number) return;  // overwritten by kCalls later ones
  RecordedCall call = line.call();
  (progress == Progress::running ? call.began_ns : call.ended_ns) = monotonic_ns();
  call.progress = progress;
  line.set(call);
}

void CallMark::running() const {
  if (record_) record_->mark(number_, Progress::running);
}

void CallMark::ended(bool failed) const {
  if (record_) record_->mark(number_, failed ? Progress::failed : Progress::ended);
}

std::chrono::milliseconds CallMark::limit(std::chrono::milliseconds timeout) const {
  if (!record_) return timeout;
  const std::chrono::nanoseconds step(load(record_->memory_->median_step_ns));
  return std::max(timeout, std::chrono::ceil<std::chrono::milliseconds>(FlightRecorder::kStepsPerTimeout * step));
}

FlightRecord FlightRecorder::Memory::snapshot() const {
  FlightRecord all;
  if (magic.load() != kRecorderMagic) return all;
  all.phase = std::min(load(phase), Phase::after);
  all.step = load(step);
  all.group = load(group);
  all.left_ns = std::max<std::int64_t>(0, load(left_ns));
  all.median_step_ns = load(median_step_ns);
  const std::uint64_t last = calls.load(), kept = std::min<std::uint64_t>(last, kCalls);
  for (std::uint64_t i = 1; i <= kept; ++i) {  // up to any `last`, also the greatest number that there is
    const std::uint64_t number = last - kept + i;
    const Line& line = lines[number % kCalls];
    if (load(line.number) != number) continue;
    const RecordedCall call = line.call();
    if (load(line.number) == number) all.calls.push_back(call);
  }
  return all;
}

FlightRecord FlightRecorder::snapshot() const { return memory_->snapshot(); }

FlightRecord FlightRecorder::read(const std::string& path) {
  void* const memory = map(path, PROT_READ);
  if (memory == nullptr) return {};
  const FlightRecord all = static_cast<const Memory*>(memory)->snapshot();
  ::munmap(memory, bytes());
  return all;
}

std::uint32_t subgroup_number(std::uint32_t whole, const std::string& name) {
  constexpr std::uint32_t kSubgroup = 0x8000'0000;  // begin_group() counts from 0
  const std::string text = concat(whole, "/", name);
  const std::string hex = sha256_hex(std::as_bytes(std::span(text)));
  return kSubgroup | static_cast<std::uint32_t>(std::stoul(hex.substr(0, 8), nullptr, 16));
}

const std::shared_ptr<FlightRecorder>& flight_recorder() {
  static const std::shared_ptr<FlightRecorder> record = FlightRecorder::make();
  return record;
}

}  // namespace duet::ddp
