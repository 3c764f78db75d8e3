// A store in a file that all ranks can reach: an append-only log under flock.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "ddp/store/store.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Keys carry the run id, so what an earlier run left in the file is never seen. Waiting polls every 10 ms.
/// Throws CommError when the file cannot be opened, is another user's or open to others, or is not a duet store, and
/// when another process keeps it locked for the timeout of a call, at least a second: it is named where /proc shows it.
class FileStore final : public Store {
 public:
  /// `run_id` is the same for all ranks of a run and new for each run. With a `world_size`, the last of so many stores
  /// to be destroyed removes the file.
  FileStore(std::string path, std::string run_id, int world_size = 0, Milliseconds timeout = kStoreTimeout);
  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override;

 private:
  class Locked;
  /// Throws CommError if other users can reach the file.
  void check_owner() const;
  /// Applies the records that others have written since the last read. Needs the lock.
  void catch_up();
  void write_record(char op, const std::string& key, const std::string& value);
  /// Needs the lock.
  std::vector<std::string> answer(StoreOp op, const std::vector<std::string>& strings);
  /// Writes what the table now holds for `key`.
  void publish(const std::string& key);

  std::string path_;
  std::string run_id_;
  int world_size_;
  Descriptor file_;
  std::int64_t read_ = 0;  // bytes of the log already applied
  std::mutex mutex_;       // flock orders processes, this the threads of one
  StoreTable table_;       // this run's keys, without the run id
};

}  // namespace duet::ddp
