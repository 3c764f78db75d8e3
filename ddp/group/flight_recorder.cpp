#include "ddp/group/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "lib/base/environment.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr std::uint64_t kMagic = 0x3230'6372'7465'7564;  // "duetrc02"

template <class T>
using Cell = std::atomic<T>;

/// A call in one cache line. Its number is 0 while it is being written.
struct alignas(64) Line {
  Cell<std::uint64_t> number;  // 1 + its place among all calls of the rank
  Cell<std::int64_t> count, called_ns, began_ns, ended_ns;
  Cell<std::uint32_t> sequence, group, step;
  Cell<std::int16_t> bucket, root;
  Cell<std::uint8_t> op, dtype, reduce, phase, progress;
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
template <class E>
E limited(const Cell<std::uint8_t>& cell, E most) {
  return std::min(static_cast<E>(load(cell)), most);
}
/// Differences of times must not overflow, whatever was written over the record.
std::int64_t time_in(const Cell<std::int64_t>& cell) { return std::max<std::int64_t>(0, load(cell)); }

}  // namespace

struct FlightRecorder::Memory {
  Cell<std::uint64_t> magic, calls;
  Cell<std::int64_t> step, median_step_ns;
  Cell<std::uint32_t> group;
  Cell<std::int32_t> bucket;  // of the next call
  Cell<std::uint8_t> phase, leaving;
  std::array<Line, kCalls> lines;

  FlightRecord snapshot() const;
};

std::size_t FlightRecorder::bytes() { return sizeof(Memory); }

namespace {

/// Null if there is no such file of that size.
void* map(const std::string& path, int access) {
  const int file = ::open(path.c_str(), (access & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat status {};
  const bool fits = ::fstat(file, &status) == 0 && status.st_size == static_cast<off_t>(FlightRecorder::bytes());
  void* const memory = fits ? ::mmap(nullptr, FlightRecorder::bytes(), access, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::shared_ptr<FlightRecorder> FlightRecorder::make() {
  void* const shared = map(environment_variable(kFlightRecorderVariable).value_or(""), PROT_READ | PROT_WRITE);
  auto* const memory = shared != nullptr ? static_cast<Memory*>(shared) : new Memory();
  memory->bucket.store(-1);
  memory->magic.store(kMagic);
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
  store(memory_->leaving, 0);
  return memory_->group.fetch_add(1) + 1;
}

void FlightRecorder::leave() { store(memory_->leaving, 1); }

void FlightRecorder::next_bucket(int bucket) { store(memory_->bucket, bucket); }

CallMark FlightRecorder::add(const RecordedCall& call) {
  const std::scoped_lock lock(writing_);
  const std::uint64_t number = memory_->calls.fetch_add(1) + 1;
  Line& line = memory_->lines[number % kCalls];
  store(line.number, 0);
  store(line.count, call.count);
  store(line.called_ns, monotonic_ns());
  store(line.began_ns, 0);
  store(line.ended_ns, 0);
  store(line.sequence, call.sequence);
  store(line.group, call.group);
  store(line.step, load(memory_->step));
  store(line.bucket, memory_->bucket.exchange(-1, std::memory_order_relaxed));
  store(line.root, call.root);
  store(line.op, call.op);
  store(line.dtype, call.dtype);
  store(line.reduce, call.reduce);
  store(line.phase, load(memory_->phase));
  store(line.progress, Progress::called);
  store(line.number, number);
  return {shared_from_this(), number};
}

void FlightRecorder::mark(std::uint64_t number, Progress progress) {
  const std::scoped_lock lock(writing_);
  Line& line = memory_->lines[number % kCalls];
  if (load(line.number) != number) return;  // overwritten by kCalls later ones
  store(progress == Progress::running ? line.began_ns : line.ended_ns, monotonic_ns());
  store(line.progress, progress);
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
  if (magic.load() != kMagic) return all;
  all.phase = limited(phase, Phase::after);
  all.step = load(step);
  all.group = load(group);
  all.leaving = load(leaving) != 0;
  all.median_step_ns = load(median_step_ns);
  const std::uint64_t last = calls.load(), kept = std::min<std::uint64_t>(last, kCalls);
  for (std::uint64_t i = 1; i <= kept; ++i) {  // up to any `last`, also the greatest number that there is
    const std::uint64_t number = last - kept + i;
    const Line& line = lines[number % kCalls];
    if (load(line.number) != number) continue;
    RecordedCall call;
    call.group = load(line.group);
    call.sequence = static_cast<std::int32_t>(load(line.sequence));
    call.op = load(line.op);
    call.dtype = load(line.dtype);
    call.reduce = load(line.reduce);
    call.phase = limited(line.phase, Phase::after);
    call.bucket = load(line.bucket);
    call.root = load(line.root);
    call.count = load(line.count);
    call.step = load(line.step);
    call.progress = limited(line.progress, Progress::failed);
    call.called_ns = time_in(line.called_ns);
    call.began_ns = time_in(line.began_ns);
    call.ended_ns = time_in(line.ended_ns);
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

const std::shared_ptr<FlightRecorder>& flight_recorder() {
  static const std::shared_ptr<FlightRecorder> record = FlightRecorder::make();
  return record;
}

}  // namespace duet::ddp
