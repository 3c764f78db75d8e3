#include "ddp/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

// The file: the magic, then records {op, run id bytes, key bytes, value bytes (u32 each, of this machine's order),
// run id, key, value}. A record is written by one write() under the exclusive lock.
constexpr char kMagic[] = "duet-store-log-1\n";
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr std::size_t kHeadBytes = 1 + 3 * sizeof(std::uint32_t);
constexpr char kSet = 's';
constexpr char kErase = 'd';
constexpr Milliseconds kPoll{10};
const char* const kClosedKey = "/duet/closed";

std::string bytes_at(int file, std::int64_t from, std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(file, bytes.data() + done, count - done, from + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
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

}  // namespace

/// Both locks for as long as it lives, with the table up to date.
class FileStore::Locked {
 public:
  explicit Locked(FileStore& store) : store_(store), lock_(store.mutex_) {
    while (::flock(store_.file_.get(), LOCK_EX) != 0) {
      require<CommError>(errno == EINTR, "cannot lock the store ", store_.path_, ": ", last_errno);
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
  FileStore& store_;
  std::lock_guard<std::mutex> lock_;
};

FileStore::FileStore(std::string path, std::string run_id, int world_size, Milliseconds timeout)
    : Store(timeout), path_(std::move(path)), run_id_(std::move(run_id)), world_size_(world_size) {
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  require<CommError>(file_.open(), "cannot open the store ", path_, ": ", last_errno);
  check_owner();
  const Locked locked(*this);
}

void FileStore::check_owner() const {
  struct stat status {};
  require<CommError>(::fstat(file_.get(), &status) == 0, "cannot read the store ", path_, ": ", last_errno);
  require<CommError>(status.st_uid == ::geteuid(), "the store ", path_, " is another user's");
  require<CommError>((status.st_mode & 077) == 0, "the store ", path_,
                     ": others than its owner can read or write it; chmod 600 would help");
}

FileStore::~FileStore() {
  try {
    if (world_size_ > 0 && add(kClosedKey, 1) == world_size_) ::unlink(path_.c_str());
  } catch (const Error&) {  // a left-over file is harmless: its run id is never reused
  }
}

void FileStore::catch_up() {
  struct stat status {};
  require<CommError>(::fstat(file_.get(), &status) == 0, "cannot read the store ", path_, ": ", last_errno);
  if (status.st_size == 0) {
    require<CommError>(::pwrite(file_.get(), kMagic, kMagicBytes, 0) == static_cast<ssize_t>(kMagicBytes),
                       "cannot write the store ", path_, ": ", last_errno);
    read_ = static_cast<std::int64_t>(kMagicBytes);
    return;
  }
  if (read_ == 0) {
    require<CommError>(bytes_at(file_.get(), 0, kMagicBytes) == kMagic, path_, " is not a duet store");
    read_ = static_cast<std::int64_t>(kMagicBytes);
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
  const ssize_t wrote = ::pwrite(file_.get(), record.data(), record.size(), read_);
  if (wrote != static_cast<ssize_t>(record.size())) {
    const std::string reason = wrote < 0 ? errno_text(errno) : "the disk is full";
    // A torn record is cut off by the next reader, should this fail too.
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), read_);
    throw CommError(concat("cannot write the store ", path_, ": ", reason));
  }
  read_ += wrote;
}

void FileStore::publish(const std::string& key) { write_record(kSet, key, *table_.find(key)); }

void FileStore::wait_for(const std::vector<std::string>& keys, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!check(keys)) {
    if (Clock::now() >= deadline) {
      const Locked locked(*this);
      throw CommError(table_.timeout_message(keys, timeout) + " (file " + path_ + ")");
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::vector<std::string> FileStore::request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) {
  if (op == StoreOp::get || op == StoreOp::wait) wait_for(strings, timeout);
  const Locked locked(*this);
  switch (op) {
    case StoreOp::set:
      for (std::size_t i = 0; i + 1 < strings.size(); i += 2) {
        table_.set(strings[i], strings[i + 1]);
        publish(strings[i]);
      }
      return {};
    case StoreOp::get:
      for (const std::string& key : strings)
        require<CommError>(table_.find(key) != nullptr, "the store's key ", key, " was deleted while it was read");
      break;
    case StoreOp::count: return {std::to_string(table_.size() - (table_.find(kClosedKey) ? 1 : 0))};
    default: break;
  }
  std::vector<std::string> answer = table_.answer(op, strings);
  if (op == StoreOp::erase && answer[0] == "1") write_record(kErase, strings[0], "");
  const bool changes = op == StoreOp::add || op == StoreOp::compare_set || op == StoreOp::append;
  if (changes && table_.find(strings[0])) publish(strings[0]);
  return answer;
}

}  // namespace duet::ddp
