#include "ddp/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <istream>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

// The file: the magic, then records {op, run id bytes, key bytes, value bytes (u32 each, of this machine's order),
// run id, key, value}. A record is written by one write() under the exclusive lock.
constexpr char kLogHeader[] = "duet-store-log-1\n";
constexpr std::size_t kLogHeaderBytes = sizeof(kLogHeader) - 1;
constexpr std::size_t kHeadBytes = 1 + 3 * sizeof(std::uint32_t);
constexpr char kSet = 's';
constexpr char kErase = 'd';
constexpr Milliseconds kPollEvery{10};
constexpr std::chrono::microseconds kFirstPause{1000}, kLongestPause{32'000};
// A lock is held for so short a time that no timeout should be the shorter one.
constexpr Milliseconds kLeastPatience{1000};
const char* const kClosedKey = "/duet/closed";

std::string bytes_at(int file, std::int64_t from, std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(file, bytes.data() + done, count - done, from + static_cast<std::int64_t>(done)); });
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

std::uint32_t number_at(const std::string& bytes, std::size_t from) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + from, sizeof(number));
  return number;
}

void put_number(std::string& bytes, std::size_t number) {
  const auto narrow = static_cast<std::uint32_t>(number);
  bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
}

bool has_open(const std::filesystem::path& process, const struct stat& file) {
  std::error_code failed;
  const std::filesystem::directory_iterator none;
  for (std::filesystem::directory_iterator next(process / "fd", failed); !failed && next != none;
       next.increment(failed)) {
    struct stat other {};
    if (::stat(next->path().c_str(), &other) == 0 && other.st_dev == file.st_dev && other.st_ino == file.st_ino)
      return true;
  }
  return false;
}

/// Who has locked a file, as far as /proc shows it.
std::string holder_of(const Descriptor& file) {
  struct stat status {};
  ::fstat(file.get(), &status);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, access, pid, place;  // "->" is the kind of one who waits
    words >> number >> kind >> advisory >> access >> pid >> place;
    if (kind != "FLOCK" || !place.ends_with(concat(":", status.st_ino))) continue;
    const std::filesystem::path process = "/proc/" + pid;
    // The device's number in that list is not always that of stat().
    if (!has_open(process, status)) continue;
    std::string name, about;
    std::getline(std::ifstream(process / "comm") >> std::ws, name);
    std::getline(std::ifstream(process / "stat") >> std::ws, about);
    const bool stopped = about.find(") T ") != std::string::npos;
    return concat("process ", pid, " (", printable(name), "),", stopped ? " which is stopped," : "", " holds it");
  }
  return "a process that cannot be seen from here holds it";
}

}  // namespace

/// Both locks for as long as it lives, with the table up to date. Throws CommError that names who holds them.
class FileStore::Locked {
 public:
  Locked(FileStore& store, Milliseconds timeout) : store_(store), lock_(store.mutex_, std::defer_lock) {
    const auto begin = Clock::now();
    std::minstd_rand random(static_cast<unsigned>(begin.time_since_epoch().count()));  // ranks must not try in step
    for (auto pause = kFirstPause; !try_lock(); pause = std::min(2 * pause, kLongestPause)) {
      const auto waited = Clock::now() - begin;
      if (waited >= std::max(timeout, kLeastPatience))
        throw CommError(concat("waited ", std::chrono::floor<Milliseconds>(waited).count(),
                               " ms for the lock of the store ", store_.path_, ": ", holder_of(store_.file_)));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(pause.count())));
    }
    try {
      store_.catch_up();
    } catch (...) {
      ::flock(store_.file_.get(), LOCK_UN);
      throw;
    }
  }
  ~Locked() { ::flock(store_.file_.get(), LOCK_UN); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  bool try_lock() {
    if (!lock_.try_lock()) return false;
    if (::flock(store_.file_.get(), LOCK_EX | LOCK_NB) == 0) return true;
    require<CommError>(errno == EWOULDBLOCK || errno == EINTR, "cannot lock the store ", store_.path_, ": ",
                       last_errno);
    lock_.unlock();
    return false;
  }

  FileStore& store_;
  std::unique_lock<std::mutex> lock_;
};

FileStore::FileStore(std::string path, std::string run_id, int world_size, Milliseconds timeout)
    : Store(timeout), path_(std::move(path)), run_id_(std::move(run_id)), world_size_(world_size) {
  file_ = Descriptor(uninterrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); }));
  require<CommError>(file_.open(), "cannot open the store ", path_, ": ", last_errno);
  check_owner();
  const Locked locked(*this, timeout);
}

void FileStore::check_owner() const {
  struct stat status {};
  require<CommError>(::fstat(file_.get(), &status) == 0, "cannot read the store ", path_, ": ", last_errno);
  require<CommError>(status.st_uid == ::geteuid(), "the store ", path_, " is another user's");
  require<CommError>(status.st_nlink <= 1, "the store ", path_, " is a hard link to a file with another name");
  require<CommError>((status.st_mode & 077) == 0, "the store ", path_,
                     ": others than its owner can read or write it; chmod 600 would help");
}

FileStore::~FileStore() {
  try {
    if (world_size_ > 0 && request(StoreOp::add, {kClosedKey, "1"}, kClosePatience)[0] == std::to_string(world_size_))
      ::unlink(path_.c_str());
  } catch (const Error&) {  // a left-over file is harmless: its run id is never reused
  }
}

void FileStore::catch_up() {
  struct stat status {};
  require<CommError>(::fstat(file_.get(), &status) == 0, "cannot read the store ", path_, ": ", last_errno);
  if (status.st_size == 0) {
    const HeldSizeSignal held;
    require<CommError>(uninterrupted([&] { return ::pwrite(file_.get(), kLogHeader, kLogHeaderBytes, 0); }) ==
                           static_cast<ssize_t>(kLogHeaderBytes),
                       "cannot write the store ", path_, ": ", last_errno);
    read_ = static_cast<std::int64_t>(kLogHeaderBytes);
    return;
  }
  if (read_ == 0) {
    require<CommError>(bytes_at(file_.get(), 0, kLogHeaderBytes) == kLogHeader, path_, " is not a duet store");
    read_ = static_cast<std::int64_t>(kLogHeaderBytes);
  }
  while (read_ < status.st_size) {
    const std::string head = bytes_at(file_.get(), read_, kHeadBytes);
    const bool whole = head.size() == kHeadBytes;
    const std::size_t run = whole ? number_at(head, 1) : 0;
    const std::size_t key = whole ? number_at(head, 5) : 0;
    const std::size_t value = whole ? number_at(head, 9) : 0;
    require<CommError>(run <= kMaxKeyBytes && key <= kMaxKeyBytes && value <= kMaxValueBytes, "the store ", path_,
                       " is damaged at byte ", read_);
    const std::string body = bytes_at(file_.get(), read_ + static_cast<std::int64_t>(kHeadBytes), run + key + value);
    if (!whole || body.size() < run + key + value) {  // its writer was killed in the middle
      require<CommError>(::ftruncate(file_.get(), read_) == 0, "cannot repair the store ", path_, ": ", last_errno);
      return;
    }
    if (body.compare(0, run, run_id_) == 0) {
      if (head[0] == kErase)
        table_.erase(body.substr(run, key));
      else
        table_.set(body.substr(run, key), body.substr(run + key));
    }
    read_ += static_cast<std::int64_t>(kHeadBytes + body.size());
  }
}

void FileStore::write_record(char op, const std::string& key, const std::string& value) {
  std::string record(1, op);
  put_number(record, run_id_.size());
  put_number(record, key.size());
  put_number(record, value.size());
  record += run_id_ + key + value;
  const HeldSizeSignal held;
  const ssize_t wrote = uninterrupted([&] { return ::pwrite(file_.get(), record.data(), record.size(), read_); });
  if (wrote != static_cast<ssize_t>(record.size())) {
    const std::string reason = wrote < 0 ? errno_text(errno) : "the disk is full";
    // A torn record is cut off by the next reader, should this fail too.
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), read_);
    throw CommError(concat("cannot write the store ", path_, ": ", reason));
  }
  read_ += wrote;
}

void FileStore::publish(const std::string& key) { write_record(kSet, key, *table_.find(key)); }

std::vector<std::string> FileStore::request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) {
  for (const auto begin = Clock::now();;) {
    const auto waited = std::chrono::floor<Milliseconds>(Clock::now() - begin);
    {
      const Locked locked(*this, timeout - waited);
      if (!waits(op) || table_.has_all(strings)) return answer(op, strings);
      if (waited >= timeout) throw CommError(concat(table_.timeout_message(strings, timeout), " (file ", path_, ")"));
    }
    std::this_thread::sleep_for(std::min(kPollEvery, timeout));
  }
}

std::vector<std::string> FileStore::answer(StoreOp op, const std::vector<std::string>& strings) {
  switch (op) {
    case StoreOp::set:
    case StoreOp::post:
      for (std::size_t i = 0; i + 1 < strings.size(); i += 2) {
        table_.set(strings[i], strings[i + 1]);
        publish(strings[i]);
      }
      return {};
    case StoreOp::take:
      for (const std::string& key : strings) write_record(kErase, key, "");
      break;
    case StoreOp::erase_prefix:
      for (const std::string& key : table_.keys_under(strings.at(0))) write_record(kErase, key, "");
      break;
    case StoreOp::count: return {std::to_string(table_.size() - (table_.find(kClosedKey) ? 1 : 0))};
    default: break;
  }
  std::vector<std::string> answer = table_.answer(op, strings);
  if (op == StoreOp::erase && answer[0] == "1") write_record(kErase, strings[0], "");
  const bool changes = op == StoreOp::add || op == StoreOp::compare_set || op == StoreOp::append;
  for (std::size_t i = 0; changes && i < strings.size(); i += 3)
    if (table_.find(strings[i])) publish(strings[i]);
  return answer;
}

}  // namespace duet::ddp
